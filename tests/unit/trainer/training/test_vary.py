"""What the seed of a run varies: initial weights, partition and order, each of them or none."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from orchestrator.report.model.labels import Workload
from tests.unit.training import SMALL, train
from trainer.core.rng import SOURCES
from trainer.models.layers.dropout import Dropout
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.partition import partition_summary
from trainer.training.task import Task

SUBSETS = [[*vary] for count in range(4) for vary in combinations(SOURCES, count)]


def spec(**fields: Any) -> RunSpec:
    run = {**SMALL, "strategy": "all_reduce", "nodes": 2, "transport": "memory"}
    return RunSpec.model_validate({**run, **fields})


def drawn(seed: int, vary: list[str]) -> dict[str, Any]:
    """What a run draws from each source: values of which each depends on the seed."""
    task = Task(spec(seed=seed, vary=vary, model="lenet", partitioner="random_partition"), Path())
    loader = BatchLoader(task.data.train, task.spec, task.rngs, rank=1, size=2)
    part = loader.parts(1)[1]
    model = task.build_model(rank=1)
    dropout = next(module.generator for module in model.modules() if isinstance(module, Dropout))
    return {
        "init": [[parameter.tolist() for parameter in model.parameters()]],
        "split": [part.tolist()],
        "order": [np.searchsorted(part, loader.order(1)).tolist(), dropout.initial_seed()],
    }


@pytest.mark.parametrize("vary", SUBSETS, ids=str)
def test_seed_changes_only_what_it_varies(vary: list[str]) -> None:
    first, second = drawn(1, vary), drawn(2, vary)
    fixed = drawn(0, [*SOURCES])
    for source in SOURCES:
        for one, other, of_seed_0 in zip(first[source], second[source], fixed[source], strict=True):
            assert (one != other) is (source in vary)
            assert (one == of_seed_0) is (source not in vary)


@pytest.mark.parametrize("strategy", ["serial", "all_reduce", "local_sgd"])
def test_runs_of_all_seeds_are_equal_if_the_seed_varies_nothing(strategy: str) -> None:
    ranks = 1 if strategy == "serial" else 2
    first, second = (train(strategy, ranks, seed=seed, vary=[], epochs=1).weights for seed in (1, 2))
    assert (first == second).all()
    assert (first != train(strategy, ranks, seed=1, epochs=1).weights).any()


def test_preview_of_a_partition_follows_vary() -> None:
    labels = Task(spec(), Path()).data.train.labels
    skewed = {"partitioner": {"name": "dirichlet", "alpha": 0.3}}

    def sizes(seed: int, vary: list[str]) -> list[int]:
        summary = partition_summary(spec(seed=seed, vary=vary, **skewed), labels, 10)
        found: list[int] = summary.sizes.tolist()
        return found

    assert sizes(1, ["init", "order"]) == sizes(2, ["init", "order"]) == sizes(0, [*SOURCES])
    assert sizes(1, ["split"]) != sizes(2, ["split"])


def test_run_key_contains_vary_unless_the_seed_varies_everything() -> None:
    assert spec(vary=["order", "split", "init"]).key == spec().key
    assert len({spec(vary=vary).key for vary in SUBSETS}) == len(SUBSETS)
    assert spec(vary=["split", "init"]).key == spec(vary=["init", "split"]).key


def test_runs_that_differ_in_vary_are_not_compared() -> None:
    plain, split, nothing = (Workload.of(spec(vary=vary)) for vary in ([*SOURCES], ["split"], []))
    assert len({plain, split, nothing}) == 3
    assert len({plain.label, split.label, nothing.label}) == 3
    assert plain == Workload.of(spec())


@pytest.mark.parametrize("vary", [["init", "init"], ["weights"], "init"])
def test_unknown_and_repeated_sources_are_errors(vary: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(vary=vary)
    (error,) = caught.value.errors()
    assert error["loc"][0] == "vary"
