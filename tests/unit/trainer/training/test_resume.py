"""Interrupted runs resume from their checkpoints: the same weights and the same events as uninterrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.training import SMALL, Training, train
from trainer.models.split_points import balanced_split_points
from trainer.spec.run_spec import RunSpec
from trainer.training import checkpoint_store as checkpoints
from trainer.training.checkpoint_store import CheckpointError, CheckpointStore, Position
from trainer.training.replica import Replica

LENET = {"name": "lenet", "dropout": 0.3}
WIDE = {"name": "wide_resnet", "widen": 1}
LR_SCHEDULE = {"lr_scaling": "linear", "warm_up_epochs": 2}
SYNC = {**WIDE, "norm": "sync_batch"}
# Parts of 68 and 52 samples on two ranks; 50, 38 and 32 on three.
UNEVEN = {"name": "quantity", "imbalance": 0.4}
IMAGES = {"name": "synthetic", "samples": 120, "test_samples": 40, "noise": 1.0}
SMALL_IMAGES = {**IMAGES, "height": 8, "width": 8}


class Killed(Exception):
    """Interrupts training."""


def interrupt(
    monkeypatch: pytest.MonkeyPatch, at: int, checkpoints: Path, strategy: Any, ranks: int, **fields: Any
) -> None:
    """Train until a rank is about to take its step `at`, counted from 1 in the attempt."""
    steps: dict[int, int] = {}
    step = Replica.step

    def interrupting_step(self: Replica) -> None:
        steps[id(self)] = steps.get(id(self), 0) + 1
        if steps[id(self)] == at:
            raise Killed
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "step", interrupting_step)
        with pytest.raises(Killed):
            train(strategy, ranks, checkpoints, **fields)


def comparable(training: Training) -> list[Any]:
    """Events and results without times and memory: independent of interruptions."""
    reported = [
        [(event.kind, {**event.fields, "train_s": 0}) for event in events if event.kind in REPORTED]
        for events in training.events
    ]
    results = [
        result.model_copy(
            update={
                "train_s": 0,
                "work_cpu_s": 0,
                "seconds": {},
                "peak_memory_mb": 0,
                "wait_s_by_rank": None,
            }
        )
        for result in training.results
    ]
    return [reported, results]


# All ranks take part in the last round: a rank without steps since it resumed holds no gradient.
ALTERNATING = {"schedule": [[0, 2], [1], [0, 1, 2]]}
REPORTED = ("partition", "coverage", "epoch")


TRAININGS: list[tuple[Any, int, dict[str, Any]]] = [
    ("serial", 1, {"optimizer": "adam", "model": LENET, "batch_size": 20}),
    ("all_reduce", 3, {"optimizer": "momentum", "partitioner": UNEVEN, **LR_SCHEDULE}),
    ("all_reduce", 2, {"optimizer": "adam", "model": WIDE, "dataset": SMALL_IMAGES}),
    ("all_reduce", 2, {"model": SYNC, "partitioner": UNEVEN, "dataset": SMALL_IMAGES}),
    ({"name": "all_reduce", "uneven": "pad", "compression": "fp16"}, 2, {"partitioner": UNEVEN}),
    ("all_gather", 2, {"model": LENET, "augmentation": {"name": "standard", "saturation": 0}}),
    ("reduce_broadcast", 2, {"optimizer": "adamw", "partitioner": "random_sampling"}),
    ({"name": "local_sgd", "local_steps": 4}, 2, {"optimizer": "momentum", "partitioner": UNEVEN}),
    ({"name": "local_sgd", "local_steps": 3, "optimizer_state": "reset"}, 2, {"optimizer": "adam"}),
    ({"name": "local_sgd", "local_steps": None}, 2, {"model": LENET}),
    ("one_shot", 2, {"optimizer": "momentum", "model": LENET, "partitioner": UNEVEN}),
    ({"name": "local_sgd", "local_steps": 4, "participation": ALTERNATING}, 3, {"batch_size": 5}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "ranks", "fields", "interval"),
    [
        (*training, {interval: every})
        for training in TRAININGS
        for interval, every in (("checkpoint_steps", 2), ("checkpoint_epochs", 1))
        if (training[0], interval) != ("one_shot", "checkpoint_steps")
    ],
)
def test_an_interrupted_run_ends_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    strategy: Any,
    ranks: int,
    fields: dict[str, Any],
    interval: dict[str, int],
) -> None:
    run = {"epochs": 3, "batch_size": 10, "dataset": IMAGES, **fields, **interval}
    whole = train(strategy, ranks, tmp_path / "whole", **run)
    for at in (8, 5):  # the second attempt resumes and is interrupted, too
        interrupt(monkeypatch, at, tmp_path / "interrupted", strategy, ranks, **run)
    interrupted = train(strategy, ranks, tmp_path / "interrupted", **run)
    assert interrupted.of("resumed")
    assert not whole.of("resumed")
    assert comparable(interrupted) == comparable(whole)


TOKENS = {"name": "induction", "length": 11, "tokens": 15, "samples": 60, "test_samples": 20}
GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4, "dropout": 0.2}
SPLIT: list[tuple[Any, int, dict[str, Any]]] = [
    ("zero2", 2, {"partitioner": UNEVEN}),
    ("tensor_parallel", 2, {}),
    ({"name": "tensor_parallel", "sequence_parallel": True}, 2, {}),
    ("context_parallel", 2, {}),
    ("expert_parallel", 2, {"model": {**GPT, "experts": 3}, "partitioner": UNEVEN}),
    ("pipeline", 2, {}),
    ({"name": "pipeline", "schedule": "zero_bubble"}, 2, {"clip_norm": 0.1}),
    ({"name": "pipeline", "schedule": "interleaved", "chunks": 2}, 2, {}),
    ({"name": "hybrid", "mesh": {"data": 2, "pipeline": 2}}, 4, {"partitioner": UNEVEN}),
    ({"name": "hybrid", "mesh": {"pipeline": 2, "tensor": 2}}, 4, {}),
]


@pytest.mark.parametrize("interval", ["checkpoint_steps", "checkpoint_epochs"])
@pytest.mark.parametrize(("strategy", "ranks", "fields"), SPLIT, ids=str)
def test_a_rank_of_a_split_resumes_with_its_part(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    strategy: Any,
    ranks: int,
    fields: dict[str, Any],
    interval: str,
) -> None:
    """Interrupted in the second epoch. A pipeline keeps its split points, whatever is measured then."""
    run = {"dataset": TOKENS, "model": GPT, "optimizer": "adam", "lr": 0.01, "batch_size": 15, **fields}
    run[interval] = 1

    def measured(seconds: Any) -> Any:
        """Let the choice of split points depend on the attempt."""
        chosen = balanced_split_points
        return lambda names, _, sizes, stages, pairs: chosen(names, seconds, sizes, stages, pairs)

    at = "trainer.parallel.pipeline_stage.balanced_split_points"
    monkeypatch.setattr(at, measured([1.0, 1.0, 9.0, 9.0]))
    whole = train(strategy, ranks, tmp_path / "whole", **run)
    interrupt(monkeypatch, whole.results[0].steps - 1, tmp_path / "interrupted", strategy, ranks, **run)
    monkeypatch.setattr(at, measured([9.0, 9.0, 1.0, 1.0]))
    resumed = train(strategy, ranks, tmp_path / "interrupted", **run)
    assert [len(resumed.of("resumed", rank)) for rank in range(ranks)] == [1] * ranks
    assert comparable(resumed) == comparable(whole)
    np.testing.assert_array_equal(resumed.weights, whole.weights)


def checkpoints_of(training: Training, rank: int = 0) -> list[tuple[int, int]]:
    return [(event.fields["epoch"], event.fields["step"]) for event in training.of("checkpoint", rank)]


def test_checkpoints_are_written_at_their_interval(tmp_path: Path) -> None:
    """6 steps per epoch; no checkpoint after the last step."""
    run: dict[str, Any] = {"epochs": 3, "batch_size": 10}
    by_steps = train("all_reduce", 2, tmp_path / "a", **run, checkpoint_steps=4)
    assert checkpoints_of(by_steps) == checkpoints_of(by_steps, 1) == [(0, 4), (1, 2), (1, 6), (2, 4)]
    assert checkpoints_of(train("all_reduce", 2, tmp_path / "b", **run, checkpoint_steps=6)) == [
        (0, 6),
        (1, 6),
    ]
    assert checkpoints_of(train("one_shot", 2, tmp_path / "c", **run, checkpoint_epochs=1)) == [
        (1, 0),
        (2, 0),
    ]
    assert checkpoints_of(train("one_shot", 2, tmp_path / "d", **run, checkpoint_epochs=2)) == [(2, 0)]
    assert checkpoints_of(train("one_shot", 2, tmp_path / "e", **run)) == []
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "epoch-00001-step-0000006",
        "epoch-00002-step-0000004",
    ]
    assert not (tmp_path / "e").exists()


def test_phase_times_include_epochs_before_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run: dict[str, Any] = {"epochs": 3, "batch_size": 10, "checkpoint_epochs": 1}
    interrupt(monkeypatch, 16, tmp_path, "all_reduce", 2, **run)  # in epoch 3, of 6 steps
    before = CheckpointStore(tmp_path, RunSpec.model_validate(spec(run)).key, 1, 2).read(Position(2, 0))[0]
    resumed = train("all_reduce", 2, tmp_path, **run)
    for rank, result in enumerate(resumed.results):
        booked = sum(result.seconds.values()) - result.seconds["evaluate"]
        assert result.train_s == pytest.approx(booked, abs=1e-4)
        assert result.seconds["checkpoint"] > 0
        (again,) = [event for event in resumed.of("epoch", rank) if event.fields["epoch"] == 2]
        assert result.train_s > again.fields["train_s"] > 0
    # Compare sums over phases: CPU contention is subtracted from phases only at the end.
    saved, whole = before["clock"]["seconds"], resumed.results[1].seconds
    assert sum(whole.values()) > sum(saved.values()) > saved["compute"] > 0


def test_epochs_before_the_checkpoint_count_for_patience(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run: dict[str, Any] = {"epochs": 5, "batch_size": 10, "target_accuracy": 0.001, "patience": 3}
    run["checkpoint_epochs"] = 1
    interrupt(monkeypatch, 14, tmp_path, "all_reduce", 2, **run)  # in epoch 3, of 6 steps
    resumed = train("all_reduce", 2, tmp_path, **run)
    assert resumed.of("resumed")[0].fields["epoch"] == 2
    assert [event.fields["epoch"] for event in resumed.of("epoch")] == [1, 2, 3]


def spec(run: dict[str, Any]) -> dict[str, Any]:
    """The spec that `train` builds for a run of two ranks."""
    return {
        **SMALL,
        "strategy": "all_reduce",
        "nodes": 2,
        "transport": "memory",
        **run,
        "save_weights": True,
    }


# Which checkpoint a run resumes from


RUN: dict[str, Any] = {"epochs": 3, "batch_size": 10, "checkpoint_steps": 4}
NEWEST, BEFORE = "epoch-00001-step-0000006", "epoch-00001-step-0000002"


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Checkpoint directory of a run of two ranks, interrupted in epoch 3."""
    interrupt(monkeypatch, 14, tmp_path, "all_reduce", 2, **RUN)
    assert {path.name for path in tmp_path.iterdir()} == {NEWEST, BEFORE}
    return tmp_path


