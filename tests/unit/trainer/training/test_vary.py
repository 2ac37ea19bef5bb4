"""Mistakes in what the seed of a run varies: initial weights, partition and order, each of them or none."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from orchestrator.report.model.labels import Workload
from trainer.core.rng import SOURCES
from trainer.models.layers.dropout import Dropout
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.partition import partition_summary
from trainer.training.task import Task

SUBSETS = [[*vary] for count in range(4) for vary in combinations(SOURCES, count)]


def spec(**fields: Any) -> RunSpec:
    dataset = {"name": "synthetic", "samples": 60, "test_samples": 4}
    run = {"strategy": "all_reduce", "nodes": 2, "dataset": dataset}
    return RunSpec.model_validate({**run, **fields})


def drawn(seed: int, vary: list[str], rank: int = 1) -> dict[str, Any]:
    """What a rank draws from each source: values of which each depends on the seed."""
    run = spec(seed=seed, vary=vary, model="lenet", partitioner="random_partition")
    task = Task(run, Path())
    loader = BatchLoader(task.data.train, run, task.rngs, rank, size=2)
    parts, labels = loader.parts(1), task.data.train.labels
    model = task.build_model(rank)
    dropout = next(module.generator for module in model.modules() if isinstance(module, Dropout))
    return {
        "init": [[parameter.tolist() for parameter in model.parameters()]],
        "split": [parts[1].tolist(), partition_summary(run, labels, 10).labels.tolist()],
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
    first, second = drawn(1, [*SOURCES], rank=0), drawn(1, [*SOURCES], rank=1)
    assert (first["init"], first["split"]) == (second["init"], second["split"])
    assert all(one != other for one, other in zip(first["order"], second["order"], strict=True))


def test_runs_that_differ_in_vary_differ_in_key_and_are_not_compared() -> None:
    assert spec(vary=["order", "split", "init"]).key == spec().key
    assert spec(vary=["split", "init"]).key == spec(vary=["init", "split"]).key
    for of in (lambda run: run.key, Workload.of, lambda run: Workload.of(run).label):
        assert len({of(spec(vary=vary)) for vary in SUBSETS}) == len(SUBSETS)
    for vary in (["init", "init"], ["weights"], "init"):
        with pytest.raises(ValidationError, match="vary"):
            spec(vary=vary)
