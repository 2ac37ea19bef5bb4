"""Runs that are cut off and go on: the same weights, the same account of what was done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training import Training, train
from trainer.strategies.replica import Replica

LENET = {"name": "lenet", "dropout": 0.3}
WIDE = {"name": "wide_resnet", "widen": 1}
# Parts of 68 and 52 samples, or of 50, 38 and 32.
UNEVEN = {"name": "quantity", "imbalance": 0.4}
IMAGES = {"name": "synthetic", "samples": 120, "test_samples": 40, "noise": 1.0, "height": 28, "width": 28}


class Killed(Exception):
    """What a test cuts a training off with."""


def cut_off(
    monkeypatch: pytest.MonkeyPatch, at: int, snapshots: Path, strategy: Any, ranks: int, **fields: Any
) -> None:
    """Train until a rank is about to take its step `at`, counted from 1 in the attempt."""
    steps: dict[int, int] = {}
    step = Replica.step

    def killing(self: Replica) -> None:
        steps[id(self)] = steps.get(id(self), 0) + 1
        if steps[id(self)] == at:
            raise Killed
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "step", killing)
        with pytest.raises(Killed):
            train(strategy, ranks, snapshots, **fields)


def account(training: Training) -> list[Any]:
    """What must not depend on whether a run was cut off: all but times and memory."""
    told = [
        [(event.kind, {**event.fields, "train_s": 0}) for event in events if event.kind in TOLD]
        for events in training.events
    ]
    results = [
        replace(result, train_s=0, work_cpu_s=0, seconds={}, peak_memory_mb=0)
        for result in training.results
    ]
    return [told, results]


TOLD = ("part", "split", "epoch")


TRAININGS: list[tuple[Any, int, dict[str, Any]]] = [
    ("serial", 1, {"optimizer": "adam", "model": LENET, "batch_size": 20}),
    ("all_reduce", 3, {"optimizer": "momentum", "partitioner": UNEVEN}),
    ("all_reduce", 2, {"optimizer": "adam", "model": WIDE}),
    ("all_reduce", 2, {"model": {**WIDE, "norm": "sync_batch"}, "partitioner": UNEVEN}),
    ({"name": "all_reduce", "uneven": "pad", "compression": "fp16"}, 2, {"partitioner": UNEVEN}),
    ("all_gather", 2, {"model": LENET}),
    ("reduce_broadcast", 2, {"optimizer": "adamw", "partitioner": "random_sampling"}),
    ({"name": "local_sgd", "local_steps": 4}, 2, {"optimizer": "momentum", "partitioner": UNEVEN}),
    ({"name": "local_sgd", "local_steps": 3, "optimizer_state": "reset"}, 2, {"optimizer": "adam"}),
    ({"name": "local_sgd", "local_steps": None}, 2, {"model": LENET}),
    ("one_shot", 2, {"optimizer": "momentum", "model": LENET, "partitioner": UNEVEN}),
]


@pytest.mark.parametrize(
    ("strategy", "ranks", "fields", "interval"),
    [
        (*training, {interval: every})
        for training in TRAININGS
        for interval, every in (("snapshot_steps", 2), ("snapshot_epochs", 1))
        if (training[0], interval) != ("one_shot", "snapshot_steps")
    ],
)
def test_a_run_that_was_cut_off_ends_as_if_it_had_not_been(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    strategy: Any,
    ranks: int,
    fields: dict[str, Any],
    interval: dict[str, int],
) -> None:
    run = {"epochs": 3, "batch_size": 10, "dataset": IMAGES, **fields, **interval}
    whole = train(strategy, ranks, tmp_path / "whole", **run)
    for at in (8, 5):  # the second attempt goes on, and is cut off too
        cut_off(monkeypatch, at, tmp_path / "cut", strategy, ranks, **run)
    cut = train(strategy, ranks, tmp_path / "cut", **run)
    assert cut.of("resumed")
    assert not whole.of("resumed")
    assert account(cut) == account(whole)
