"""Mistakes in what a run draws: its partition, what the preview shows, and what the seed varies."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.training import train
from trainer.core.rng import SOURCES
from trainer.data.base import DataError
from trainer.data.certificate import CoverageTracker, partition_record
from trainer.data.partitioners.random_partition import RandomPartition
from trainer.models.layers.dropout import Dropout
from trainer.spec.registries import PARTITIONERS
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.partition import PartitionSummary, partition_summary
from trainer.training.task import Task


def task(nodes: int = 3, **fields: Any) -> Task:
    dataset = {"name": "synthetic", "samples": 301, "classes": 5}
    run = {"strategy": "all_reduce", "nodes": nodes, "dataset": dataset, "seed": 7}
    return Task(RunSpec.model_validate({**run, **fields}), Path("/nonexistent"))


def preview(of: Task, epoch: int = 1) -> PartitionSummary:
    return partition_summary(of.spec, of.data.train.labels, of.data.classes, epoch)


def test_run_fails_with_a_cause_that_names_the_partitioner(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_partitioner.py has the other causes."""
    for second, cause in ((59, "sample 59 in parts 0 and 1"), (61, "119; sample 60 is in none")):
        split = [np.arange(60), np.arange(second, 120)]
        monkeypatch.setattr(RandomPartition, "partition", lambda *_, split=split: split)
        with pytest.raises(DataError, match=f"partitioner random_partition has a defect: .*{cause}"):
            train("all_reduce", 2, partitioner="random_partition")


def test_the_preview_equals_the_certificate_of_the_data_that_ranks_train_on() -> None:
    for name in PARTITIONERS.entries:
        for reshuffle in (False, True) if PARTITIONERS.load(name).random else (False,):
            of = task(partitioner={"name": name, "reshuffle": reshuffle})
            data, size = of.data, of.spec.world_size
            loaders = [BatchLoader(data.train, of.spec, of.rngs, rank, size) for rank in range(size)]
            parts = [np.concatenate([i for _, i in loader.batches(2)]) for loader in loaders]
            records = [partition_record(2, part, data.train.labels, data.classes) for part in parts]
            spread = CoverageTracker(len(data.train.labels), size).epoch(2, parts)
            found = preview(of, epoch=2)
            assert found.labels.tolist() == [[*record.labels] for record in records]
            assert found.sizes.tolist() == [len(part) for part in parts]
            assert (found.coverage, found.overlap) == (spread.coverage, spread.overlap)
            assert found.js_divergence == tuple(record.js_divergence for record in records)
            distances = tuple(record.earth_movers_distance for record in records)
            assert found.earth_movers_distance == distances


# What the seed of a run varies

SUBSETS = [[*vary] for count in range(4) for vary in combinations(SOURCES, count)]


def drawn(seed: int, vary: list[str], rank: int = 1) -> dict[str, Any]:
    """What a rank draws from each source: values of which each depends on the seed."""
    of = task(2, seed=seed, vary=vary, model="lenet", partitioner="random_partition")
    loader = BatchLoader(of.data.train, of.spec, of.rngs, rank, size=2)
    parts, model = loader.parts(1), of.build_model(rank)
    dropout = next(module.generator for module in model.modules() if isinstance(module, Dropout))
    return {
        "init": [[parameter.tolist() for parameter in model.parameters()]],
        "split": [parts[1].tolist(), preview(of).labels.tolist()],
        "order": [np.searchsorted(parts[rank], loader.order(1)).tolist(), dropout.initial_seed()],
    }


def test_seed_changes_only_what_it_varies() -> None:
    fixed = drawn(0, [*SOURCES])
    for vary in SUBSETS:
        first, second = drawn(1, vary), drawn(2, vary)
        for source in SOURCES:
            for one, other, of_seed_0 in zip(first[source], second[source], fixed[source], strict=True):
                assert (one != other) is (source in vary)
                assert (one == of_seed_0) is (source not in vary)


def test_ranks_start_alike_and_draw_apart() -> None:
    first, second = (drawn(1, [*SOURCES], rank) for rank in range(2))
    assert (first["init"], first["split"]) == (second["init"], second["split"])
    assert all(one != other for one, other in zip(first["order"], second["order"], strict=True))
