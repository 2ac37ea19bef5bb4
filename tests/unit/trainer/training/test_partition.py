"""Partition summary: it equals the data that ranks train on, and the certificate's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.unit.training import train
from trainer.data.base import DataError, Indices, Labels, Partitioner
from trainer.data.certificate import CoverageTracker, partition_record
from trainer.spec.registries import PARTITIONERS
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.partition import PartitionSummary, partition_summary
from trainer.training.task import Task

NODES = 3


class Broken(Partitioner):
    """Returns the split that a test sets, and declares disjoint parts that cover the set."""

    disjoint: ClassVar[bool] = True
    covers: ClassVar[bool] = True
    split: ClassVar[list[Indices]] = []

    def partition(self, labels: Labels, parts: int, rng: np.random.Generator) -> list[Indices]:
        return self.split


NOWHERE = Path("/nonexistent")


def a_spec(**fields: Any) -> RunSpec:
    dataset = {"name": "synthetic", "samples": 301, "classes": 5}
    return RunSpec.model_validate(
        {"strategy": "all_reduce", "nodes": NODES, "dataset": dataset, "seed": 7, **fields}
    )


def loaded_by_ranks(task: Task, epoch: int) -> tuple[PartitionSummary, list[list[int]]]:
    """The summary that the certificate contains, and the sorted sample indices each rank loads."""
    train, classes = task.data.train, task.data.classes
    loaded = []
    for rank in range(task.spec.world_size):
        loader = BatchLoader(train, task.spec, task.rngs, rank, task.spec.world_size)
        loaded.append(np.concatenate([indices for _, indices in loader.batches(epoch)]))
    records = [partition_record(epoch, part, train.labels, classes) for part in loaded]
    split = CoverageTracker(len(train.labels), len(loaded)).epoch(epoch, loaded)
    certified = PartitionSummary(
        labels=np.array([record.labels for record in records]),
        coverage=split.coverage,
        overlap=split.overlap,
        js_divergence=tuple(record.js_divergence for record in records),
        earth_movers_distance=tuple(record.earth_movers_distance for record in records),
    )
    return certified, [sorted(part.tolist()) for part in loaded]


HALVES = [np.arange(60), np.arange(60, 120)]


@pytest.mark.parametrize(
    ("split", "declares", "cause"),
    [
        ([HALVES[0], np.arange(59, 120)], True, "sample 59 in parts 0 and 1"),
        ([HALVES[0], np.arange(61, 120)], True, "119; sample 60 is in none"),
        ([HALVES[0], np.arange(60, 121)], False, "part 1 has 120; expected: integers from 0 to 119"),
        ([HALVES[0], np.array([3, 3, 4])], False, "part 1 has sample 3 2 times"),
    ],
)
def test_run_fails_with_a_cause_that_names_the_partitioner(
    monkeypatch: pytest.MonkeyPatch, split: list[Indices], declares: bool, cause: str
) -> None:
    monkeypatch.setitem(PARTITIONERS.entries, "broken", f"{__name__}:Broken")
    for declaration, value in (("disjoint", declares), ("covers", declares), ("split", split)):
        monkeypatch.setattr(Broken, declaration, value)
    with pytest.raises(DataError) as caught:
        train("all_reduce", 2, partitioner="broken")
    assert str(caught.value).startswith("partitioner broken has a defect: ")
    assert cause in str(caught.value)


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize(
    ("name", "reshuffle"),
    [(name, False) for name in PARTITIONERS.entries]
    + [(name, True) for name in PARTITIONERS.entries if PARTITIONERS.load(name).random],
)
def test_partition_summary_equals_the_data_ranks_train_on(name: str, reshuffle: bool, epoch: int) -> None:
    spec = a_spec(partitioner={"name": name, "reshuffle": reshuffle})
    task = Task(spec, NOWHERE)
    drawn = partition_summary(spec, task.data.train.labels, task.data.classes, epoch)
    certified, loaded = loaded_by_ranks(task, epoch)
    np.testing.assert_array_equal(drawn.labels, certified.labels)
    assert (drawn.coverage, drawn.overlap) == (certified.coverage, certified.overlap)
    assert drawn.js_divergence == certified.js_divergence
    assert drawn.earth_movers_distance == certified.earth_movers_distance
    assert drawn.sizes.tolist() == [len(part) for part in loaded]


@pytest.mark.parametrize("strategy", ["one_shot", "all_reduce", "ddp", "hogwild"])
def test_partition_does_not_depend_on_the_strategy(strategy: str) -> None:
    drawn, other = (summary_of(a_spec(strategy=name)) for name in ("all_reduce", strategy))
    np.testing.assert_array_equal(drawn.labels, other.labels)


def summary_of(spec: RunSpec) -> PartitionSummary:
    data = Task(spec, NOWHERE).data
    return partition_summary(spec, data.train.labels, data.classes)


def test_partition_depends_on_seed_and_number_of_ranks() -> None:
    assert summary_of(a_spec(seed=8)).labels.tolist() != summary_of(a_spec()).labels.tolist()
    four, two_by_two = summary_of(a_spec(nodes=4)), summary_of(a_spec(nodes=2, processes_per_node=2))
    np.testing.assert_array_equal(four.labels, two_by_two.labels)


def test_serial_trains_on_the_whole_dataset() -> None:
    whole = summary_of(a_spec(strategy="serial", nodes=1))
    assert whole.sizes.tolist() == [301]
    assert (whole.coverage, whole.overlap) == (1.0, 0.0)
    assert whole.earth_movers_distance == (0.0,)


def test_sizes_and_classes_held() -> None:
    seen = PartitionSummary(np.array([[3, 0, 1], [0, 0, 2]]), 1.0, 0.0, (0.0, 0.0), (0.0, 0.0))
    assert seen.sizes.tolist() == [4, 2]
    assert seen.classes_held.tolist() == [2, 1]
