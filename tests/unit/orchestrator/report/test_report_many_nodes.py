"""Mistakes in until how many nodes time falls: the first instead of the last, another reference, lost
accuracy."""

from __future__ import annotations

from typing import Any

from orchestrator.results.records import RunResult
from orchestrator.sweeps.tolerance import Tolerances
from tests.unit.report_support import a_comparison, a_run, around, finding_of, findings_of, repeated


def line(strategy: str, times: dict[int, float], accuracies: dict[int, float]) -> list[RunResult]:
    """Five seeds of a strategy on each number of nodes, with times and accuracies around these means."""
    return [
        a_run(strategy, nodes=nodes, seed=seed, train_s=time, accuracy=accuracy, transport="gloo", cores=64)
        for nodes, mean in times.items()
        for seed, (time, accuracy) in enumerate(
            zip(around(mean, 0.01 * mean), around(accuracies[nodes]), strict=True)
        )
    ]


SERIAL = repeated("serial", around(16, 0.1), accuracy=0.9, cores=64)
FALLING = line("one_shot", {2: 8.0, 8: 2.0, 32: 1.0}, {2: 0.9, 8: 0.89, 32: 0.5})
LEVEL = line("all_reduce", {2: 8.0, 8: 4.0, 32: 3.2}, {2: 0.9, 8: 0.9, 32: 0.9})
RISING = line("gossip", {2: 20.0, 8: 24.0, 32: 28.0}, {2: 0.9, 8: 0.9, 32: 0.9})


def ends(*runs: RunResult) -> dict[str, tuple[Any, Any]]:
    """Of each strategy: until how many nodes it becomes faster, and keeps its accuracy."""
    comparison = a_comparison(*runs, tolerance=Tolerances(time="40%"))
    data = finding_of(comparison, "many_nodes").data
    return {each["strategy"]: (each["falls_until"], each["kept_until"]) for each in data["strategies"]}


def test_the_last_numbers_of_nodes_that_save_time_and_keep_the_accuracy_of_serial() -> None:
    assert ends(*SERIAL, *FALLING, *LEVEL, *RISING) == {
        "one_shot over gloo": (32, 2),  # −1 point at 8 nodes may be more than the tolerance
        "all_reduce over gloo": (8, 32),  # from 8 to 32 nodes it saves 20 %, within the tolerance
        "gossip over gloo": (None, None),
    }


def test_without_serial_the_fewest_nodes_are_the_reference() -> None:
    found = finding_of(a_comparison(*FALLING), "many_nodes")
    assert found.data["reference"] == "fewest"
    (of_one,) = found.data["strategies"]
    assert (of_one["falls_until"], of_one["kept_until"]) == (32, None)
    accuracies = [each["values"] for each in found.data["compared"] if each["quantity"] == "accuracy"]
    assert [round(right, 3) for _, right in accuracies] == [0.9, 0.9]


def test_few_nodes_and_few_seeds_have_no_such_finding() -> None:
    few_nodes = [run for run in FALLING if run.run.nodes < 32]
    few_seeds = [run for run in [*SERIAL, *FALLING] if run.run.seed < 4]
    assert not findings_of(a_comparison(*SERIAL, *few_nodes), "many_nodes")
    assert not findings_of(a_comparison(*few_seeds), "many_nodes")
