"""Mistakes in figures over nodes and of strategies, in their looks and colours, in the compact form of SVG,
and in the scripts of a page, which another user may have written."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import altair as alt
import numpy as np
import pytest
import vl_convert
from numpy.typing import NDArray

from orchestrator.report.figures import vega
from orchestrator.report.figures.axes import amount_axis, count_axis, focus, share_axis
from orchestrator.report.figures.chart import Chart
from orchestrator.report.figures.glance import strategies_at_a_glance
from orchestrator.report.figures.lines import lines_over_nodes
from orchestrator.report.figures.named_lines import ROW, folded
from orchestrator.report.figures.style import Look, Style
from orchestrator.report.figures.svg import compact
from orchestrator.report.figures.theme import MARKS, SERIES_COLOURS, TOKENS, with_light_colours
from orchestrator.report.figures.vega import VERSION, library, packed, svg_file, svg_of
from orchestrator.report.formats import JOIN
from orchestrator.report.topics.accuracy import ACCURACIES as ACCURACY
from orchestrator.report.topics.speed import TIMES as TIME
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    SERIAL,
    a_comparison,
    a_run,
    layers,
    marks_of,
    points,
    scale,
    view_of,
)
from trainer.spec.registries import STRATEGIES

FEW = ["all_reduce", "one_shot", "gossip", "local_sgd"]
MANY = [*FEW, "diloco", "all_gather", "reduce_broadcast", "parameter_server"]


def runs(names: list[str], nodes: tuple[int, ...] = (2, 4), **fields: Any) -> list[RunResult]:
    return [
        a_run(name, **{"nodes": of, "train_s": 8 / of + at / 100, "accuracy": 0.9 - at / 100, **fields})
        for at, name in enumerate(names)
        for of in nodes
    ]


def drawn(results: list[RunResult], quantity: Any = TIME) -> Chart:
    view = view_of(*results)
    chart = lines_over_nodes(view.line_groups, Style(view.groups), quantity)
    assert chart is not None
    return chart


def svg(spec: dict[str, Any]) -> str:
    return str(vl_convert.vegalite_to_svg(spec, vl_version=VERSION))


@pytest.fixture(scope="module")
def panels() -> Chart:
    """Of so many lines that each has a panel."""
    return drawn([SERIAL, *runs([*MANY, "ddp", "zero1", "fsdp"])])


# Lines over nodes


def test_a_point_shows_its_values_under_the_pointer() -> None:
    both = [a_run("ddp", nodes=2, seed=seed, train_s=train_s) for seed, train_s in ((0, 2.0), (1, 8.0))]
    chart = drawn([SERIAL, *both])
    (record,) = [record for record in points(chart) if not record["serial"]]
    assert record["mean"] == pytest.approx(4)  # geometric
    assert record["range"].replace(JOIN, " ") == "2.00–8.00 s, 2 seeds"
    tips = next(filter(None, (layer["encoding"].get("tooltip") for layer in layers(chart.spec))))
    assert [tip["field"] for tip in tips] == ["name", "nodes", "written", "range", "accuracy"]


@pytest.mark.parametrize(
    ("shapes", "start"),
    [
        ([(2, 1), (4, 1), (6, 1), (8, 1)], [5]),  # between 4 and 6 nodes
        ([(2, 1), (4, 1)], []),
        ([(6, 1), (2, 4)], []),  # eight ranks on two nodes fit, so no rank count separates them
    ],
)
def test_node_counts_are_shaded_from_where_all_runs_share_cores(
    shapes: list[tuple[int, int]], start: list[float]
) -> None:
    docker: dict[str, Any] = {"runtime": "docker", "cores": 2, "cpus": 0.4, "threads": 1}
    nodes = [a_run("ddp", nodes=n, processes_per_node=each, **docker) for n, each in shapes]
    chart = drawn([a_run(**docker), *nodes])
    shaded = [layer["data"]["name"] for layer in layers(chart.spec) if layer["mark"]["type"] == "rect"]
    assert [chart.spec["datasets"][name][0]["nodes"] for name in shaded] == start


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
        chart = drawn(results, ACCURACY)
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
    assert 0.85 < axis.low < 0.88
    assert axis.outside(0.1) == -1


def test_axes_are_logarithmic_where_amounts_are_far_apart() -> None:
    assert not amount_axis([1, 20], "mean", "").log
    far = amount_axis([0.12, 29], "mean", "")
    assert (far.log, far.ticks, far.domains["linear"][0]) == (True, (0.2, 0.5, 1, 2, 5, 10, 20), 0)
    assert far.domains["log"][0] > 0
    assert not amount_axis([0, 29], "mean", "").domains  # zero has no logarithm
    assert not count_axis([1, 2, 5], "nodes", "").log
    many = count_axis([1, 2, 4, 64], "nodes", "")
    assert (many.log, many.ticks) == (True, (1, 2, 4, 64))
    for nodes, kind in ((15, "linear"), (16, "log")):  # from 16 times as many on, so that ideal is straight
        assert scale(drawn([SERIAL, a_run("ddp", nodes=nodes, train_s=6.0)]), "y")["type"] == kind
    times, accuracies = drawn([SERIAL, *runs(FEW)]), drawn([SERIAL, *runs(FEW)], ACCURACY)
    assert (times.log_axis, accuracies.log_axis) == ("y", None)
    assert times.spec["usermeta"]["domains"]["linear"] == scale(times, "y")["domain"]


# The overview of strategies, model sizes and the legend


def test_the_most_accurate_strategy_comes_first_after_serial() -> None:
    accuracies = {"all_reduce": 0.88, "one_shot": 0.71, "gossip": 0.80, "local_sgd": 0.84}

    def tried(**fields: Any) -> list[RunResult]:
        return [
            a_run(name, **{"nodes": 4, "transport": "mpi", "accuracy": of, "train_s": 4.0 + at, **fields})
            for at, (name, of) in enumerate(accuracies.items())
        ]

    def glance(*others: RunResult) -> Chart | None:
        view = view_of(SERIAL, *others)
        return strategies_at_a_glance(view, Style(view.groups))

    assert glance(*tried()[:2]) is None  # other figures show few
    # The overview shows one partitioner.
    chart = glance(*tried(), *tried(partitioner="contiguous", accuracy=0.1))
    assert chart
    shown = [chart.spec["datasets"][panel["data"]["name"]] for panel in chart.spec["hconcat"]]
    rows = ["serial", "all_reduce · mpi", "local_sgd · mpi", "gossip · mpi", "one_shot · mpi"]
    assert [[record["series"] for record in records] for records in shown] == [rows] * 3
    assert [record["mean"] for record in shown[0]] == pytest.approx([0.9, 0.88, 0.84, 0.80, 0.71])
    assert [record["mean"] for record in shown[1]] == pytest.approx([8, 4, 7, 6, 5])  # not sorted
    far = glance(*tried(), a_run("ddp", nodes=4, train_s=0.1))
    assert far
    for each, kind in ((chart, "linear"), (far, "log")):
        assert scale(Chart(each.spec["hconcat"][1]), "x")["type"] == kind
        assert not marks_of(each.spec) & {"bar", "area"}


# The compact form


def test_the_compact_form_has_a_fraction_of_the_bytes_and_the_same_text(panels: Chart) -> None:
    large = svg(panels.spec)
    small = compact(large, "a")
    assert len(small) < len(large) / 3
    assert small.count("<use ") > len(MANY)
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


# Scripts


@pytest.mark.parametrize("spoil", ["nothing", "text", "mode", "link", "home"])
def test_kept_scripts_are_used_if_only_this_user_can_have_written_them(
    spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    assert alt.SCHEMA_VERSION.removeprefix("v").startswith(VERSION.removeprefix("v"))
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
FEWEST = {"rpc_split": 3, "hybrid": 4, "parameter_server": 3, "async_parameter_server": 3, "serial": 1}
SPLIT = {"context_parallel": "gpt", "expert_parallel": {"name": "gpt", "experts": 2}}


def run(strategy: str | dict[str, Any], **fields: Any) -> RunResult:
    name = strategy if isinstance(strategy, str) else strategy["name"]
    more: dict[str, Any] = {}
    if name in SPLIT:
        more = {"dataset": "tiny_shakespeare", "model": SPLIT[name], "loss": "cross_entropy"}
    return a_run(strategy, **{"nodes": FEWEST.get(name, 2), **more, **fields})


def looks(*runs: RunResult) -> list[Look]:
    """The look of each run's configuration."""
    groups = a_comparison(*runs).groups
    style = Style(groups)
    by_key = {row.key: style.look(group) for group in groups for row in group.rows}
    return [by_key[each.key] for each in runs]


