"""Mistakes in comparing partitioners: with which one, what loses and recovers most, rows and columns."""

from __future__ import annotations

from typing import Any

from orchestrator.report.figures.chart import Chart
from orchestrator.report.topics.partitioners import partitioners_by_strategy
from orchestrator.results.records import RunResult
from tests.unit.report_support import SERIAL, a_comparison, a_run, around, finding_of, records_of

NAMES = ["all_reduce", "one_shot", "gossip"]
SERIES = [f"{name} · mpi" for name in NAMES]
OTHERS = ["contiguous", "shards", "stratified", "quantity", "dirichlet", "feature", "random_sampling"]


def tried(partitioner: str, *accuracies: float, seed: int = 0) -> list[RunResult]:
    """A run of the first strategies with this partitioner."""
    return [
        a_run(name, nodes=4, transport="mpi", partitioner=partitioner, accuracy=accuracy, seed=seed)
        for name, accuracy in zip(NAMES, accuracies, strict=False)
    ]


def figure_of(*runs: RunResult) -> Chart | None:
    comparison = a_comparison(SERIAL, *runs)
    (workload,) = comparison.workloads
    return partitioners_by_strategy(comparison.view(workload))


def axes_of(chart: Chart) -> tuple[dict[str, Any], dict[str, Any]]:
    encoding = chart.spec["layer"][0]["encoding"]
    return encoding["x"], encoding["y"]


def test_the_largest_loss_and_the_largest_recovery_are_named() -> None:
    accuracies = {"random_partition": (0.9, 0.9, 0.91), "shards": (0.5, 0.7, 0.8)}
    runs = [
        run
        for partitioner, means in accuracies.items()
        for seed, each in enumerate(around(0.0, 0.002))
        for run in tried(partitioner, *(mean + each for mean in means), seed=seed)
    ]
    data = finding_of(a_comparison(*runs), "partitioner_loss").data
    assert (data["strategy"], data["best"]) == ("all_reduce over mpi", "gossip over mpi")
    assert round(data["loss"], 6) == 0.4


def test_a_strategy_per_row_and_a_partitioner_per_column() -> None:
    chart = figure_of(
        *tried("contiguous", 0.6, 0.85), *tried("random_partition", 0.9, 0.8), *tried("shards", 0.2)
    )
    assert chart is not None
    x, y = axes_of(chart)
    assert x["sort"] == ["random_partition", "contiguous", "shards"]
    assert (y["field"], y["sort"]) == ("series", SERIES[:2])
    written = {
        (cell["series"], cell["partitioner"]): (cell["written"], round(cell["loss"], 6), cell["change"][:3])
        for cell in records_of(chart)
    }
    assert written == {
        (SERIES[0], "random_partition"): ("90.0%", 0.0, "±0."),
        (SERIES[0], "contiguous"): ("60.0%", 0.3, "−30"),
        (SERIES[0], "shards"): ("20.0%", 0.7, "−70"),
        (SERIES[1], "random_partition"): ("80.0%", 0.0, "±0."),
        (SERIES[1], "contiguous"): ("85.0%", 0.0, "+5."),  # a gain is not shaded
        (SERIES[1], "shards"): ("–", 0.0, "–"),
    }


def test_strategies_with_one_partitioner_are_left_out() -> None:
    several = [*tried("random_partition", 0.9, 0.8, 0.7), *tried("contiguous", 0.6, 0.5)]
    assert {record["series"] for record in records_of(figure_of(*several))} == {*SERIES[:2]}
    one = [*tried("random_partition", 0.9, 0.8, 0.7), *tried("contiguous", 0.6)]
    assert figure_of(*one) is None
