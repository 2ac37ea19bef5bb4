"""The figure of accuracy by partitioner and strategy."""

from __future__ import annotations

from typing import Any

from orchestrator.report.figures.chart import Chart
from orchestrator.report.topics.partitioners import MAX_COLUMNS, WORST, partitioners_by_strategy
from orchestrator.results.records import RunResult
from tests.unit.report_support import SERIAL, a_comparison, a_run, records_of

NAMES = ["all_reduce", "one_shot", "gossip"]
SERIES = [f"{name} · mpi" for name in NAMES]
OTHERS = ["contiguous", "shards", "stratified", "quantity", "dirichlet", "feature", "random_sampling"]


def tried(partitioner: str, *accuracies: float) -> list[RunResult]:
    """A run of the first strategies with this partitioner."""
    return [
        a_run(name, nodes=4, transport="mpi", partitioner=partitioner, accuracy=accuracy)
        for name, accuracy in zip(NAMES, accuracies, strict=False)
    ]


def figure_of(*runs: RunResult) -> Chart | None:
    comparison = a_comparison(SERIAL, *runs)
    (workload,) = comparison.workloads
    return partitioners_by_strategy(comparison.view(workload))


def axes_of(chart: Chart) -> tuple[dict[str, Any], dict[str, Any]]:
    encoding = chart.spec["layer"][0]["encoding"]
    return encoding["x"], encoding["y"]


def test_a_strategy_per_row_and_a_partitioner_per_column() -> None:
    chart = figure_of(
        *tried("contiguous", 0.6, 0.5), *tried("random_partition", 0.9, 0.8), *tried("shards", 0.2)
    )
    assert chart is not None
    x, y = axes_of(chart)
    assert x["sort"] == ["random_partition", "contiguous", "shards"]
    assert (y["field"], y["sort"]) == ("series", SERIES[:2])
    assert x["axis"]["labelAngle"] == 0
    written = {(cell["series"], cell["partitioner"]): cell for cell in records_of(chart)}
    assert written[SERIES[0], "random_partition"]["written"] == "90.0%"
    assert written[SERIES[0], "random_partition"]["loss"] == 0
    assert written[SERIES[0], "shards"]["loss"] > WORST
    assert written[SERIES[1], "shards"]["accuracy"] is None
    assert len(written) == 6


def test_strategies_with_one_partitioner_are_left_out() -> None:
    several = [*tried("random_partition", 0.9, 0.8, 0.7), *tried("contiguous", 0.6, 0.5)]
    assert {record["series"] for record in records_of(figure_of(*several))} == {*SERIES[:2]}
    one = [*tried("random_partition", 0.9, 0.8, 0.7), *tried("contiguous", 0.6)]
    assert figure_of(*one) is None
    assert figure_of(*tried("random_partition", 0.9, 0.8, 0.7)) is None


def test_many_partitioners_have_a_row_each() -> None:
    runs = [run for label in ("random_partition", *OTHERS) for run in tried(label, 0.9, 0.8)]
    chart = figure_of(*runs)
    assert chart is not None
    x, y = axes_of(chart)
    assert len(y["sort"]) > MAX_COLUMNS
    assert (x["field"], y["field"]) == ("series", "partitioner")
    assert y["sort"][0] == "random_partition"