def resumed_from(interrupted: Path) -> tuple[list[Any], list[tuple[int, int, int]]]:
    """Where each rank resumed; (rank, epoch, step) of skipped checkpoints."""
    training = train("all_reduce", 2, interrupted, **RUN)
    whole = train("all_reduce", 2, interrupted / "whole", **RUN)
    assert comparable(training) == comparable(whole)
    positions = [
        [(event.fields["epoch"], event.fields["step"]) for event in training.of("resumed", rank)]
        for rank in range(2)
    ]
    skipped = [
        (rank, event.fields["epoch"], event.fields["step"])
        for rank in range(2)
        for event in training.of("checkpoint_skipped", rank)
    ]
    return positions, skipped


def test_a_run_resumes_from_the_newest_checkpoint(interrupted: Path) -> None:
    assert resumed_from(interrupted) == ([[(1, 6)], [(1, 6)]], [])


def test_all_ranks_resume_earlier_if_one_file_is_damaged(interrupted: Path) -> None:
    damage(interrupted / NEWEST / "rank-1.pt")
    assert resumed_from(interrupted) == (
        [[(1, 2)], [(1, 2)]],
        [(0, 1, 6), (1, 1, 6)],
    )


def test_all_ranks_resume_earlier_if_one_file_is_missing(interrupted: Path) -> None:
    (interrupted / NEWEST / "rank-0.pt").unlink()
    assert resumed_from(interrupted) == ([[(1, 2)], [(1, 2)]], [(1, 1, 6)])


