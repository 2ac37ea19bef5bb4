"""Mistakes in resuming: what is not restored, steps that repeat, checkpoints that do not fit together."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from tests.unit.training import Training, train
from trainer.models.split_points import balanced_split_points
from trainer.training import checkpoint_store
from trainer.training.checkpoint_store import CheckpointError
from trainer.training.replica import Replica


class Killed(Exception):
    """Interrupts training."""


def interrupt(at: int, checkpoints: Path, strategy: Any, ranks: int, **fields: Any) -> None:
    """Train until a rank is about to take its step `at`, counted from 1 in the attempt."""
    steps: dict[int, int] = {}
    step = Replica.step

    def interrupting_step(self: Replica) -> None:
        steps[id(self)] = steps.get(id(self), 0) + 1
        if steps[id(self)] == at:
            raise Killed
        step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "step", interrupting_step)
        with pytest.raises(Killed):
            train(strategy, ranks, checkpoints, **fields)


def comparable(training: Training) -> list[Any]:
    """Events and results, with digests of the weights, without times and memory."""
    kinds = ("partition", "coverage", "epoch")
    reported = [
        [(event.kind, {**event.fields, "train_s": 0}) for event in events if event.kind in kinds]
        for events in training.events
    ]
    measured = {"train_s": 0, "work_cpu_s": 0, "seconds": {}, "peak_memory_mb": 0, "wait_s_by_rank": None}
    return [reported, [result.model_copy(update=measured) for result in training.results]]


def steps_of(training: Training, kind: str) -> list[tuple[int, int, int]]:
    """Rank, epoch and step of all events of a kind."""
    ranks = range(len(training.events))
    return [(rank, e.fields["epoch"], e.fields["step"]) for rank in ranks for e in training.of(kind, rank)]


BY_STEPS, BY_EPOCHS = {"checkpoint_steps": 2}, {"checkpoint_epochs": 1}
# Parts of 68 and 52 samples on two ranks; 50, 38 and 32 on three.
UNEVEN: dict[str, Any] = {"partitioner": {"name": "quantity", "imbalance": 0.4}}
MOMENTUM: dict[str, Any] = {"optimizer": "momentum", **UNEVEN}
SCHEDULE: dict[str, Any] = {**MOMENTUM, "lr_scaling": "linear", "warm_up_epochs": 2, **BY_EPOCHS}
AUGMENTED: dict[str, Any] = {
    "model": {"name": "lenet", "dropout": 0.3},
    "dataset": {"name": "synthetic", "samples": 40, "test_samples": 9},
    "batch_size": 10,
    "augmentation": {"name": "standard", "saturation": 0},
    "optimizer": "adam",
}
COSINE: dict[str, Any] = {**MOMENTUM, "lr_schedule": {"name": "cosine", "warm_up_steps": 3}, **BY_STEPS}
LOCAL: dict[str, Any] = {"name": "local_sgd", "local_steps": 4}
# All ranks take part in the last round: a rank without steps since it resumed holds no gradient.
PARTLY = {**LOCAL, "participation": {"schedule": [[0, 2], [1], [0, 1, 2]]}}
# Steps of 10 per epoch on the longest part, checkpoints after steps 7, 14, 21 and 28: in each, exchanges
# of strategies that overlap are in flight.
WITH_STATE: list[dict[str, Any]] = [
    {"name": "delayed_all_reduce", "delay": 3},
    {"name": "streaming_diloco", "local_steps": 7, "overlap": 3, "weighting": "size"},
    {"name": "diloco", "local_steps": 4},
    {"name": "fedopt", "local_steps": 4},
    {"name": "fedprox", "local_steps": 4},
    {"name": "gossip"},
    {"name": "hierarchical_sgd", "local_steps": 2, "group_size": 3},
    {"name": "elastic_averaging", "local_steps": 4},
    {"name": "noloco", "local_steps": 4},
    {"name": "scaffold", "local_steps": 4},
    {"name": "fednova", "local_steps": 4},
    {"name": "push_sum", "graph": "random", "overlap": 2},
    {"name": "sparta", "delay": 2},
    {"name": "demo", "decay": 0.9},
]
HSDP = {"name": "zero3", "replicate": 2}
IN_FLIGHT: dict[str, Any] = {**MOMENTUM, "batch_size": 5, "checkpoint_steps": 7}


def of_optimizer(strategy: str) -> dict[str, Any]:
    return {"optimizer": "sgd"} if strategy in ("scaffold", "demo") else {}


GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4, "dropout": 0.2}
INDUCTION = {"name": "induction", "length": 11, "tokens": 15, "samples": 60, "test_samples": 20}
ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 0.01, "epochs": 2}
TOKENS: dict[str, Any] = {"dataset": INDUCTION, "model": GPT, **ADAM}
EXPERTS: dict[str, Any] = {**TOKENS, "model": {**GPT, "experts": 3}, **UNEVEN}
ZERO_BUBBLE = {"name": "pipeline", "schedule": "zero_bubble"}
MESH = {"name": "hybrid", "mesh": {"data": 2, "pipeline": 2}}


@pytest.mark.parametrize(
    ("strategy", "ranks", "fields"),
    [
        pytest.param("all_gather", 2, {**AUGMENTED, **BY_STEPS}, id="dropout and augmentation"),
        pytest.param("all_reduce", 3, SCHEDULE, id="schedule"),
        pytest.param("all_reduce", 2, COSINE, id="schedule of steps"),
        pytest.param(LOCAL, 2, {**MOMENTUM, "batch_size": 10, **BY_STEPS}, id="in a round"),
        *(
            pytest.param(each, 3, {**IN_FLIGHT, **of_optimizer(each["name"])}, id=each["name"])
            for each in WITH_STATE
        ),
        pytest.param("one_shot", 2, {**MOMENTUM, **BY_EPOCHS}, id="own weights"),
        pytest.param(PARTLY, 3, {"batch_size": 5, **BY_STEPS}, id="participation"),
        pytest.param({"name": "tensor_parallel"}, 2, {**TOKENS, **BY_STEPS}, id="tensor"),
        pytest.param("expert_parallel", 2, {**EXPERTS, **BY_STEPS}, id="experts"),
        pytest.param(ZERO_BUBBLE, 2, {**TOKENS, "clip_norm": 0.1, **BY_EPOCHS}, id="pipeline"),
        pytest.param(HSDP, 4, {**MOMENTUM, "batch_size": 5, **BY_STEPS}, id="shards"),
        pytest.param(
            {**HSDP, "name": "fsdp"}, 4, {**MOMENTUM, "batch_size": 5, **BY_STEPS}, id="shards of torch"
        ),
        pytest.param(MESH, 4, {**TOKENS, "epochs": 3, **BY_STEPS}, id="hybrid"),
    ],
)
def test_an_interrupted_run_ends_with_the_same_result(
    strategy: Any, ranks: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pipeline keeps its split points, whatever is measured after the interruption."""

    def measured(seconds: Any) -> None:
        at = "trainer.parallel.pipeline_stage.balanced_split_points"
        monkeypatch.setattr(at, lambda names, _, *others: balanced_split_points(names, seconds, *others))

    run = {"batch_size": 15, "epochs": 3, "clip_norm": 50.0, **fields}
    measured([1.0, 1.0, 9.0, 9.0])
    whole = train(strategy, ranks, tmp_path / "whole", **run)
    assert not whole.of("resumed")
    for at in (whole.results[0].steps // 2 + 1, 3):  # the second attempt resumes and is interrupted, too
        interrupt(at, tmp_path / "below", strategy, ranks, **run)
    measured([9.0, 9.0, 1.0, 1.0])
    resumed = train(strategy, ranks, tmp_path / "below", **run)
    assert comparable(resumed) == comparable(whole)
    assert [len(resumed.of("resumed", rank)) for rank in range(ranks)] == [1] * ranks


# A run of two ranks, with 6 steps per epoch

RUN: dict[str, Any] = {"epochs": 3, "checkpoint_steps": 3}
NEWEST, BEFORE = "epoch-00001-step-0000006", "epoch-00001-step-0000003"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint directory of a run that is interrupted in epoch 3."""
    directory = tmp_path_factory.mktemp("once")
    interrupt(14, directory, "all_reduce", 2, **RUN)
    assert {path.name for path in directory.iterdir()} == {NEWEST, BEFORE}
    return directory


@pytest.fixture
def interrupted(once: Path, tmp_path: Path) -> Path:
    return Path(copytree(once, tmp_path / "interrupted"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train("all_reduce", 2, tmp_path_factory.mktemp("whole"), **RUN)


def test_checkpoints_are_written_at_their_interval_but_not_after_the_last_step(whole: Training) -> None:
    places = [(0, 3), (0, 6), (1, 3), (1, 6), (2, 3)]
    assert steps_of(whole, "checkpoint") == [(rank, *at) for rank in range(2) for at in places]
    written, result = [event.fields for event in whole.of("checkpoint", 1)], whole.results[1]
    assert all(each["seconds"] > 0 and each["bytes"] > 4 * result.parameters for each in written)
    assert sum(each["seconds"] for each in written) <= result.seconds["checkpoint"]


def damage(path: Path) -> None:
    """Flip one bit in the middle of the weights."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


ALL = [(rank, 1, step) for rank in range(2) for step in (6, 3)]


@pytest.mark.parametrize(
    ("damaged", "missing", "at", "skipped"),
    [
        ("", "", (1, 6), []),
        (f"{NEWEST}/rank-1.pt", "", (1, 3), [(0, 1, 6), (1, 1, 6)]),
        ("", f"{NEWEST}/rank-0.pt", (1, 3), [(1, 1, 6)]),
        (f"{NEWEST}/rank-1.pt", f"{BEFORE}/rank-0.pt", None, [(0, 1, 6), (1, 1, 6), (1, 1, 3)]),
        ("sources", "", None, ALL),
    ],
)
def test_all_ranks_resume_from_the_newest_complete_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
    interrupted: Path,
    whole: Training,
    damaged: str,
    missing: str,
    at: tuple[int, int] | None,
    skipped: list[tuple[int, int, int]],
) -> None:
    if damaged == "sources":
        monkeypatch.setattr(checkpoint_store, "source_digest", lambda: "of these")
    elif damaged:
        damage(interrupted / damaged)
    if missing:
        (interrupted / missing).unlink()
    resumed = train("all_reduce", 2, interrupted, **RUN)
    assert comparable(resumed) == comparable(whole)
    assert steps_of(resumed, "resumed") == [(rank, *at) for rank in range(2) if at]
    assert steps_of(resumed, "checkpoint_skipped") == skipped


