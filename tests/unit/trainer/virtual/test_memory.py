"""Mistakes in the memory that virtual ranks need: copies of vectors, processes, ranks that are absent."""

from __future__ import annotations

import re
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

WEIGHTS = 4 * (784 * 1000 + 1000 + 1000 * 10 + 10)
MODEL = {"name": "mlp", "hidden": [1000]}


def check(monkeypatch: pytest.MonkeyPatch, available: int, workers: int = 1, **fields: Any) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    run = {**SMALL, "model": MODEL, "strategy": "all_reduce", "transport": "gloo", "nodes": 10, **fields}
    check_memory(Task(RunSpec.model_validate(run), Path()), workers)


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 4), ("momentum", 5)])
def test_ranks_need_weights_gradient_optimizer_state_and_two_copies(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, copies: int
) -> None:
    needed = 10 * (copies * WEIGHTS + RANK_BYTES + 10 * PAIR_BYTES)
    check(monkeypatch, needed, optimizer=optimizer)
    with pytest.raises(MemoryShortage) as raised:
        check(monkeypatch, needed - 1, optimizer=optimizer)
    assert re.search(r"10 virtual ranks .* at most 9 ranks", str(raised.value))


def test_each_further_process_receives_the_weights_and_has_the_times_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = 10 * ((4 + 2) * WEIGHTS + RANK_BYTES + 3 * 10 * PAIR_BYTES)
    check(monkeypatch, needed, workers=3)
    with pytest.raises(MemoryShortage):
        check(monkeypatch, needed - 1, workers=3)


@pytest.mark.parametrize(
    ("strategy", "workers", "copies"),
    [
        ("local_sgd", 1, 2 * 3 + 2),  # weights, and gradients of those that have trained
        ("local_sgd", 2, 2 * 3 + 10 + 2),  # another process receives what all ranks send
        ("fedopt", 1, 10 * 3 + 2),  # each rank has vectors of its own
        ({"name": "local_sgd", "aggregation": "median"}, 1, 10 * 3 + 2),
    ],
)
def test_absent_ranks_share_weights_where_they_are_alike(
    monkeypatch: pytest.MonkeyPatch, strategy: Any, workers: int, copies: int
) -> None:
    own = strategy if isinstance(strategy, dict) else {"name": strategy}
    run = {"strategy": {**own, "local_steps": 1000, "participation": {"schedule": [[0, 1]]}}}
    needed = copies * WEIGHTS + 10 * (RANK_BYTES + 10 * workers * PAIR_BYTES)
    check(monkeypatch, needed, workers, **run)
    with pytest.raises(MemoryShortage):
        check(monkeypatch, needed - 1, workers, **run)


def test_ranks_that_have_trained_keep_their_gradient() -> None:
    strategy = {"name": "local_sgd", "local_steps": 1, "participation": {"fraction": 0.5}}
    run = {**SMALL, "strategy": strategy, "transport": "gloo", "nodes": 10}
    spec = RunSpec.model_validate({**run, "epochs": 1, "batch_per": "rank", "batch_size": 60_000})
    assert shares_of_ranks(spec) == (0.5, 0.5)
    assert shares_of_ranks(spec.model_copy(update={"epochs": 3})) == (0.5, 1 - 0.5**3)
    rounds_of_two = spec.strategy.model_copy(update={"local_steps": 2})
    of_three_steps = {"epochs": 3, "strategy": rounds_of_two}  # two rounds, the last one of one step
    assert shares_of_ranks(spec.model_copy(update=of_three_steps)) == (0.5, 1 - 0.5**2)


def test_ranks_with_parts_of_a_model_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, 0, strategy="tensor_parallel", nodes=2)
