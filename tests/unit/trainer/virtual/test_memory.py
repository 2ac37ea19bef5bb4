"""Mistakes in the memory that virtual ranks need: copies of vectors, processes, ranks that are absent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.unit.training import SMALL
from trainer.spec.run_spec import RunSpec
from trainer.training.limits import MemoryShortage
from trainer.training.task import Task
from trainer.virtual.memory import PAIR_BYTES, RANK_BYTES, check_memory, shares_of_ranks

RUN = {**SMALL, "strategy": "all_reduce", "transport": "gloo", "nodes": 10}
WEIGHTS = 4 * (784 * 1000 + 1000 + 1000 * 10 + 10)
LARGE = {"name": "mlp", "hidden": [1000]}
ABSENT = {"local_steps": 1000, "participation": {"schedule": [[0, 1]]}}


@pytest.mark.parametrize(
    ("fields", "workers", "copies"),
    [
        ({"optimizer": "sgd"}, 1, 10 * 4),  # weights, gradient, and two copies in an average
        ({"optimizer": "momentum"}, 1, 10 * 5),
        ({}, 3, 10 * (4 + 2)),  # each further process receives what all ranks send
        ({"strategy": {"name": "local_sgd", **ABSENT}}, 1, 2 * 3 + 2),  # and gradients of those that train
        ({"strategy": {"name": "local_sgd", **ABSENT}}, 2, 2 * 3 + 10 + 2),
        ({"strategy": {"name": "fedopt", **ABSENT}}, 1, 10 * 3 + 2),  # each rank has vectors of its own
        ({"strategy": {"name": "local_sgd", **ABSENT, "aggregation": "median"}}, 1, 10 * 3 + 2),
    ],
)
def test_ranks_need_the_vectors_that_they_do_not_share(
    fields: dict[str, Any], workers: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = copies * WEIGHTS + 10 * (RANK_BYTES + 10 * workers * PAIR_BYTES)
    task = Task(RunSpec.model_validate({**RUN, "model": LARGE, **fields}), Path())
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed))
    check_memory(task, workers)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed - 1))
    with pytest.raises(MemoryShortage, match=r"10 virtual ranks .* at most 9 ranks"):
        check_memory(task, workers)


def test_ranks_that_have_trained_keep_their_gradient() -> None:
    strategy = {"name": "local_sgd", "local_steps": 1, "participation": {"fraction": 0.5}}
    fields = {"strategy": strategy, "epochs": 1, "batch_per": "rank", "batch_size": 60_000}
    spec = RunSpec.model_validate({**RUN, **fields})
    assert shares_of_ranks(spec) == (0.5, 0.5)
    assert shares_of_ranks(spec.model_copy(update={"epochs": 3})) == (0.5, 1 - 0.5**3)
    rounds_of_two = spec.strategy.model_copy(update={"local_steps": 2})
    of_three_steps = {"epochs": 3, "strategy": rounds_of_two}  # two rounds, the last one of one step
    assert shares_of_ranks(spec.model_copy(update=of_three_steps)) == (0.5, 1 - 0.5**2)
