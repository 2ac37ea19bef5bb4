"""Timelines in a report: which runs have one, the figure, and the links to the files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from orchestrator.replay.run import NoClusterTime
from orchestrator.replay.windows import Part
from orchestrator.report import formats, write_report
from orchestrator.report.figures import timelines
from orchestrator.report.figures.style import series_name
from orchestrator.report.figures.timelines import MOST_RANKS, _exchange, small_timelines
from orchestrator.report.model import timelines as model
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.timelines import slowest_runs, timelines_of
from orchestrator.report.plots import draw
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, write_atomic
from tests.support.timelines import assert_trace_event_format
from tests.support.traces import builders
from tests.unit.orchestrator.report.test_report_pages import Page
from tests.unit.report_support import (
    a_comparison,
    a_run,
    in_cluster_time,
    page_of,
    records_of,
    repeated,
    text_of,
    unrendered_figures,
    windowed,
    write_page,
)
from trainer.core.trace import Kind, encode_trace, trace_path

EVIL = "</svg><script>alert(1)</script>"


def only_view(comparison: Comparison) -> WorkloadView:
    [workload] = comparison.workloads
    return comparison.view(workload)


def slowest(*results: RunResult) -> list[str]:
    return [run.row.key for run in slowest_runs(only_view(a_comparison(*results)))]


def test_the_slowest_run_of_each_strategy() -> None:
    serial = repeated("serial", [9, 8])
    mpi = repeated("all_reduce", [3, 5, 4], nodes=2, transport="mpi")
    gloo = repeated("all_reduce", [4, 4.5], nodes=2, transport="gloo")
    ddp = repeated("ddp", [2, 1], nodes=2)
    failed = a_run("ddp", nodes=2, seed=7, train_s=50.0, status="failed", cause="gone")
    assert slowest(*serial, *mpi, *gloo, *ddp, failed) == [mpi[1].key, ddp[0].key]


def test_runs_at_the_shape_at_which_strategies_are_compared() -> None:
    at_four = [a_run(name, nodes=4, train_s=1.0) for name in ("all_reduce", "ddp")]
    slower = a_run("all_reduce", nodes=2, train_s=5.0)
    only_small = [a_run("gossip", nodes=n, train_s=1.0) for n in (2, 3)]
    assert slowest(*at_four, slower, *only_small) == [*(run.key for run in at_four), only_small[1].key]


def test_the_slowest_in_cluster_time() -> None:
    runs = [
        *repeated("serial", [8, 8], cores=2),
        *repeated("all_reduce", [6, 7], nodes=4, cores=2),
    ]
    clusters = [in_cluster_time(run, s) for run, s in zip(runs, [8.0, 8.0, 3.0, 2.0], strict=True)]
    view = only_view(a_comparison(*runs, clusters=clusters))
    assert view.clock == "cluster"
    assert [run.row.key for run in slowest_runs(view)] == [runs[2].key]


def test_of_many_strategies_those_that_take_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MOST", 2)
    runs = [
        a_run(name, nodes=2, train_s=s) for name, s in (("ddp", 2.0), ("gossip", 1.0), ("all_reduce", 3.0))
    ]
    assert slowest(*runs) == [runs[0].key, runs[2].key]
    with unrendered_figures():
        [plot] = [plot for plot in draw(drawn(*runs)) if plot.name == "timelines"]
    assert len(plot.timelines) == 2
    assert plot.note.endswith(": 1.")


def drawn(*results: RunResult) -> Comparison:
    """A comparison in which every run but those of hogwild has a cluster time and a window."""
    clusters = [in_cluster_time(run, 2.0) for run in results if run.run.name_of("strategy") != "hogwild"]
    return windowed(a_comparison(*results, clusters=clusters))


def test_what_is_missing_is_named_with_its_reason() -> None:
    comparison = drawn(a_run("all_reduce", nodes=2), a_run("hogwild", nodes=2))
    shown, missing = timelines_of(only_view(comparison), comparison.windows)
    assert [each.run.group.strategy for each in shown] == ["all_reduce"]
    assert missing == {model.NO_TRACES.reason: ["hogwild"]}
    with unrendered_figures():
        [plot] = [plot for plot in draw(comparison) if plot.name == "timelines"]
    assert "hogwild" in plot.note
    assert model.NO_TRACES.reason in plot.note


def test_without_a_timeline_there_is_no_figure() -> None:
    comparison = a_comparison(a_run("all_reduce", nodes=2))
    with unrendered_figures():
        assert "timelines" not in {plot.name for plot in draw(comparison)}


def test_the_figure_has_a_panel_per_run_and_a_box_per_part() -> None:
    comparison = drawn(*(a_run(name, nodes=3) for name in ("all_reduce", "ddp")))
    view = only_view(comparison)
    shown, _ = timelines_of(view, comparison.windows)
    chart = small_timelines(view, shown)
    assert chart is not None
    assert chart.wide
    panels = [series_name(timeline.run.group) for timeline in shown]
    assert chart.spec["facet"]["sort"] == panels
    for series, timeline in zip(panels, shown, strict=True):
        window = timeline.window
        boxes = [record for record in records_of(chart) if record["series"] == series]
        assert len(boxes) == sum(map(len, window.ranks))
        assert {box["phase"] for box in boxes} == {part.phase for parts in window.ranks for part in parts}
        first, last = window.ranks[0][0], window.ranks[0][-1]
        of_rank = [box for box in boxes if box["rank"] == 0]
        assert of_rank[0]["from"] == pytest.approx(1e3 * (first.start_s - window.start_s))
        assert of_rank[-1]["to"] == pytest.approx(1e3 * (last.end_s - window.start_s))
    assert "wall" in chart.spec["title"]


def test_boxes_say_what_the_exchange_was() -> None:
    parts = [
        Part(phase="compute", start_s=0.0, end_s=1.0),
        Part(phase="wait", start_s=1.0, end_s=2.0, exchange="all_reduce", waits_for=2),
        Part(phase="communicate", start_s=2.0, end_s=3.0, exchange="all_reduce", bytes=18_200),
    ]
    texts = [_exchange(part).replace(formats.JOIN, " ") for part in parts]
    assert texts == [formats.ABSENT, "all_reduce, waits for rank 2", "all_reduce, 18.2 kB"]


def test_a_panel_of_many_ranks_says_how_many_it_leaves_out() -> None:
    comparison = drawn(a_run("all_reduce", nodes=MOST_RANKS + 4))
    view = only_view(comparison)
    chart = small_timelines(view, timelines_of(view, comparison.windows)[0])
    assert {record["rank"] for record in records_of(chart)} == set(range(MOST_RANKS))
    assert chart is not None
    assert f"{MOST_RANKS} of {MOST_RANKS + 4}" in chart.spec["facet"]["header"]["labelExpr"]


def test_many_boxes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "MOST_BOXES", 80)
    comparison = drawn(*(a_run(name, nodes=12) for name in ("all_reduce", "ddp")))
    view = only_view(comparison)
    records = records_of(small_timelines(view, timelines_of(view, comparison.windows)[0]))
    assert 2 < len({record["rank"] for record in records}) < 12
    assert len(records) <= 80


# Files and links


def save_traces(paths: SweepPaths, result: RunResult) -> None:
    run = result.run
    ranks = builders(run.world_size, run.transport, run=result.key)
    for epoch in (1, 2):
        for number, rank in enumerate(ranks):
            rank.add(Kind.EPOCH, peer=epoch)
            for _ in range(10):
                rank.work(0.01 * (number + 1))
                if run.world_size > 1:
                    rank.add(Kind.ALL_REDUCE, 1000)
                rank.add(Kind.STEP)
    for number, rank in enumerate(ranks):
        path = trace_path(paths.run(result.key).directory, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_trace(rank.trace()))


@pytest.fixture
def sweep(tmp_path: Path) -> tuple[SweepPaths, list[RunResult]]:
    """A report of two strategies with traces, one without, and serial."""
    results = [
        *repeated("serial", [8, 8], cores=2),
        *repeated("all_reduce", [6, 7], nodes=4, cores=2),
        *repeated("ddp", [5, 4], nodes=4, cores=2),
        a_run("gossip", nodes=4, cores=2),
    ]
    paths = SweepPaths(tmp_path)
    for result in results[:-1]:
        save_traces(paths, result)
    return write_page(tmp_path, *results), results


def timelines_in(paths: SweepPaths) -> dict[str, Path]:
    return {path.parent.name: path for path in paths.directory.glob("*/timeline.json")}


def linked_timelines(paths: SweepPaths) -> list[str]:
    """The timelines that the page links at the figure. Sections of runs link theirs again."""
    (figure,) = re.findall(r'<figure[^>]*data-figure="timelines".*?</figure>', paths.html.read_text(), re.S)
    return [unquote(link) for link in Page(figure).links if link.endswith("/timeline.json")]


def test_a_report_writes_the_timelines_that_it_links(sweep: tuple[SweepPaths, list[RunResult]]) -> None:
    paths, _ = sweep
    written = timelines_in(paths)
    assert sorted(re.sub(r"-.*", "", key) for key in written) == ["all_reduce", "ddp"]
    for path in written.values():
        assert_trace_event_format(json.loads(path.read_text()))
    links = linked_timelines(paths)
    assert sorted(links) == sorted(f"{key}/timeline.json" for key in written)
    in_markdown = re.findall(r"\]\(([^)]+timeline\.json)\)", paths.markdown.read_text())
    assert sorted(map(unquote, in_markdown)) == sorted(links)
    note = paths.markdown.read_text()
    assert "gossip (the run recorded no traces)" in note


@pytest.mark.slow
def test_an_unchanged_timeline_is_not_written_again(sweep: tuple[SweepPaths, list[RunResult]]) -> None:
    paths, _ = sweep
    before = {key: path.stat() for key, path in timelines_in(paths).items()}
    figure = (paths.plots / "timelines.svg").read_text()
    with unrendered_figures():
        write_report(paths)
    after = {key: path.stat() for key, path in timelines_in(paths).items()}
    assert {key: (stat.st_ino, stat.st_mtime_ns) for key, stat in before.items()} == {
        key: (stat.st_ino, stat.st_mtime_ns) for key, stat in after.items()
    }
    assert (paths.plots / "timelines.svg").read_text() == figure


@pytest.mark.slow
def test_a_new_slowest_run_gets_a_timeline(sweep: tuple[SweepPaths, list[RunResult]]) -> None:
    paths, _ = sweep
    before = set(timelines_in(paths))
    slower = a_run("ddp", nodes=4, cores=2, seed=5, train_s=50.0)
    save_traces(paths, slower)
    record = json.loads(paths.record.read_text())
    write_atomic(paths.record, json.dumps({**record, "keys": [*record["keys"], slower.key]}))
    write_atomic(paths.run(slower.key).result, slower.model_dump_json())
    with unrendered_figures():
        write_report(paths)
    shown = {link.partition("/")[0] for link in linked_timelines(paths)}
    assert len(shown) == 2
    assert shown <= set(timelines_in(paths))
    assert len(set(timelines_in(paths)) - before) <= 1


def test_reasons_are_escaped() -> None:
    drawn_run, other = a_run("all_reduce", nodes=2), a_run("ddp", nodes=2)
    comparison = drawn(drawn_run, other)
    comparison = replace(comparison, windows={**comparison.windows, other.key: NoClusterTime(EVIL)})
    plots = draw(comparison)
    assert any(EVIL in plot.note for plot in plots)
    assert EVIL not in page_of(comparison, [], plots)
    assert EVIL not in text_of(comparison, [], plots)
