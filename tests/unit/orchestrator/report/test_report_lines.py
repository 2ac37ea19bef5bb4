"""Mistakes in lines over nodes and over time: axes, outliers, the order of points, names at line ends,
what is shaded, small multiples and switches."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import altair as alt
import pytest
import vl_convert

from orchestrator.report.figures.axes import amount_axis, count_axis, focus, share_axis
from orchestrator.report.figures.chart import HIDDEN, Chart
from orchestrator.report.figures.lines import lines_over_nodes
from orchestrator.report.figures.named_lines import ROW, folded
from orchestrator.report.figures.style import Style
from orchestrator.report.figures.vega import VERSION
from orchestrator.report.formats import JOIN
from orchestrator.report.topics.accuracy import ACCURACIES as ACCURACY
from orchestrator.report.topics.speed import SPEEDUPS as SPEEDUP
from orchestrator.report.topics.speed import TIMES as TIME
from orchestrator.report.topics.target import time_to_target
from orchestrator.results.records import RunResult
from tests.unit.orchestrator.report.test_report_learning import learned
from tests.unit.report_support import SERIAL, a_comparison, a_run, layers, points, scale

FEW = ["all_reduce", "one_shot", "gossip", "local_sgd"]
MANY = [*FEW, "diloco", "all_gather", "reduce_broadcast", "parameter_server"]


def runs(names: list[str], nodes: tuple[int, ...] = (2, 4), **fields: Any) -> list[RunResult]:
    return [
        a_run(
            name, **{"nodes": count, "train_s": 8 / count + at / 100, "accuracy": 0.9 - at / 100, **fields}
        )
        for at, name in enumerate(names)
        for count in nodes
    ]


def drawn(results: list[RunResult], quantity: Any = TIME) -> Chart:
    comparison = a_comparison(*results)
    (workload,) = comparison.workloads
    chart = lines_over_nodes(comparison.view(workload).line_groups, Style(comparison.groups), quantity)
    assert chart is not None
    return chart


def svg(spec: dict[str, Any]) -> str:
    return str(vl_convert.vegalite_to_svg(spec, vl_version=VERSION))


def heights(spec: dict[str, Any], names: list[str]) -> dict[str, float]:
    """name -> its height in the figure, of names at line ends."""
    found = re.findall(r'translate\([\d.]+,([\d.]+)\)"[^>]*>([^<>]+)</text>', svg(spec))
    return {text: float(at) for at, text in found if text in names}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "quantity"), [(FEW, SPEEDUP), (MANY, TIME)], ids=["together", "small multiples"]
)
def test_specifications_are_valid_and_hide_what_is_switched_off(names: list[str], quantity: Any) -> None:
    spec = drawn([SERIAL, *runs(names)], quantity).spec
    plain = {key: value for key, value in spec.items() if key not in ("background", "config")}
    alt.Chart.from_dict(plain, validate=True)
    assert "gossip · mpi" in svg(spec)
    (off,) = [param for param in spec["params"] if param["name"] == HIDDEN]
    off["value"] = ["gossip · mpi"]
    assert "gossip · mpi" not in svg(spec)


def test_points_are_at_whole_node_counts_in_a_fixed_order() -> None:
    for quantity in (TIME, ACCURACY):
        records = points(drawn([SERIAL, *runs(FEW, (5, 2, 3))], quantity))
        series = ["serial", *(f"{name} · mpi" for name in FEW)]
        assert list(dict.fromkeys(record["series"] for record in records)) == series
        assert [record["nodes"] for record in records] == [1, *(2, 3, 5) * 4]


def test_a_point_shows_its_values_under_the_pointer() -> None:
    both = [a_run("ddp", nodes=2, seed=seed, train_s=train_s) for seed, train_s in ((0, 2.0), (1, 8.0))]
    chart = drawn([SERIAL, *both])
    (record,) = [record for record in points(chart) if not record["serial"]]
    assert record["mean"] == pytest.approx(4)  # geometric
    assert record["range"].replace(JOIN, " ") == "2.00–8.00 s, 2 seeds"
    tips = [layer["encoding"].get("tooltip", []) for layer in layers(chart.spec)]
    fields = next([tip["field"] for tip in found] for found in tips if found)
    assert fields == ["name", "nodes", "written", "range", "accuracy"]


def test_figures_count_ranks_if_nodes_have_several() -> None:
    def several(*per_node: int) -> Chart:
        return drawn([SERIAL, *(a_run("ddp", nodes=2, processes_per_node=each) for each in per_node)])

    for chart, axis in ((several(1), "nodes"), (several(1, 4), "ranks")):
        encodings = [layer["encoding"].get("x", {}) for layer in layers(chart.spec)]
        assert {x["axis"]["title"] for x in encodings if "axis" in x} == {axis}
        names = [record["name"].replace("\n", " ") for record in points(chart)]
        assert any(f"4{JOIN}ranks per node" in name for name in names) is (axis == "ranks")


def test_node_counts_are_shaded_from_where_all_runs_share_cores() -> None:
    def shaded_from(*of: tuple[int, int]) -> float | None:
        docker: dict[str, Any] = {"runtime": "docker", "cores": 2, "cpus": 0.4, "threads": 1}
        nodes = [a_run("ddp", nodes=n, processes_per_node=each, **docker) for n, each in of]
        chart = drawn([a_run(**docker), *nodes])
        marks = [layer for layer in layers(chart.spec) if layer["mark"]["type"] == "rect"]
        records = [chart.spec["datasets"][layer["data"]["name"]] for layer in marks]
        return float(records[0][0]["nodes"]) if records else None

    assert shaded_from((2, 1), (4, 1), (6, 1), (8, 1)) == 5  # between 4 and 6 nodes
    assert shaded_from((2, 1), (4, 1)) is None
    # Eight ranks on two nodes fit and six nodes do not: no rank count separates them.
    assert shaded_from((6, 1), (2, 4)) is None


def test_names_at_line_ends_never_overlap() -> None:
    close = [a_run(name, nodes=2, train_s=4 + at / 1000) for at, name in enumerate(FEW)]
    chart = drawn([SERIAL, *close])
    names = ["serial", *(f"{name} · mpi" for name in FEW)]
    placed = heights(chart.spec, names)
    assert placed.keys() == {*names}
    assert all(other - one >= ROW - 0.01 for one, other in pairwise(sorted(placed.values())))
    long = "async_parameter_server max_staleness=2 · mpi"
    assert folded(long).split("\n") == ["async_parameter_server", "max_staleness=2 · mpi"]
    assert folded("all_reduce · mpi") == "all_reduce · mpi"


def test_few_outliers_are_arrows_with_their_value_and_groups_are_none() -> None:
    chart = drawn([SERIAL, *runs(FEW), *runs(["ddp"], (2,), accuracy=0.1)], ACCURACY)
    low, _ = scale(chart, "y")["domain"]
    assert low > 0.8
    assert [record["written"] for record in points(chart) if record["outside"] == -1] == ["10.0%"]
    assert "10.0%" in svg(chart.spec)
    assert "triangle-down" in {layer["mark"].get("shape") for layer in layers(chart.spec)}
    plain = drawn([SERIAL, *runs(FEW)], ACCURACY)
    assert "triangle-down" not in {layer["mark"].get("shape") for layer in layers(plain.spec)}
    assert focus([0.1, 0.9, 0.91, 0.92, 0.95]) == (0.9, 0.95)
    assert focus([0.1, 0.2, 0.9, 0.95]) == (0.1, 0.95)
    assert focus([0.5, 0.5001, 0.5002, 0.51]) == (0.5, 0.51)  # noise is no outlier
    assert focus([0.9]) == (0.9, 0.9)
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
    for nodes, kind in (
        (15, "linear"),
        (16, "log"),
    ):  # from 16 times as many nodes on, so that ideal is straight
        both = [SERIAL, a_run("ddp", nodes=nodes, train_s=6.0)]
        assert scale(drawn(both), "y")["type"] == kind


def test_the_reader_can_switch_the_axis_of_times() -> None:
    times, accuracies = drawn([SERIAL, *runs(FEW)]), drawn([SERIAL, *runs(FEW)], ACCURACY)
    assert (times.log_axis, accuracies.log_axis) == ("y", None)
    domains = times.spec["usermeta"]["domains"]
    assert domains["linear"] == scale(times, "y")["domain"]
    for layer in layers(times.spec):
        y = layer["encoding"].get("y", {})
        if y.get("scale"):
            y["scale"] |= {"type": "log", "domain": domains["log"]}
    assert "all_reduce · mpi" in heights(times.spec, ["all_reduce · mpi"])


def test_missed_targets_are_named_under_the_title() -> None:
    missed = [
        learned("gossip", [0.5, 0.6, 0.7, 0.8], nodes=2),
        learned("gossip", [0.5, 0.95], nodes=2, seed=1),
    ]
    comparison = a_comparison(learned("all_reduce", [0.5, 0.95], nodes=2), *missed)
    view = comparison.view(*comparison.workloads)
    chart = time_to_target(view.line_groups, Style(comparison.groups))
    assert chart is not None
    seeds = {record["name"]: record["range"].partition(", ")[2] for record in points(chart)}
    assert seeds == dict.fromkeys(("all_reduce · mpi", "gossip · mpi"), f"1{JOIN}seed")
    head, note = chart.spec["title"]["subtitle"]
    assert f"4{JOIN}epochs" in head
    assert note.startswith(f"gossip · mpi: 2{JOIN}nodes (1 of 2 seeds)")