def distinct(found: list[Look]) -> int:
    return len({(look.token, look.shape) for look in found})


def test_every_strategy_has_a_look_of_its_own_in_every_report() -> None:
    names = [*STRATEGIES.entries]
    registered = [run(name) for name in names]
    together = looks(*registered)
    assert distinct(together) == len(names)
    assert looks(*reversed(registered)) == together[::-1]
    assert [looks(each)[0] for each in registered] == together
    distributed = [look for name, look in zip(names, together, strict=True) if name != "serial"]
    marks = [MARKS[place // SERIES_COLOURS] for place in range(len(distributed))]
    assert [look.shape for look in distributed] == marks  # all colours before the next mark


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_strategy_without_parameters_keeps_its_look_beside_variants(at: int) -> None:
    variants = [run({"name": "local_sgd", "local_steps": steps}) for steps in (20, 30)]
    plain, others = run("local_sgd"), [run("ddp"), run("gossip")]
    runs = [*variants[:at], plain, *variants[at:], *others]
    found = dict(zip((each.key for each in runs), looks(*runs), strict=True))
    assert len({look.token for look in found.values()}) == len(runs)
    for each in (plain, *others):
        assert found[each.key] == looks(each)[0]


def test_the_page_draws_every_mark() -> None:
    text = CSS.read_text()
    assert all(f".swatch.{mark} {{" in text for mark in MARKS)


# test_report_palette.py


Array = NDArray[np.float64]

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISION: dict[str, list[list[float]]] = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
LUMINANCE = np.array([0.2126729, 0.7151522, 0.0721750])
# Ottosson 2020, Oklab: linear RGB to cones, and their cube roots to lightness and two opponent axes.
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OPPONENT = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
PAGES = {"light": 0, "dark": 1}
SERIES = ["serial", *(f"s{number}" for number in range(SERIES_COLOURS))]
PHASES = ["data", "compute", "communicate", "wait", "cpu_contention", "checkpoint", "other"]


def linear(colour: str) -> Array:
    srgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def seen(token: str, vision: str, page: str) -> Array:
    """The place of a colour in Oklab, in which distances are those that are seen."""
    rgb = np.clip(np.array(VISION[vision]) @ linear(TOKENS[token][PAGES[page]]), 0, 1)
    place: Array = OPPONENT @ np.cbrt(CONES @ rgb)
    return place


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("vision", VISION)
def test_colours_of_a_figure_can_be_distinguished(vision: str, page: str) -> None:
    """All pairs, since a run without a phase brings others next to each other."""
    for names, least in ((SERIES, 0.075), (PHASES, 0.034)):
        apart = {
            pair: float(np.linalg.norm(np.subtract(*(seen(name, vision, page) for name in pair))))
            for pair in combinations(names, 2)
        }
        assert {pair: found for pair, found in apart.items() if found < least} == {}


@pytest.mark.parametrize("page", PAGES)
def test_strategies_stand_out_from_the_page(page: str) -> None:
    light = {name: float(LUMINANCE @ linear(TOKENS[name][PAGES[page]])) + 0.05 for name in TOKENS}
    contrast = {name: max(light[name] / light["paper"], light["paper"] / light[name]) for name in SERIES}
    assert {name: found for name, found in contrast.items() if found < 3} == {}
