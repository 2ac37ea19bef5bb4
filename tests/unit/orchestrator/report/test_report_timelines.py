"""Mistakes in timelines: of which runs they are, where boxes begin, what is left out, what is written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from orchestrator.replay.run import NoClusterTime
from orchestrator.replay.windows import Part
from orchestrator.report import plots, write_report
from orchestrator.report.figures import timelines
from orchestrator.report.figures.style import series_name
from orchestrator.report.figures.timelines import MOST_RANKS, small_timelines
from orchestrator.report.model import timelines as model
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.timelines import slowest_runs, timelines_of
from orchestrator.report.plots import Plot
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, write_atomic
from tests.support.timelines import assert_trace_event_format
from tests.support.traces import builders
from tests.unit.report_support import (
    FAILED,
    a_comparison,
    a_run,
    in_cluster_time,
    only_view,
    page_of,
    records_of,
    repeated,
    text_of,
    unrendered_figures,
    view_of,
    windowed,
    write_page,
)
from trainer.core.trace import Kind, encode_trace, trace_path

EVIL = "</svg><script>alert(1)</script>"


def drawn(*results: RunResult) -> Comparison:
    """A comparison in which every run but those of hogwild has a cluster time and a window."""
    clusters = [in_cluster_time(run, 2.0) for run in results if run.run.name_of("strategy") != "hogwild"]
    return windowed(a_comparison(*results, clusters=clusters))


def plots_of(comparison: Comparison) -> list[Plot]:
    """The figures of timelines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "FIGURES", {"timelines": plots.FIGURES["timelines"]})
        return plots.draw(comparison)


MPI, GLOO, DDP = (
    repeated(name, times, nodes=2, transport=transport)
    for name, times, transport in (
        ("all_reduce", [3, 5], "mpi"),
        ("all_reduce", [3, 4.5], "gloo"),
        ("ddp", [2, 1], "gloo"),
    )
)
LOST = a_run("ddp", nodes=2, seed=7, train_s=50.0, **FAILED)
AT_FOUR = [a_run(name, nodes=4, train_s=1.0) for name in ("all_reduce", "ddp")]
SMALL = [a_run("gossip", nodes=nodes, train_s=1.0) for nodes in (2, 3)]


@pytest.mark.parametrize(
    ("runs", "slowest"),
    [
        ([*repeated("serial", [9, 8]), *MPI, *GLOO, *DDP, LOST], [MPI[1], DDP[0]]),
        # At the shape at which strategies are compared, or at their largest.
        ([*AT_FOUR, a_run("all_reduce", nodes=2, train_s=5.0), *SMALL], [*AT_FOUR, SMALL[1]]),
    ],
    ids=["strategies", "shapes"],
)
def test_the_slowest_run_of_each_strategy(runs: list[RunResult], slowest: list[RunResult]) -> None:
    assert [run.row.key for run in slowest_runs(view_of(*runs))] == [run.key for run in slowest]


def test_of_many_strategies_those_that_take_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MOST", 2)
    times = (("ddp", 2.0), ("gossip", 1.0), ("all_reduce", 3.0))
    [plot] = plots_of(drawn(*(a_run(name, nodes=2, train_s=s) for name, s in times)))
    assert [each.run.group.strategy for each in plot.timelines] == ["ddp", "all_reduce"]
    assert plot.note.endswith(": 1.")


def test_what_is_missing_is_named_with_its_reason_as_text() -> None:
    runs = [a_run(name, nodes=2) for name in ("all_reduce", "hogwild", "ddp")]
    comparison = drawn(*runs)
    comparison = replace(comparison, windows={**comparison.windows, runs[2].key: NoClusterTime(EVIL)})
    shown, missing = timelines_of(only_view(comparison), comparison.windows)
    assert [each.run.group.strategy for each in shown] == ["all_reduce"]
    assert missing == {model.NO_TRACES.reason: ["hogwild"], EVIL: ["ddp"]}
    [plot] = plots_of(comparison)
    assert all(part in plot.note for part in ("hogwild", model.NO_TRACES.reason, EVIL))
    assert EVIL not in page_of(comparison, [], [plot])
    assert EVIL not in text_of(comparison, [], [plot])
    assert plots_of(a_comparison(*runs)) == []


