"""Small timelines: what each rank does during a few steps, one panel per run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from textwrap import wrap
from typing import Any

from orchestrator.replay.windows import Part
from orchestrator.report import formats
from orchestrator.report.figures.bars import part_scale
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.spec import TOP_LEGEND, channel, data, facet, layer
from orchestrator.report.formats import JOIN, significant
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
    boxes = sum(len(parts) for each in timelines for parts in each.window.ranks[:MOST_RANKS])
    ranks = max(2, min(MOST_RANKS, MOST_RANKS * MOST_BOXES // max(boxes, 1)))
    records = [record for each in timelines for record in _records(each, ranks)]
    most = max(min(len(each.window.ranks), ranks) for each in timelines)
    ticks = {"values": [*range(0, most, ceil(most / MOST_TICKS))]}
    across = min(len(timelines), len(WIDTHS))
    layers = layer(
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
        "facet": facet({each.group.series: _title(each, view, ranks) for each in timelines}),
        "columns": across,
        "spec": {**layers, "height": RANK * most, "width": WIDTHS[across]},
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }
    return Chart.of(view_of, f"Timelines of the slowest runs, in {view.clock} time", wide=True)


def _title(timeline: Timeline, view: WorkloadView, most: int) -> list[str]:
    """`all_reduce · gloo, 4 nodes, seed 1`, and which part of the run is shown."""
    group, steps, ranks = timeline.group, timeline.windows.steps, len(timeline.window.ranks)
    size = group.shape.short if group.shape.per_node else group.shape.label
    if steps is None:
        part = "the whole run"
    elif steps.exchange:
        part = f"around the exchange after step {steps.last:,} of {steps.of:,}"
    else:
        part = f"steps {steps.first:,} to {steps.last:,} of {steps.of:,}"
    start = f"from {significant(timeline.window.start_s, 4)}{JOIN}s"
    hidden = f"; the first {most} of {ranks} ranks" if ranks > most else ""
    name = f"{group.series}{view.partitioner(group)}, {size}, seed {group.first.seed}"
    return [*wrap(name, WIDEST), f"{part}, {start}{hidden}"]


def _records(timeline: Timeline, ranks: int) -> Iterator[dict[str, Any]]:
    """The boxes of the first ranks."""
    window = timeline.window
    for rank, parts in enumerate(window.ranks[:ranks]):
        for part in parts:
            yield {
                "series": timeline.group.series,
                "rank": rank,
                "phase": part.phase,
                "exchange": _exchange(part),
                "from": round(1e3 * (part.start_s - window.start_s), 4),
                "to": round(1e3 * (part.end_s - window.start_s), 4),
            }


def _exchange(part: Part) -> str:
    """`all_reduce, 18.2 kB`, `all_reduce, waits for rank 2`; a dash while the rank works."""
    size = formats.size(part.bytes) if part.bytes else ""
    waits = "" if part.waits_for is None else f"waits for rank {part.waits_for}"
    return ", ".join(filter(None, [part.exchange or formats.ABSENT, size, waits]))