def test_a_resumption_is_counted_and_unused_checkpoints_are_removed(interrupted: Path) -> None:
    """Otherwise, files of two attempts could be combined into one checkpoint."""
    damage(interrupted / NEWEST / "rank-1.pt")
    interrupt(1, interrupted, "all_reduce", 2, **RUN)  # no new checkpoint
    assert [path.name for path in interrupted.glob("epoch-*")] == [BEFORE]
    resumed = train("all_reduce", 2, interrupted, **RUN)
    fields = [resumed.of("resumed", rank)[0].fields for rank in range(2)]
    assert [(each["times"], each["steps_taken"]) for each in fields] == [(2, 9), (None, 9)]
    assert all(0 < each["age_s"] < 600 for each in fields)


def test_an_incompatible_checkpoint_is_named(interrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "restore", lambda _, state: state["other"])
    with pytest.raises(CheckpointError, match=f"epoch 1 and 6 steps .*'other'.*; remove {interrupted}"):
        train("all_reduce", 2, interrupted, **RUN)
    with pytest.raises(CheckpointError, match="SHARDYARD_CHECKPOINTS is not set"):
        train("all_reduce", 2, None, **RUN)


def test_epochs_before_the_checkpoint_count(tmp_path: Path) -> None:
    """For patience, and in the times of phases."""
    run: dict[str, Any] = {"epochs": 5, "target_accuracy": 0.001, "patience": 3, "checkpoint_epochs": 1}
    interrupt(14, tmp_path, "all_reduce", 2, **run)  # in epoch 3
    resumed = train("all_reduce", 2, tmp_path, **run)
    assert resumed.of("resumed")[0].fields["epoch"] == 2
    epochs = [event.fields for event in resumed.of("epoch", 1)]
    assert [each["epoch"] for each in epochs] == [1, 2, 3]
    result = resumed.results[1]
    assert epochs[0]["train_s"] < epochs[1]["train_s"] < epochs[2]["train_s"] <= result.train_s
    booked = sum(result.seconds.values()) - result.seconds["evaluate"]
    assert result.train_s == pytest.approx(booked, abs=1e-4)
    assert result.seconds["checkpoint"] > 0