def test_the_figure_has_a_panel_per_run_and_a_box_per_part() -> None:
    comparison = drawn(*(a_run(name, nodes=3) for name in ("all_reduce", "ddp")))
    view = only_view(comparison)
    shown, _ = timelines_of(view, comparison.windows)
    chart = small_timelines(view, shown)
    assert chart is not None
    assert chart.spec["facet"]["sort"] == [series_name(timeline.run.group) for timeline in shown]
    assert "wall" in chart.spec["title"]
    start = shown[0].window.start_s
    assert start > 0

    def milliseconds(part: Part) -> tuple[float, float]:
        return 1e3 * (part.start_s - start), 1e3 * (part.end_s - start)

    names = ("series", "rank", "phase", "from", "to")
    assert [tuple(box[name] for name in names) for box in records_of(chart)] == [
        (series_name(each.run.group), rank, part.phase, *milliseconds(part))
        for each in shown
        for rank, parts in enumerate(each.window.ranks)
        for part in parts
    ]


@pytest.mark.parametrize(
    ("strategies", "nodes", "boxes", "ranks"),
    [(("all_reduce",), MOST_RANKS + 4, 2500, MOST_RANKS), (("all_reduce", "ddp"), 12, 84, 7)],
)
def test_ranks_are_left_out_if_they_or_their_boxes_are_many(
    strategies: tuple[str, ...], nodes: int, boxes: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank has six boxes."""
    monkeypatch.setattr(timelines, "MOST_BOXES", boxes)
    comparison = drawn(*(a_run(name, nodes=nodes) for name in strategies))
    view = only_view(comparison)
    chart = small_timelines(view, timelines_of(view, comparison.windows)[0])
    assert chart is not None
    assert {record["rank"] for record in records_of(chart)} == set(range(ranks))
    assert f"first {ranks} of {nodes} ranks" in chart.spec["facet"]["header"]["labelExpr"]


# Files and links


def save_traces(paths: SweepPaths, result: RunResult) -> None:
    run = result.run
    for number, rank in enumerate(builders(run.world_size, run.transport, run=result.key)):
        for epoch in (1, 2):
            rank.add(Kind.EPOCH, peer=epoch)
            for _ in range(10):
                rank.work(0.01 * (number + 1))
                rank.add(Kind.ALL_REDUCE, 1000)
                rank.add(Kind.STEP)
        path = trace_path(paths.run(result.key).directory, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_trace(rank.trace()))


def timelines_in(paths: SweepPaths) -> dict[str, tuple[int, int]]:
    """The runs that have a timeline, and which file it is."""
    files = {path.parent.name: path.stat() for path in paths.directory.glob("*/timeline.json")}
    return {key: (stat.st_ino, stat.st_mtime_ns) for key, stat in files.items()}


def linked_timelines(text: str) -> set[str]:
    return {unquote(key) for key in re.findall(r'["(]([^"()]+)/timeline\.json[")]', text)}


def test_a_report_writes_and_links_the_timelines_of_the_slowest_runs_once(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    on_two_cores = {"nodes": 4, "cores": 2}
    results = [*repeated("all_reduce", [6], **on_two_cores), *repeated("ddp", [5, 4], **on_two_cores)]
    for result in results:
        save_traces(paths, result)
    write_page(tmp_path, a_run(cores=2), *results, a_run("gossip", **on_two_cores))
    written = timelines_in(paths)
    assert sorted(re.sub(r"-.*", "", key) for key in written) == ["all_reduce", "ddp"]
    for key in written:
        assert_trace_event_format(json.loads(paths.run(key).timeline.read_text()))
    (figure,) = re.findall(r'<figure[^>]*data-figure="timelines".*?</figure>', paths.html.read_text(), re.S)
    markdown = paths.markdown.read_text()
    assert linked_timelines(figure) == linked_timelines(markdown) == {*written}
    assert "gossip (the run recorded no traces)" in markdown

    slower = a_run("ddp", seed=5, train_s=50.0, **on_two_cores)
    save_traces(paths, slower)
    record = json.loads(paths.record.read_text())
    write_atomic(paths.record, json.dumps({**record, "keys": [*record["keys"], slower.key]}))
    write_atomic(paths.run(slower.key).result, slower.model_dump_json())
    with unrendered_figures():
        write_report(paths)
    unchanged = {key: file for key, file in written.items() if key.startswith("all_reduce")}
    assert unchanged.items() <= timelines_in(paths).items()
    assert linked_timelines(paths.markdown.read_text()) <= {*timelines_in(paths)}
