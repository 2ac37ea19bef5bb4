"""Mistakes in resuming: what is not restored, steps that repeat, checkpoints that do not fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.training import SMALL, Training, train
from trainer.models.split_points import balanced_split_points
from trainer.spec.run_spec import RunSpec
from trainer.training import checkpoint_store
from trainer.training.checkpoint_store import CheckpointError, CheckpointStore, Position
from trainer.training.replica import Replica

LENET = {"name": "lenet", "dropout": 0.3}
# Parts of 68 and 52 samples on two ranks; 50, 38 and 32 on three.
UNEVEN = {"name": "quantity", "imbalance": 0.4}
IMAGES = {"name": "synthetic", "samples": 120, "test_samples": 20, "noise": 1.0}


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
    """Events and results without times and memory: independent of interruptions."""
    kinds = ("partition", "coverage", "epoch")
    reported = [
        [(event.kind, {**event.fields, "train_s": 0}) for event in events if event.kind in kinds]
        for events in training.events
    ]
    measured = {"train_s": 0, "work_cpu_s": 0, "seconds": {}, "peak_memory_mb": 0, "wait_s_by_rank": None}
    return [reported, [result.model_copy(update=measured) for result in training.results]]


BY_STEPS, BY_EPOCHS = {"checkpoint_steps": 2}, {"checkpoint_epochs": 1}
MOMENTUM = {"optimizer": "momentum", "partitioner": UNEVEN}
SCHEDULE = {**MOMENTUM, "lr_scaling": "linear", "warm_up_epochs": 2}
AUGMENTED = {"model": LENET, "augmentation": {"name": "standard", "saturation": 0}}
STATISTICS = {"model": {"name": "wide_resnet", "widen": 1}, "dataset": {**IMAGES, "height": 8, "width": 8}}
# All ranks take part in the last round: a rank without steps since it resumed holds no gradient.
PARTLY = {"name": "local_sgd", "local_steps": 4, "participation": {"schedule": [[0, 2], [1], [0, 1, 2]]}}
RESUMED: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "adam, dropout": ("serial", 1, {"optimizer": "adam", "model": LENET, "batch_size": 20, **BY_STEPS}),
    "schedule": ("all_reduce", 3, {**SCHEDULE, **BY_EPOCHS}),
    "statistics": ("all_reduce", 2, {**STATISTICS, **BY_STEPS}),
    "pad": ({"name": "all_reduce", "uneven": "pad"}, 2, {"partitioner": UNEVEN, **BY_STEPS}),
    "augmentation": ("all_gather", 2, {**AUGMENTED, **BY_STEPS}),
    "in a round": ({"name": "local_sgd", "local_steps": 4}, 2, {**MOMENTUM, **BY_STEPS}),
    "own weights": ("one_shot", 2, {**MOMENTUM, **BY_EPOCHS}),
    "participation": (PARTLY, 3, {"batch_size": 5, **BY_STEPS}),
}


@pytest.mark.parametrize("name", RESUMED)
def test_an_interrupted_run_ends_with_the_same_result(name: str, tmp_path: Path) -> None:
    strategy, ranks, fields = RESUMED[name]
    run = {"epochs": 3, "batch_size": 10, "dataset": IMAGES, "clip_norm": 50.0, **fields}
    whole = train(strategy, ranks, tmp_path / "whole", **run)
    for at in (8, 5):  # the second attempt resumes and is interrupted, too
        interrupt(at, tmp_path / "interrupted", strategy, ranks, **run)
    interrupted = train(strategy, ranks, tmp_path / "interrupted", **run)
    (resumed,) = interrupted.of("resumed")
    taken = resumed.fields["steps_taken"]
    assert whole.results[0].steps > taken > resumed.fields["step"]
    assert not whole.of("resumed")
    assert comparable(interrupted) == comparable(whole)


TOKENS = {"name": "induction", "length": 11, "tokens": 15, "samples": 60, "test_samples": 20}
GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4, "dropout": 0.2}
SPLITS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "zero2": ("zero2", 2, {"partitioner": UNEVEN, **BY_STEPS}),
    "tensor": ({"name": "tensor_parallel", "sequence_parallel": True}, 2, BY_STEPS),
    "context": ("context_parallel", 2, BY_EPOCHS),
    "experts": ("expert_parallel", 2, {"model": {**GPT, "experts": 3}, "partitioner": UNEVEN, **BY_STEPS}),
    "pipeline": ({"name": "pipeline", "schedule": "zero_bubble"}, 2, {"clip_norm": 0.1, **BY_EPOCHS}),
    "interleaved": ({"name": "pipeline", "schedule": "interleaved", "chunks": 2}, 2, BY_STEPS),
    "hybrid": ({"name": "hybrid", "mesh": {"data": 2, "pipeline": 2}}, 4, BY_STEPS),
}


@pytest.mark.parametrize("name", SPLITS)
def test_a_rank_of_a_split_resumes_with_its_part(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Interrupted in the second epoch. A pipeline keeps its split points, whatever is measured then."""
    strategy, ranks, fields = SPLITS[name]
    run = {"dataset": TOKENS, "model": GPT, "optimizer": "adam", "lr": 0.01, "batch_size": 15, **fields}

    def measured(seconds: Any) -> None:
        """Let the choice of split points depend on the attempt."""
        chosen = balanced_split_points
        at = "trainer.parallel.pipeline_stage.balanced_split_points"
        monkeypatch.setattr(at, lambda names, _, *others: chosen(names, seconds, *others))

    measured([1.0, 1.0, 9.0, 9.0])
    whole = train(strategy, ranks, tmp_path / "whole", **run)
    interrupt(whole.results[0].steps - 1, tmp_path / "interrupted", strategy, ranks, **run)
    measured([9.0, 9.0, 1.0, 1.0])
    resumed = train(strategy, ranks, tmp_path / "interrupted", **run)
    assert [len(resumed.of("resumed", rank)) for rank in range(ranks)] == [1] * ranks
    assert comparable(resumed) == comparable(whole)
    np.testing.assert_array_equal(resumed.weights, whole.weights)