def test_run_starts_over_if_no_checkpoint_is_complete(interrupted: Path) -> None:
    damage(interrupted / NEWEST / "rank-1.pt")
    (interrupted / BEFORE / "rank-0.pt").unlink()
    positions, skipped = resumed_from(interrupted)
    assert positions == [[], []]
    assert skipped == [
        (0, 1, 6),
        (1, 1, 6),
        (1, 1, 2),
    ]


def test_run_starts_over_if_the_sources_changed(monkeypatch: pytest.MonkeyPatch, interrupted: Path) -> None:
    monkeypatch.setattr(checkpoints, "source_digest", lambda: "of these")
    positions, skipped = resumed_from(interrupted)
    assert positions == [[], []]
    assert len(skipped) == 4


@pytest.mark.parametrize("missing_key", ["replica", "clock"])
def test_an_incompatible_checkpoint_is_named(interrupted: Path, missing_key: str) -> None:
    for rank in range(2):
        store = CheckpointStore(interrupted, RunSpec.model_validate(spec(RUN)).key, rank, 2)
        state = store.read(Position(1, 6))[0]
        del state[missing_key]
        store.write(Position(1, 6), state)
    with pytest.raises(CheckpointError) as raised:
        train("all_reduce", 2, interrupted, **RUN)
    for fact in ("epoch 1 and 6 steps", f"KeyError: '{missing_key}'", f"remove {interrupted}"):
        assert fact in str(raised.value)


