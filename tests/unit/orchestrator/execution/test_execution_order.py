"""The order of execution: seed by seed, random within, stable; and the run before the first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.order import execution_order, warm_up_run
from orchestrator.shipped import SWEEPS
from orchestrator.sweeps.load import load_sweep
from trainer.spec.run_spec import RunSpec

SEEDS = range(5)


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "ddp", **fields})


def runs(*nodes: int, seeds: Sequence[int] = SEEDS) -> list[RunSpec]:
    """In the order of a sweep file: configuration by configuration."""
    return [spec(nodes=each, seed=seed) for each in nodes for seed in seeds]


NODES = range(1, 9)


def blocks(order: Sequence[RunSpec]) -> list[list[int]]:
    """The number of nodes of each run, by seed."""
    return [[run.nodes for run in order if run.seed == seed] for seed in SEEDS]


def test_all_runs_of_a_seed_come_before_those_of_the_next() -> None:
    order = execution_order("s", [runs(*NODES)])
    assert [run.seed for run in order] == [seed for seed in SEEDS for _ in NODES]
    assert sorted(run.key for run in order) == sorted(run.key for run in runs(*NODES))


def test_every_seed_and_every_sweep_has_an_order_of_its_own() -> None:
    first = blocks(execution_order("s", [runs(*NODES)]))
    other = blocks(execution_order("t", [runs(*NODES)]))
    orders = {tuple(block) for block in (*first, *other)}
    assert len(orders) == 2 * len(SEEDS)
    assert tuple(NODES) not in orders


def test_every_configuration_is_first_about_equally_often() -> None:
    order = execution_order("s", [runs(1, 2, 3, 4, seeds=range(400))])
    first = [run.nodes for run in order[::4]]
    assert all(70 <= first.count(nodes) <= 130 for nodes in (1, 2, 3, 4))  # 100 ± 3.5 standard deviations


def test_order_of_two_runs_does_not_depend_on_other_runs() -> None:
    """A sweep that is extended by seeds or configurations keeps the order of the runs that it has."""
    few = execution_order("s", [runs(2, 5, 7, seeds=[0, 1])])
    many = execution_order("s", [[*reversed(runs(*NODES))]])
    assert [run for run in many if run in few] == few


def test_runs_of_a_group_stay_together() -> None:
    groups = [runs(1, 2, 3), runs(4, 5), runs(6, 7, 8)]
    group_of = {run.key: number for number, group in enumerate(groups) for run in group}
    order = execution_order("s", groups)
    visited = []
    for seed in SEEDS:
        numbers = [group_of[run.key] for run in order if run.seed == seed]
        changes = [number for at, number in enumerate(numbers) if not at or numbers[at - 1] != number]
        assert sorted(changes) == [0, 1, 2]
        visited.append(tuple(changes))
    assert len(set(visited)) > 1  # in random order


def test_order_is_the_same_in_every_version() -> None:
    expected = [[5, 8, 1, 7, 3, 4, 2, 6], [4, 5, 2, 7, 3, 6, 1, 8]]
    assert blocks(execution_order("s", [runs(*NODES)]))[:2] == expected


# The run before the first


def test_warm_up_run_is_the_serial_one_with_one_epoch() -> None:
    fields = {
        "target_accuracy": 0.5,
        "patience": 2,
        "checkpoint_epochs": 2,
        "epochs": 9,
        "save_weights": True,
    }
    repeated = [*runs(1, 2), *(spec(strategy="serial", seed=seed, **fields) for seed in (3, 4))]
    assert warm_up_run(repeated) == spec(strategy="serial", seed=3, epochs=1, trace="none")


def test_warm_up_run_has_the_fewest_ranks_and_no_faults() -> None:
    fault = {"kill": {"node": 1}, "at": {"epoch": 2}}
    repeated = [
        spec(nodes=4, seed=0),
        spec(nodes=2, processes_per_node=3, seed=0),
        spec(nodes=3, seed=1, faults=[fault], restarts=1),
    ]
    assert warm_up_run(repeated) == spec(nodes=3, seed=1, restarts=1, epochs=1, trace="none")


@pytest.mark.parametrize("path", sorted(SWEEPS.rglob("*.yml")), ids=lambda path: path.stem)
def test_shipped_sweeps_have_a_serial_warm_up_run(path: Path) -> None:
    run = warm_up_run(load_sweep(path, repeat=2).runs)
    assert run is not None
    assert (run.name_of("strategy"), run.epochs) == ("serial", 1)


@pytest.mark.parametrize(
    "sweep",
    [
        runs(1, 2, seeds=[0]),
        [spec(strategy="fault_injection", seed=seed) for seed in SEEDS],  # nothing to warm up
    ],
)
def test_no_warm_up_run(sweep: list[RunSpec]) -> None:
    assert warm_up_run(sweep) is None
