"""Mistakes in the order of execution: mixed seeds, an order that changes, a long or no warm-up run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.execution.order import execution_order, warm_up_run
from trainer.spec.run_spec import RunSpec

SEEDS, NODES = range(5), range(1, 9)


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", **fields})


def runs(nodes: Sequence[int] = NODES, seeds: Sequence[int] = SEEDS) -> list[RunSpec]:
    """In the order of a sweep file: configuration by configuration."""
    return [spec(nodes=each, seed=seed) for each in nodes for seed in seeds]


def blocks(order: Sequence[RunSpec]) -> list[tuple[int, ...]]:
    """The number of nodes of each run, by seed."""
    return [tuple(run.nodes for run in order if run.seed == seed) for seed in SEEDS]


def test_seeds_follow_each_other_and_each_has_an_order_of_its_own_in_every_sweep() -> None:
    order = execution_order("s", [runs()])
    assert [run.seed for run in order] == [seed for seed in SEEDS for _ in NODES]
    assert sorted(run.key for run in order) == sorted(run.key for run in runs())
    orders = {*blocks(order), *blocks(execution_order("t", [runs()])), tuple(NODES)}
    assert len(orders) == 2 * len(SEEDS) + 1


def test_the_order_is_the_same_in_every_version_and_of_every_extended_sweep() -> None:
    expected = [(5, 8, 1, 7, 3, 4, 2, 6), (4, 5, 2, 7, 3, 6, 1, 8)]
    many = execution_order("s", [[*reversed(runs())]])
    assert blocks(many)[:2] == expected
    few = execution_order("s", [runs([2, 5, 7], seeds=[0, 1])])
    assert [run for run in many if run in few] == few


def test_runs_of_a_group_stay_together_in_random_order_of_the_groups() -> None:
    groups = [runs([1, 2, 3]), runs([4, 5]), runs([6, 7, 8])]
    group_of = {
        nodes: number for number, group in enumerate(groups) for nodes in {run.nodes for run in group}
    }
    visited = set()
    for block in blocks(execution_order("s", groups)):
        numbers = [group_of[nodes] for nodes in block]
        visited.add(tuple(dict.fromkeys(numbers)))
        assert numbers == [
            number for number in dict.fromkeys(numbers) for _ in range(numbers.count(number))
        ]
    assert len(visited) > 1


LONG = {"target_accuracy": 0.5, "patience": 2, "checkpoint_epochs": 2, "epochs": 9, "save_weights": True}
FAULTY = {"faults": [{"kill": {"node": 1}, "at": {"epoch": 2}}], "restarts": 1}


def test_the_warm_up_run_is_the_serial_or_smallest_one_with_one_epoch() -> None:
    serial = [spec(strategy="serial", seed=seed, **LONG) for seed in (3, 4)]
    assert warm_up_run([*runs([1, 2]), *serial]) == spec(strategy="serial", seed=3, epochs=1, trace="none")
    parallel = [spec(nodes=4), spec(nodes=2, processes_per_node=3), spec(nodes=3, seed=1, **FAULTY)]
    assert warm_up_run(parallel) == spec(nodes=3, seed=1, restarts=1, epochs=1, trace="none")
    assert warm_up_run(runs([1, 2], seeds=[0])) is None
    assert warm_up_run([spec(strategy="fault_injection", seed=seed) for seed in SEEDS]) is None
