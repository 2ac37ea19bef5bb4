"""Mistakes in figures over nodes, in looks of strategies, in the compact form of SVG, in timelines, and in
the scripts of a page, which another user may have written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
import vl_convert

from orchestrator.replay.run import NoClusterTime
from orchestrator.replay.windows import Part
from orchestrator.report import plots, write_report
from orchestrator.report.figures import vega
from orchestrator.report.figures.axes import amount_axis, count_axis, focus, share_axis
from orchestrator.report.figures.chart import SCHEMA, Chart
from orchestrator.report.figures.lines import ROW, folded
from orchestrator.report.figures.over_nodes import lines_over_nodes
from orchestrator.report.figures.style import Look, Style
from orchestrator.report.figures.svg import compact
from orchestrator.report.figures.theme import MARKS, SERIES_COLOURS, with_light_colours
from orchestrator.report.figures.timelines import small_timelines
from orchestrator.report.figures.vega import VERSION, library, packed, svg_file, svg_of
from orchestrator.report.model import timelines as model
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.timelines import slowest_runs, timelines_of
from orchestrator.report.plots import Plot
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, write_atomic
from tests.support.timelines import assert_trace_event_format
from tests.support.traced_sweep import traced_sweep
from tests.unit.report_support import (
    FAILED,
    SERIAL,
    a_comparison,
    a_record,
    a_run,
    in_cluster_time,
    layers,
    only_view,
    page_of,
    points,
    records_of,
    repeated,
    scale,
    subject_of,
    text_of,
    unrendered_figures,
    view_of,
    windowed,
    with_ranks,
)
from tests.unit.report_support import plots_of as drawn_of
from tests.unit.training import fields_for
from trainer.spec.registries import STRATEGIES

FEW = ["all_reduce", "one_shot", "gossip", "local_sgd"]
MANY = [*FEW, "diloco", "all_gather", "reduce_broadcast", "parameter_server"]


def runs(names: list[str], nodes: tuple[int, ...] = (2, 4), **fields: Any) -> list[RunResult]:
    return [
        a_run(name, **{"nodes": of, "train_s": 8 / of + at / 100, "accuracy": 0.9 - at / 100, **fields})
        for at, name in enumerate(names)
        for of in nodes
    ]


def drawn(results: list[RunResult], quantity: Quantity = Q.train_s) -> Chart:
    chart = lines_over_nodes(subject_of(a_comparison(*results)), quantity, "title")
    assert chart is not None
    return chart


def svg(spec: dict[str, Any]) -> str:
    return str(vl_convert.vegalite_to_svg(spec, vl_version=VERSION))


@pytest.fixture(scope="module")
def panels() -> Chart:
    """Of so many lines that each has a panel."""
    return drawn([SERIAL, *runs([*MANY, "ddp", "zero1", "fsdp"])])


# Lines over nodes


def test_names_at_line_ends_never_overlap() -> None:
    close = [a_run(name, nodes=2, train_s=4 + at / 1000) for at, name in enumerate(FEW)]
    text = svg(drawn([SERIAL, *close]).spec)
    names = {"serial", *(f"{name} · mpi" for name in FEW)}
    found = re.findall(r'translate\([\d.]+,([\d.]+)\)"[^>]*>([^<>]+)</text>', text)
    placed = {name: float(at) for at, name in found if name in names}
    assert placed.keys() == names
    assert all(other - one >= ROW - 0.01 for one, other in pairwise(sorted(placed.values())))
    long = "async_parameter_server max_staleness=2 · mpi"
    assert folded(long).split("\n") == ["async_parameter_server", "max_staleness=2 · mpi"]
    assert folded("all_reduce · mpi") == "all_reduce · mpi"


def test_few_outliers_are_arrows_with_their_value_and_groups_are_none() -> None:
    plain = [SERIAL, *runs(FEW)]
    for results, outside in (([*plain, *runs(["ddp"], (2,), accuracy=0.1)], ["10.0%"]), (plain, [])):
        chart = drawn(results, Q.accuracy)
        assert scale(chart, "y")["domain"][0] > 0.8
        assert [record["written"] for record in points(chart) if record["outside"] == -1] == outside
        shapes = {layer["mark"].get("shape") for layer in layers(chart.spec)}
        assert ("triangle-down" in shapes) is bool(outside)
    for values, kept in (
        ([0.1, 0.9, 0.91, 0.92, 0.95], (0.9, 0.95)),
        ([0.1, 0.2, 0.9, 0.95], (0.1, 0.95)),
        ([0.5, 0.5001, 0.5002, 0.51], (0.5, 0.51)),  # noise is no outlier
        ([0.9], (0.9, 0.9)),
    ):
        assert focus(values) == kept
    axis = share_axis([0.1, 0.9, 0.91, 0.92, 0.95], "mean", "", [(0.05, 0.15), (0.88, 0.96)])
    assert (axis.low, axis.high) == pytest.approx((0.88 - 0.06 * 0.08, 0.96 + 0.06 * 0.08))
    assert (axis.format, axis.outside(0.1), axis.outside(0.9), axis.outside(1)) == (".0%", -1, 0, 1)


def test_axes_are_logarithmic_where_amounts_are_far_apart() -> None:
    assert not amount_axis([1, 20], "mean", "").log
    far = amount_axis([0.12, 29], "mean", "")
    assert (far.log, far.ticks) == (True, (0.2, 0.5, 1, 2, 5, 10, 20))
    assert far.domains
    assert (far.domains["linear"][0], far.domains["log"][0] > 0) == (0, True)
    assert not amount_axis([0, 29], "mean", "").domains  # zero has no logarithm
    for counts, log, ticks in (
        ([1, 2, 5], False, (1, 2, 5)),
        ([1, 2, 4, 64], True, (1, 2, 4, 64)),
        (range(3, 49), True, (4, 8, 16, 32)),
        (range(1, 13), False, (*range(1, 13),)),
        (range(1, 14), False, (1, 3, 5, 7, 9, 11, 13)),
    ):
        axis = count_axis(counts, "nodes", "")
        assert (axis.log, axis.ticks, axis.low, axis.high) == (log, ticks, counts[0], counts[-1])
    for nodes, kind in ((15, "linear"), (16, "log")):  # from 16 times as many on, so that ideal is straight
        assert scale(drawn([SERIAL, a_run("ddp", nodes=nodes, train_s=6.0)]), "y")["type"] == kind
    times, accuracies = drawn([SERIAL, *runs(FEW)]), drawn([SERIAL, *runs(FEW)], Q.accuracy)
    assert (times.log_axis, accuracies.log_axis) == ("y", None)
    assert list(times.spec["usermeta"]["domains"]["linear"]) == scale(times, "y")["domain"]


# The compact form


def test_the_compact_form_has_a_fraction_of_the_bytes_and_the_same_text(panels: Chart) -> None:
    large = svg(panels.spec)
    small = compact(large, "a")
    assert len(small) < len(large) / 2
    one, other = ET.fromstring(small), ET.fromstring(large)
    assert one.get("viewBox") == other.get("viewBox")
    texts = [{text.text for text in each.iter() if text.tag.endswith("text")} for each in (one, other)]
    assert texts[0] == texts[1]


def test_references_name_one_element_each_and_files_have_no_variables(panels: Chart) -> None:
    small = svg_of(panels.spec)
    ids = re.findall(r'\bid="([^"]+)"', small)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', small)) == set(ids)
    other = svg_of({**panels.spec, "width": 100})
    assert not set(ids) & set(re.findall(r'\bid="([^"]+)"', other))
    file = svg_file(small, "Time")
    assert "var(" not in file
    assert file == with_light_colours(file)
    texts = [each.text for each in ET.fromstring(svg_file(small, f"{EVIL} & more")).iter()]
    assert f"{EVIL} & more" in texts


# Scripts


@pytest.mark.parametrize("spoil", ["nothing", "text", "mode", "link", "home"])
def test_kept_scripts_are_used_if_only_this_user_can_have_written_them(
    spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    assert SCHEMA.endswith(f"/v{VERSION.partition('.')[0]}.json")
    built: list[str] = []
    monkeypatch.setattr(vega, "scripts", lambda: built.append("") or f"scripts {len(built)}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library() == packed("scripts 1")
    (kept,) = (tmp_path / "shardyard").iterdir()
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    if spoil == "text":
        kept.write_text(kept.read_text()[:-1])
    elif spoil == "mode":
        kept.chmod(0o620)
    elif spoil == "link":
        kept.rename(tmp_path / "other")
        kept.symlink_to(tmp_path / "other")
    elif spoil == "home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", refuse)
    assert library() == packed("scripts 1" if spoil == "nothing" else "scripts 2")


# Looks and colours


CSS = Path(__file__).parents[4] / "orchestrator/report/render/report.css"


def looks(*runs: RunResult) -> list[Look]:
    """The look of each run's configuration."""
    groups = a_comparison(*runs).groups
    style = Style(groups)
    by_key = {row.key: style.look(group) for group in groups for row in group.rows}
    return [by_key[each.key] for each in runs]


