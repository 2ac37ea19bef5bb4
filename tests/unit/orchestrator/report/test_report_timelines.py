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
from orchestrator.report.figures.style import series_name
from orchestrator.report.figures.timelines import small_timelines
from orchestrator.report.model import timelines as model
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.timelines import slowest_runs, timelines_of
from orchestrator.report.plots import Plot
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, write_atomic
from tests.support.timelines import assert_trace_event_format
from tests.support.traced_sweep import traced_sweep
from tests.unit.report_support import (
    FAILED,
    a_comparison,
    a_record,
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
    with_ranks,
)

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


# Files and links


def timelines_in(paths: SweepPaths) -> dict[str, tuple[int, int]]:
    """The runs that have a timeline, and which file it is."""
    files = {path.parent.name: path.stat() for path in paths.directory.glob("*/timeline.json")}
    return {key: (stat.st_ino, stat.st_mtime_ns) for key, stat in files.items()}


def linked_timelines(text: str) -> set[str]:
    return {unquote(key) for key in re.findall(r'["(]([^"()]+)/timeline\.json[")]', text)}


def test_a_report_writes_and_links_the_timelines_of_the_slowest_runs_once(tmp_path: Path) -> None:
    paths, results = traced_sweep(tmp_path)
    untraced = a_run("gossip", nodes=2, transport="gloo")

    def report(*runs: RunResult) -> set[str]:
        """The runs whose timelines are linked."""
        write_atomic(paths.record, a_record([*results, *runs]).model_dump_json())
        for run in runs:
            write_atomic(paths.run(run.key).result, run.model_dump_json())
        with unrendered_figures():
            write_report(paths)
        html, markdown = paths.html.read_text(), paths.markdown.read_text()
        (figure,) = re.findall(r'<figure[^>]*data-figure="timelines".*?</figure>', html, re.S)
        assert "gossip (the run recorded no traces)" in markdown
        assert linked_timelines(figure) == linked_timelines(markdown)
        return linked_timelines(figure)

    assert report(untraced) == {*timelines_in(paths)} == {results[0].key}
    assert_trace_event_format(json.loads(paths.run(results[0].key).timeline.read_text()))
    written = timelines_in(paths)
    report(untraced)
    assert timelines_in(paths) == written
    slower = with_ranks(results[1], train_s=50.0)
    assert report(untraced, slower) == {slower.key} <= {*timelines_in(paths)}