def test_unused_checkpoints_are_removed(monkeypatch: pytest.MonkeyPatch, interrupted: Path) -> None:
    """Otherwise, files of two attempts could be combined into one checkpoint."""
    damage(interrupted / NEWEST / "rank-1.pt")
    interrupt(monkeypatch, 1, interrupted, "all_reduce", 2, **RUN)
    assert {path.name for path in interrupted.glob("epoch-*/*")} == {"rank-0.pt", "rank-1.pt"}
    assert [path.name for path in interrupted.glob("epoch-*")] == [BEFORE]
    (interrupted / BEFORE / "rank-1.pt").unlink()
    interrupt(monkeypatch, 1, interrupted, "all_reduce", 2, **RUN)
    assert list(interrupted.glob("epoch-*")) == []


def damage(path: Path) -> None:
    """Flip one bit in the middle of the weights."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_resumptions_are_counted(monkeypatch: pytest.MonkeyPatch, interrupted: Path) -> None:
    interrupt(monkeypatch, 1, interrupted, "all_reduce", 2, **RUN)  # no new checkpoint
    training = train("all_reduce", 2, interrupted, **RUN)
    assert [training.of("resumed", rank)[0].fields["times"] for rank in range(2)] == [2, None]


def test_run_that_starts_over_resets_the_count(monkeypatch: pytest.MonkeyPatch, interrupted: Path) -> None:
    interrupt(monkeypatch, 1, interrupted, "all_reduce", 2, **RUN)  # the resumption is counted
    for checkpoint in interrupted.glob("epoch-*/rank-1.pt"):
        damage(checkpoint)
    interrupt(monkeypatch, 9, interrupted, "all_reduce", 2, **RUN)
    assert train("all_reduce", 2, interrupted, **RUN).of("resumed")[0].fields["times"] == 1


def test_checkpoints_need_a_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="SHARDYARD_CHECKPOINTS is not set"):
        train("all_reduce", 2, None, **RUN)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"/file/below: .*Not a directory"):
        train("all_reduce", 2, tmp_path / "file" / "below", **RUN)