@pytest.mark.parametrize(
    ("strategy", "interval", "expected"),
    [
        ("all_reduce", {"checkpoint_steps": 4}, [(0, 4), (1, 2), (1, 6), (2, 4)]),
        ("all_reduce", {"checkpoint_steps": 6}, [(0, 6), (1, 6)]),
        ("one_shot", {"checkpoint_epochs": 1}, [(1, 0), (2, 0)]),
        ("one_shot", {"checkpoint_epochs": 2}, [(2, 0)]),
        ("one_shot", {}, []),
    ],
    ids=str,
)
def test_checkpoints_are_written_at_their_interval(
    tmp_path: Path, strategy: str, interval: dict[str, int], expected: list[tuple[int, int]]
) -> None:
    """6 steps per epoch; no checkpoint after the last step, and the last two are kept."""
    done = train(strategy, 2, tmp_path / "below", epochs=3, **interval)
    for rank in range(2):
        found = [(each.fields["epoch"], each.fields["step"]) for each in done.of("checkpoint", rank)]
        assert found == expected
        assert all(each.fields["seconds"] > 0 for each in done.of("checkpoint", rank))
    kept = [f"epoch-{epoch:05}-step-{step:07}" for epoch, step in expected[-2:]]
    assert sorted(path.name for path in tmp_path.glob("below/*")) == kept
    assert (tmp_path / "below").exists() == bool(interval)


# An interrupted run of two ranks

RUN: dict[str, Any] = {"epochs": 3, "checkpoint_steps": 4}
NEWEST, BEFORE = "epoch-00001-step-0000006", "epoch-00001-step-0000002"


def store(directory: Path, rank: int, **run: Any) -> CheckpointStore:
    """The store of a rank of the run that `train` makes."""
    fields = {**SMALL, "strategy": "all_reduce", "nodes": 2, "transport": "memory", **run}
    return CheckpointStore(directory, RunSpec.model_validate({**fields, "save_weights": True}).key, rank, 2)


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """Checkpoint directory of a run of two ranks, interrupted in epoch 3."""
    interrupt(14, tmp_path, "all_reduce", 2, **RUN)
    assert {path.name for path in tmp_path.iterdir()} == {NEWEST, BEFORE}
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train("all_reduce", 2, tmp_path_factory.mktemp("whole"), **RUN)