def test_every_strategy_has_a_look_of_its_own_in_every_report() -> None:
    names = [*STRATEGIES.entries]
    nodes = {name: 4 if name == "hybrid" else STRATEGIES.load(name).min_nodes for name in names}
    registered = [a_run(name, nodes=nodes[name], **fields_for(name)) for name in names]
    together = looks(*registered)
    assert len({(look.token, look.shape) for look in together}) == len(names)
    assert looks(*reversed(registered)) == together[::-1]
    assert [looks(each)[0] for each in registered] == together
    distributed = [look for name, look in zip(names, together, strict=True) if name != "serial"]
    marks = [MARKS[place // SERIES_COLOURS] for place in range(len(distributed))]
    assert [look.shape for look in distributed] == marks  # all colours before the next mark


def test_the_page_draws_every_mark() -> None:
    text = CSS.read_text()
    assert all(f".swatch.{mark} {{" in text for mark in MARKS)


# Timelines


EVIL = "</svg><script>alert(1)</script>"


def with_windows(*results: RunResult) -> Comparison:
    """A comparison in which every run but those of hogwild has a cluster time and a window."""
    clusters = [in_cluster_time(run, 2.0) for run in results if run.run.name_of("strategy") != "hogwild"]
    return windowed(a_comparison(*results, clusters=clusters))


def plots_of(comparison: Comparison) -> list[Plot]:
    """The figures of timelines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "FIGURES", {"timelines": plots.FIGURES["timelines"]})
        return drawn_of(comparison)


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
    assert [run.first.key for run in slowest_runs(view_of(*runs))] == [run.key for run in slowest]


def test_of_many_strategies_the_slowest_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MOST", 2)
    runs = [
        a_run(name, nodes=2, train_s=time) for name, time in zip(FEW, (3.0, 1.0, 4.0, 2.0), strict=True)
    ]
    assert [run.strategy for run in slowest_runs(view_of(*runs))] == ["all_reduce", "gossip"]


def test_what_is_missing_is_named_with_its_reason_as_text() -> None:
    runs = [a_run(name, nodes=2) for name in ("all_reduce", "hogwild", "ddp")]
    comparison = with_windows(*runs)
    comparison = replace(comparison, windows={**comparison.windows, runs[2].key: NoClusterTime(EVIL)})
    shown, missing = timelines_of(only_view(comparison), comparison.windows)
    assert [each.group.strategy for each in shown] == ["all_reduce"]
    assert missing == {model.NO_TRACES.reason: ["hogwild"], EVIL: ["ddp"]}
    [plot] = plots_of(comparison)
    assert all(part in plot.note for part in ("hogwild", model.NO_TRACES.reason, EVIL))
    assert EVIL not in page_of(comparison, [], [plot])
    assert EVIL not in text_of(comparison, [], [plot])
    assert plots_of(a_comparison(*runs)) == []


def test_the_figure_has_a_panel_per_run_and_a_box_per_part() -> None:
    comparison = with_windows(*(a_run(name, nodes=3) for name in ("all_reduce", "ddp")))
    view = only_view(comparison)
    shown, _ = timelines_of(view, comparison.windows)
    chart = small_timelines(view, shown)
    assert chart is not None
    assert chart.spec["facet"]["sort"] == [timeline.group.series for timeline in shown]
    assert "wall" in chart.heading
    start = shown[0].window.start_s
    assert start > 0

    def milliseconds(part: Part) -> tuple[float, float]:
        return 1e3 * (part.start_s - start), 1e3 * (part.end_s - start)

    names = ("series", "rank", "phase", "from", "to")
    assert [tuple(box[name] for name in names) for box in records_of(chart)] == [
        (each.group.series, rank, part.phase, *milliseconds(part))
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
