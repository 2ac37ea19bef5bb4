"""Small timelines: what each rank does during a few steps, one panel per run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from textwrap import wrap
from typing import Any

from orchestrator.replay.windows import Part, Steps, Window
from orchestrator.report import formats
from orchestrator.report.figures.bars import part_scale
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.spec import TOP_LEGEND, channel, data, facet, layer
from orchestrator.report.formats import JOIN, significant, whole
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.timelines import Timeline

WIDTHS = {1: 940, 2: 445}  # pixels of a panel, by the number of panels in a row
MOST_RANKS = 16  # lines of a panel
MOST_BOXES = 2500  # of a figure, which keeps the page small
MOST_TICKS = 8
RANK = 16  # pixels of a line
WIDEST = 66  # characters of a title


def small_timelines(view: WorkloadView, timelines: Sequence[Timeline]) -> Chart | None:
    """A panel for each run, with a line per rank; None without runs."""
    if not timelines:
        return None
    across = min(len(timelines), len(WIDTHS))
    ranks = _most_ranks(timelines)
    panels = {each.run.group.series: each for each in timelines}
    records = [record for series, each in panels.items() for record in _records(series, each.window, ranks)]
    most = max(min(len(each.window.ranks), ranks) for each in timelines)
    ticks = {"values": [*range(0, most, ceil(most / MOST_TICKS))]}
    boxes = layer(
        "rect",
        {"height": {"band": 0.84}},
        tips={"series": "strategy", "rank": "rank", "phase": "phase", "exchange": "exchange"}
        | {"from": "from, ms", "to": "to, ms"},
        x=channel("from:Q", axis={"title": "ms", "tickCount": 6}, scale={"nice": False}),
        x2={"field": "to"},
        y=channel("rank:O", axis={**ticks, "ticks": False, "domain": False, "labelAngle": 0}),
        color=channel("phase:N", scale=part_scale([box["phase"] for box in records]), legend=TOP_LEGEND),
    )
    view_of = {
        **data(records),
        "facet": facet({series: _title(each, view, ranks) for series, each in panels.items()}),
        "columns": across,
        "spec": {**boxes, "height": RANK * most, "width": WIDTHS[across]},
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }
    return Chart.of(view_of, f"Timelines of the slowest runs, in {view.clock} time", wide=True)


def _most_ranks(timelines: Sequence[Timeline]) -> int:
    """How many ranks of each run are drawn, at least two."""
    for ranks in range(MOST_RANKS, 2, -1):
        boxes = sum(len(parts) for each in timelines for parts in each.window.ranks[:ranks])
        if boxes <= MOST_BOXES:
            return ranks
    return 2


def _title(timeline: Timeline, view: WorkloadView, most: int) -> list[str]:
    """`all_reduce · gloo, 4 nodes, seed 1`, and which part of the run is shown."""
    run = timeline.run
    size = run.group.shape.short if run.group.shape.per_node else run.group.shape.label
    name = f"{run.group.series}{view.partitioner(run.group)}, {size}, seed {run.row.seed}"
    ranks = len(timeline.window.ranks)
    hidden = f"; the first {most} of {ranks} ranks" if ranks > most else ""
    start = f"from {significant(timeline.window.start_s, 4)}{JOIN}s"
    return [*wrap(name, WIDEST), f"{_part(timeline.windows.steps)}, {start}{hidden}"]


def _part(steps: Steps | None) -> str:
    if steps is None:
        return "the whole run"
    if steps.exchange:
        return f"around the exchange after step {whole(steps.last)} of {whole(steps.of)}"
    return f"steps {whole(steps.first)} to {whole(steps.last)} of {whole(steps.of)}"


def _records(series: str, window: Window, ranks: int) -> Iterator[dict[str, Any]]:
    for rank, parts in enumerate(window.ranks[:ranks]):
        for part in parts:
            yield {
                "series": series,
                "rank": rank,
                "phase": part.phase,
                "exchange": _exchange(part),
                "from": round(1e3 * (part.start_s - window.start_s), 4),
                "to": round(1e3 * (part.end_s - window.start_s), 4),
            }


def _exchange(part: Part) -> str:
    """`all_reduce, 18.2 kB`, `all_reduce, waits for rank 2`; a dash while the rank works."""
    if not part.exchange:
        return formats.ABSENT
    size = formats.size(part.bytes) if part.bytes else ""
    waits = f"waits for rank {part.waits_for}" if part.waits_for is not None else ""
    return ", ".join(filter(None, [part.exchange, size, waits]))