def damage(path: Path) -> None:
    """Flip one bit in the middle of the weights."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damaged", "missing", "at", "skipped"),
    [
        ([], [], (1, 6), []),
        ([f"{NEWEST}/rank-1.pt"], [], (1, 2), [(0, 1, 6), (1, 1, 6)]),
        ([], [f"{NEWEST}/rank-0.pt"], (1, 2), [(1, 1, 6)]),
        ([f"{NEWEST}/rank-1.pt"], [f"{BEFORE}/rank-0.pt"], None, [(0, 1, 6), (1, 1, 6), (1, 1, 2)]),
        (["sources"], [], None, [(rank, 1, step) for rank in range(2) for step in (6, 2)]),
    ],
    ids=["newest", "damaged", "missing", "none complete", "other sources"],
)
def test_all_ranks_resume_from_the_newest_complete_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
    interrupted: Path,
    whole: Training,
    damaged: list[str],
    missing: list[str],
    at: tuple[int, int] | None,
    skipped: list[tuple[int, int, int]],
) -> None:
    for name in damaged:
        if name == "sources":
            monkeypatch.setattr(checkpoint_store, "source_digest", lambda: "of these")
        else:
            damage(interrupted / name)
    for name in missing:
        (interrupted / name).unlink()
    resumed = train("all_reduce", 2, interrupted, **RUN)
    assert comparable(resumed) == comparable(whole)
    found = {kind: places(resumed, kind) for kind in ("resumed", "checkpoint_skipped")}
    assert found == {"resumed": [(rank, *at) for rank in range(2) if at], "checkpoint_skipped": skipped}


def places(training: Training, kind: str) -> list[tuple[int, int, int]]:
    """Rank, epoch and step of all events of a kind."""
    ranks = range(len(training.events))
    return [(rank, e.fields["epoch"], e.fields["step"]) for rank in ranks for e in training.of(kind, rank)]


def test_a_resumption_is_counted_and_unused_checkpoints_are_removed(interrupted: Path) -> None:
    """Otherwise, files of two attempts could be combined into one checkpoint."""
    damage(interrupted / NEWEST / "rank-1.pt")
    interrupt(1, interrupted, "all_reduce", 2, **RUN)  # no new checkpoint
    assert [path.name for path in interrupted.glob("epoch-*")] == [BEFORE]
    resumed = train("all_reduce", 2, interrupted, **RUN)
    for rank in range(2):
        (event,) = resumed.of("resumed", rank)
        assert (event.fields["times"], event.fields["steps_taken"]) == (None if rank else 2, 8)
        assert 0 < event.fields["age_s"] < 600


def test_an_incompatible_checkpoint_is_named(interrupted: Path) -> None:
    for missing in ("clock", "replica"):
        for rank in range(2):
            state = store(interrupted, rank, **RUN).read(Position(1, 6))[0]
            del state[missing]
            store(interrupted, rank, **RUN).write(Position(1, 6), state)
        with pytest.raises(CheckpointError) as raised:
            train("all_reduce", 2, interrupted, **RUN)
        for fact in ("epoch 1 and 6 steps", f"KeyError: '{missing}'", f"remove {interrupted}"):
            assert fact in str(raised.value)


def test_epochs_before_the_checkpoint_count(tmp_path: Path) -> None:
    """For patience, and in the times of phases."""
    run: dict[str, Any] = {"epochs": 5, "target_accuracy": 0.001, "patience": 3, "checkpoint_epochs": 1}
    interrupt(14, tmp_path, "all_reduce", 2, **run)  # in epoch 3, of 6 steps
    saved = store(tmp_path, 1, **run).read(Position(2, 0))[0]["clock"]["seconds"]
    resumed = train("all_reduce", 2, tmp_path, **run)
    assert resumed.of("resumed")[0].fields["epoch"] == 2
    assert [event.fields["epoch"] for event in resumed.of("epoch")] == [1, 2, 3]
    # Compare sums over phases: CPU contention is subtracted from phases only at the end.
    result = resumed.results[1]
    assert sum(result.seconds.values()) > sum(saved.values()) > saved["compute"] > 0
    booked = sum(result.seconds.values()) - result.seconds["evaluate"]
    assert result.train_s == pytest.approx(booked, abs=1e-4)
    assert result.seconds["checkpoint"] > 0


def test_checkpoints_need_a_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="SHARDYARD_CHECKPOINTS is not set"):
        train("all_reduce", 2, None, **RUN)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"/file/below: .*Not a directory"):
        train("all_reduce", 2, tmp_path / "file" / "below", **RUN)
