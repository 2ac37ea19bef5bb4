"""Runs that are cut off and go on: the same weights, the same account of what was done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.training import SMALL, Training, train
from trainer.spec.run_spec import RunSpec
from trainer.training import checkpoint_store as checkpoints
from trainer.training.checkpoint_store import CheckpointError, CheckpointStore, Position
from trainer.training.replica import Replica

LENET = {"name": "lenet", "dropout": 0.3}
WIDE = {"name": "wide_resnet", "widen": 1}
PACE = {"lr_scaling": "linear", "warm_up_epochs": 2}
SYNC = {**WIDE, "norm": "sync_batch"}
# Parts of 68 and 52 samples, or of 50, 38 and 32.
UNEVEN = {"name": "quantity", "imbalance": 0.4}
IMAGES = {"name": "synthetic", "samples": 120, "test_samples": 40, "noise": 1.0}
SMALL_ONES = {**IMAGES, "height": 8, "width": 8}


class Killed(Exception):
    """What a test cuts a training off with."""


def cut_off(
    monkeypatch: pytest.MonkeyPatch, at: int, checkpoints: Path, strategy: Any, ranks: int, **fields: Any
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
            train(strategy, ranks, checkpoints, **fields)


def account(training: Training) -> list[Any]:
    """What must not depend on whether a run was cut off: all but times and memory."""
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


REPORTED = ("partition", "coverage", "epoch")


TRAININGS: list[tuple[Any, int, dict[str, Any]]] = [
    ("serial", 1, {"optimizer": "adam", "model": LENET, "batch_size": 20}),
    ("all_reduce", 3, {"optimizer": "momentum", "partitioner": UNEVEN, **PACE}),
    ("all_reduce", 2, {"optimizer": "adam", "model": WIDE, "dataset": SMALL_ONES}),
    ("all_reduce", 2, {"model": SYNC, "partitioner": UNEVEN, "dataset": SMALL_ONES}),
    ({"name": "all_reduce", "uneven": "pad", "compression": "fp16"}, 2, {"partitioner": UNEVEN}),
    ("all_gather", 2, {"model": LENET, "augmentation": {"name": "standard", "saturation": 0}}),
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
    for at in (8, 5):  # the second attempt goes on, and is cut off too
        cut_off(monkeypatch, at, tmp_path / "cut", strategy, ranks, **run)
    cut = train(strategy, ranks, tmp_path / "cut", **run)
    assert cut.of("resumed")
    assert not whole.of("resumed")
    assert account(cut) == account(whole)


def checkpoints_of(training: Training, rank: int = 0) -> list[tuple[int, int]]:
    return [(event.fields["epoch"], event.fields["step"]) for event in training.of("checkpoint", rank)]


def test_checkpoints_are_written_at_their_interval(tmp_path: Path) -> None:
    """6 steps an epoch; none at the very end, where there is nothing left to go on with."""
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


def test_the_seconds_of_a_run_that_went_on_are_those_of_the_work_in_its_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run: dict[str, Any] = {"epochs": 3, "batch_size": 10, "checkpoint_epochs": 1}
    cut_off(monkeypatch, 16, tmp_path, "all_reduce", 2, **run)  # in epoch 3, of 6 steps
    before = CheckpointStore(tmp_path, RunSpec.model_validate(spec(run)).key, 1, 2).read(Position(2, 0))[0]
    went_on = train("all_reduce", 2, tmp_path, **run)
    for rank, result in enumerate(went_on.results):
        booked = sum(result.seconds.values()) - result.seconds["evaluate"]
        assert result.train_s == pytest.approx(booked, abs=1e-4)
        assert result.seconds["checkpoint"] > 0
        (again,) = [event for event in went_on.of("epoch", rank) if event.fields["epoch"] == 2]
        assert result.train_s > again.fields["train_s"] > 0
    # All phases together: at the end, time without a core is taken out of those that had work.
    kept, whole = before["clock"]["seconds"], went_on.results[1].seconds
    assert sum(whole.values()) > sum(kept.values()) > kept["compute"] > 0


def test_epochs_before_the_checkpoint_count_for_patience(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run: dict[str, Any] = {"epochs": 5, "batch_size": 10, "target_accuracy": 0.001, "patience": 3}
    run["checkpoint_epochs"] = 1
    cut_off(monkeypatch, 14, tmp_path, "all_reduce", 2, **run)  # in epoch 3, of 6 steps
    went_on = train("all_reduce", 2, tmp_path, **run)
    assert went_on.of("resumed")[0].fields["epoch"] == 2
    assert [event.fields["epoch"] for event in went_on.of("epoch")] == [1, 2, 3]


def spec(run: dict[str, Any]) -> dict[str, Any]:
    """What `train` makes of a run of two ranks."""
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
def cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """CheckpointStore of a run of two ranks that was cut off in epoch 3."""
    cut_off(monkeypatch, 14, tmp_path, "all_reduce", 2, **RUN)
    assert {path.name for path in tmp_path.iterdir()} == {NEWEST, BEFORE}
    return tmp_path


def resumed_from(cut: Path) -> tuple[list[Any], list[tuple[int, int, int]]]:
    """Where each rank resumed; (rank, epoch, step) of skipped checkpoints."""
    training = train("all_reduce", 2, cut, **RUN)
    whole = train("all_reduce", 2, cut / "whole", **RUN)
    assert account(training) == account(whole)
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


def test_a_run_resumes_from_the_newest_checkpoint(cut: Path) -> None:
    assert resumed_from(cut) == ([[(1, 6)], [(1, 6)]], [])


def test_all_ranks_resume_earlier_if_one_file_is_damaged(cut: Path) -> None:
    damage(cut / NEWEST / "rank-1.pt")
    assert resumed_from(cut) == (
        [[(1, 2)], [(1, 2)]],
        [(0, 1, 6), (1, 1, 6)],
    )


def test_all_ranks_resume_earlier_if_one_file_is_missing(cut: Path) -> None:
    (cut / NEWEST / "rank-0.pt").unlink()
    assert resumed_from(cut) == ([[(1, 2)], [(1, 2)]], [(1, 1, 6)])


def test_a_run_starts_again_if_no_checkpoint_is_complete(cut: Path) -> None:
    damage(cut / NEWEST / "rank-1.pt")
    (cut / BEFORE / "rank-0.pt").unlink()
    positions, skipped = resumed_from(cut)
    assert positions == [[], []]
    assert skipped == [
        (0, 1, 6),
        (1, 1, 6),
        (1, 1, 2),
    ]


def test_a_run_starts_again_if_the_sources_changed(monkeypatch: pytest.MonkeyPatch, cut: Path) -> None:
    monkeypatch.setattr(checkpoints, "source_digest", lambda: "of these")
    positions, skipped = resumed_from(cut)
    assert positions == [[], []]
    assert len(skipped) == 4


@pytest.mark.parametrize("lacking", ["replica", "clock"])
def test_an_incompatible_checkpoint_is_named(cut: Path, lacking: str) -> None:
    for rank in range(2):
        store = CheckpointStore(cut, RunSpec.model_validate(spec(RUN)).key, rank, 2)
        state = store.read(Position(1, 6))[0]
        del state[lacking]
        store.write(Position(1, 6), state)
    with pytest.raises(CheckpointError) as raised:
        train("all_reduce", 2, cut, **RUN)
    for fact in ("epoch 1 and 6 steps", f"KeyError: '{lacking}'", f"remove {cut}"):
        assert fact in str(raised.value)


def test_unused_checkpoints_are_removed(monkeypatch: pytest.MonkeyPatch, cut: Path) -> None:
    """Or one rank's of this attempt and another's of the next might pass for one."""
    damage(cut / NEWEST / "rank-1.pt")
    cut_off(monkeypatch, 1, cut, "all_reduce", 2, **RUN)
    assert {path.name for path in cut.glob("epoch-*/*")} == {"rank-0.pt", "rank-1.pt"}
    assert [path.name for path in cut.glob("epoch-*")] == [BEFORE]
    (cut / BEFORE / "rank-1.pt").unlink()
    cut_off(monkeypatch, 1, cut, "all_reduce", 2, **RUN)
    assert list(cut.glob("epoch-*")) == []


def damage(path: Path) -> None:
    """One bit, in the middle of the weights."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_resumptions_are_counted(monkeypatch: pytest.MonkeyPatch, cut: Path) -> None:
    cut_off(monkeypatch, 1, cut, "all_reduce", 2, **RUN)  # it has got no further
    training = train("all_reduce", 2, cut, **RUN)
    assert [training.of("resumed", rank)[0].fields["times"] for rank in range(2)] == [2, None]


def test_a_run_that_starts_again_resets_the_count(monkeypatch: pytest.MonkeyPatch, cut: Path) -> None:
    cut_off(monkeypatch, 1, cut, "all_reduce", 2, **RUN)  # it went on, which is noted
    for checkpoint in cut.glob("epoch-*/rank-1.pt"):
        damage(checkpoint)
    cut_off(monkeypatch, 9, cut, "all_reduce", 2, **RUN)
    assert train("all_reduce", 2, cut, **RUN).of("resumed")[0].fields["times"] == 1


def test_checkpoints_need_a_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="SHARDYARD_CHECKPOINTS is not set"):
        train("all_reduce", 2, None, **RUN)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"/file/below: .*Not a directory"):
        train("all_reduce", 2, tmp_path / "file" / "below", **RUN)
