"""Mistakes in stored checkpoints: what survives a crash, what is refused, what a row says about them."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from orchestrator.execution.sweep_runner import _remove_previous_attempt
from orchestrator.results.store import RunPaths
from tests.unit.conftest import event
from tests.unit.orchestrator.execution.test_run_result import row, trained
from tests.unit.training import fields_for
from trainer.core.cgroup import NodeUsage
from trainer.core.events import Event
from trainer.spec.registries import COMPRESSIONS, STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.training import checkpoint_store as module
from trainer.training.checkpoint_store import CheckpointError, CheckpointStore, Position

AT, LATER = Position(2, 13), Position(3, 0)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", "run-key", 0, 2)


def file_of(store: CheckpointStore) -> Path:
    """The only checkpoint, once it is written."""
    store.write(AT, state())
    (file,) = store.directory.glob("*/*")
    return file


def state(number: float = 1.0) -> dict[str, Any]:
    return {"weights": torch.full((3, 2), number), "steps": 5, "loss": None}


def test_state_round_trip_and_where_it_is(store: CheckpointStore) -> None:
    assert store.positions() == []
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        store.read(AT)
    written = store.write(AT, state(0.1))
    (file,) = store.directory.glob("*/*")
    assert (file.parent.name, file.name) == ("epoch-00002-step-0000013", "rank-0.pt")
    assert file.stat().st_size == written
    read, taken = store.read(AT)
    assert torch.equal(read["weights"], state(0.1)["weights"])
    assert (read["steps"], read["loss"]) == (5, None)
    assert abs(taken - file.stat().st_mtime) < 5


def test_a_crash_keeps_earlier_checkpoints(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is synced before it is renamed, and its directory afterwards."""
    done: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (done.append(name), real(*a)))
    store.write(AT, state(1))
    assert done == ["fsync", "replace", "fsync"]

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        for position in (AT, LATER):
            with pytest.raises(KeyboardInterrupt):
                store.write(position, state(2))
    assert store.positions() == [AT]
    assert torch.equal(store.read(AT)[0]["weights"], state(1)["weights"])
    store.write(LATER, state(3))  # overwrites the temporary file of the crash
    assert store.positions() == [LATER, AT]


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777], ids=oct)
def test_directories_inherit_the_mode_of_their_parent(tmp_path: Path, mode: int) -> None:
    """Local checkpoints stay private; `make_world_writable` opens the mounted directory to containers."""
    tmp_path.chmod(mode)
    store = CheckpointStore(tmp_path / "checkpoints", "run-key", 0, 2)
    store.open()
    store.write(AT, state())
    made = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert [path.stat().st_mode & 0o777 for path in made] == [mode, mode]


def test_symbolic_links_are_not_followed(store: CheckpointStore, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("another's")
    for target, act in (
        ("epoch-00002-step-0000013/rank-0.tmp", lambda: store.write(AT, state())),
        ("resumed", store.record_resumption),
    ):
        link = store.directory / target
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(victim)
        with pytest.raises(CheckpointError, match="Too many levels of symbolic links"):
            act()
    assert victim.read_text() == "another's"


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_is_no_checkpoint(store: CheckpointStore, kind: str) -> None:
    path = file_of(store)
    path.rename(path.with_name("moved"))
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("moved")
    assert store.positions() == [AT]
    with pytest.raises(CheckpointError, match=f"cannot be read: is a .*{kind}"):
        store.read(AT)


def test_damage_is_detected(store: CheckpointStore) -> None:
    """A file cut off anywhere, or with a flipped bit; and no pickled code is executed."""
    file = file_of(store)
    whole = file.read_bytes()
    damaged = [whole[:length] for length in (0, 1, 50, len(whole) - 1)]
    flipped = range(whole.index(b"\n"), len(whole), 97)
    damaged += [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in flipped]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            store.read(AT)
    store.write(AT, {"loss": module.CheckpointError("an object of any class")})
    with pytest.raises(CheckpointError, match="UnpicklingError"):
        store.read(AT)


def test_checkpoint_of_another_run_rank_or_version_is_rejected(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, directory = file_of(store), store.directory

    def refused(run: str = "run-key", rank: int = 0, ranks: int = 2, at: Position = AT) -> str:
        with pytest.raises(CheckpointError) as caught:
            CheckpointStore(directory, run, rank, ranks).read(at)
        return str(caught.value)

    assert refused(run="another") == "its run is run-key, not another"
    assert refused(ranks=3) == "its ranks is 2, not 3"
    file.with_name("rank-1.pt").write_bytes(file.read_bytes())
    assert refused(rank=1) == "its rank is 0, not 1"
    (directory / "epoch-00003-step-0000000").mkdir()
    (directory / "epoch-00003-step-0000000" / "rank-0.pt").write_bytes(file.read_bytes())
    assert refused(at=LATER) == "its position is [2, 13], not [3, 0]"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9")
        assert refused().endswith("this is torch 9.9")
    monkeypatch.setattr(module, "source_digest", lambda: "0123456789abcdef")
    assert refused().endswith("these are 0123456789abcdef")


def test_source_digest_changes_with_any_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOURCES", tmp_path)
    digest = module.source_digest.__wrapped__
    names = [digest()]
    for file, text in [("a.py", "x = 1"), ("a.py", "x = 2"), ("below/b.py", "x = 2"), ("c.py", "")]:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
        names.append(digest())
    assert len({*names}) == len(names)
    (tmp_path / "notes.txt").write_text("no source")
    assert digest() == names[-1]


def test_errors_name_the_directory(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    file = store.directory.parent / "file"
    file.touch()
    with pytest.raises(CheckpointError, match=f"{file}: .*Not a directory"):
        CheckpointStore(file, "run-key", 0, 2).positions()
    buffer = io.BytesIO()
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(module, "io", SimpleNamespace(BytesIO=lambda: buffer))
    with pytest.raises(CheckpointError, match=f"{store.directory}: .*No space left on device") as failed:
        store.write(AT, state())
    buffer.close()  # no frame of the traceback has a view of it, which Python 3.13 reports when it collects
    assert failed.tb


def test_prune_keeps_the_last_two(store: CheckpointStore) -> None:
    """Of this rank; without a position it removes all, and the count of resumptions."""
    other = CheckpointStore(store.directory, "run-key", 1, 2)
    for steps in range(5):
        store.write(Position(1, steps), state())
    other.write(Position(1, 0), state())
    store.prune(Position(1, 3))
    assert store.positions() == [Position(1, 3), Position(1, 2)]
    assert other.positions() == [Position(1, 0)]
    assert sorted(path.name[-1] for path in store.directory.iterdir()) == ["0", "2", "3"]
    assert [store.record_resumption() for _ in range(2)] == [1, 2]
    store.prune(None)
    assert (store.positions(), other.positions()) == ([], [Position(1, 0)])
    assert store.record_resumption() == 1


def test_position_numbers_increase() -> None:
    positions = [Position(0, 1), Position(0, 2**31), Position(1, 0), Position(1, 5), Position(9_999, 2**31)]
    assert sorted(positions, key=lambda each: each.number) == sorted(positions) == positions
    assert len({each.number for each in positions}) == len(positions)


# Which runs may set an interval


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "all_reduce", "nodes": 2, **fields})


def error_message(**fields: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        spec(**fields)
    return str(raised.value.errors()[0]["type"]) + ": " + raised.value.errors()[0]["msg"]


def test_checkpoint_intervals_follow_the_strategy() -> None:
    kinds = {name: STRATEGIES.load(name) for name in STRATEGIES.entries}
    able = {name for name, kind in kinds.items() if kind.checkpoint_intervals}
    assert {"serial", "one_shot", "local_sgd", "ddp", "pipeline"} <= able
    for name, kind in kinds.items():
        nodes = min(max(kind.min_nodes, 2), kind.max_nodes or 99)
        run = {"strategy": name, "nodes": nodes, **fields_for(name)}
        for interval in {"epochs", "steps"} - {*kind.checkpoint_intervals}:
            reported = error_message(**run, **{f"checkpoint_{interval}": 2})
            assert reported.startswith(f"checkpoint_{interval}: ")
            if name in able:
                assert f"checkpoint_{kind.checkpoint_intervals[0]}" in reported
            else:
                assert {*reported.partition("one of ")[2].split(", ")} == able
        for interval in kind.checkpoint_intervals:
            assert spec(**run, **{f"checkpoint_{interval}": 2}).checkpoints


def test_compression_with_error_feedback_has_no_checkpoints() -> None:
    for compression in COMPRESSIONS.entries:
        run = {"strategy": {"name": "all_reduce", "compression": compression}, "checkpoint_steps": 3}
        if compression in ("none", "fp16"):
            assert spec(**run).checkpoints
        else:
            assert error_message(**run).startswith("checkpoint_steps: all_reduce ")


def test_the_interval_is_part_of_the_key() -> None:
    """Checkpoints cost time. A run has at most one interval."""
    runs: list[dict[str, Any]] = [
        {},
        {"checkpoint_epochs": 2},
        {"checkpoint_steps": 2},
        {"checkpoint_steps": 3},
    ]
    assert len({spec(**each).key for each in runs}) == 4
    assert error_message(checkpoint_epochs=1, checkpoint_steps=1).startswith("checkpoint_steps: ")


# Results of resumed and restarted runs


def resumed_run(times: int = 1, taken: float = 3.0) -> list[Any]:
    """Events of two ranks that start at second 10, resume from a checkpoint and succeed.

    taken: time of the checkpoint, in seconds.
    """
    resumed = [
        event("resumed", rank, 64.4, epoch=1, step=7, age_s=64.4 - taken, times=None if rank else times)
        for rank in range(2)
    ]
    return [*trained({}, {}), *resumed]


def restarted(*first: Event, last: list[Event]) -> list[Event]:
    """An attempt in which rank 1 fails, then `last`. first: further events of the failed attempt."""
    lost = [event("start", 0, pid=1), event("start", 1, pid=2), *first]
    lost.append(event("failed", 1, cause="x", peer=False))
    lost.append(event("terminated", 0, cause="stopped by SIGTERM"))
    lost.append(event("epoch", 0, epoch=1, epochs=1, train_s=9.0, loss=9.0, accuracy=0.1, test_loss=9.0))
    again = [
        replace(each, fields={**each.fields, "attempt": 1}) if each.kind == "start" else each
        for each in last
    ]
    return [*lost, *again]


RESUMED = "interrupted and resumed from a checkpoint "
ABSENT = dict.fromkeys(("cpu_s", "throttled_s", "memory_peak_mb", "sent_bytes", "received_bytes"), None)
USAGE = [NodeUsage(name=f"node-{n}", ranks=[n], out_of_memory=0, **ABSENT) for n in range(2)]
TIMES, OVERALL = "start-up and wall time", "start-up time, wall time and what the nodes used"
EARLIER = event("resumed", 0, 11.0, epoch=1, step=2, age_s=8.0, times=1)


@pytest.mark.parametrize(
    ("last", "first", "usage", "count", "covers"),
    [
        (resumed_run(), None, [], "once", f"; {TIMES} cover the last command only"),
        (resumed_run(3), None, [], "3 times", f"; {TIMES} cover the last command only"),
        (resumed_run(taken=12.0), [], [], "once", ""),  # within one command
        # The orchestrator is killed; the next one's ranks resume, write a checkpoint and are restarted.
        (resumed_run(2, 12.0), [EARLIER], [], "2 times", f"; {TIMES} cover the last command only"),
        (resumed_run(), [], USAGE, "once", f"; {OVERALL} cover the last command only"),
        (trained({}, {}), [], [], "", ""),
    ],
    ids=["resumed", "again", "within a command", "by another command", "containers", "without checkpoints"],
)
def test_flags_of_resumed_and_restarted_runs(
    last: list[Event], first: list[Event] | None, usage: list[NodeUsage], count: str, covers: str
) -> None:
    """Only the last attempt counts in the result."""
    events = last if first is None else restarted(*first, last=last)
    result, alone = row(events, usage=usage, restarts=int(first is not None)), row(trained({}, {}))
    assert (result.status, result.cause, result.epochs) == ("ok", None, alone.epochs)
    assert (result.ranks, result.certificate) == (alone.ranks, alone.certificate)
    new = [flag for flag in result.flags if flag not in alone.flags]
    if count:
        resumed = new.pop(0)
        assert resumed.startswith(f"{RESUMED}{count}, last from the one after epoch 1 and 7 steps, ")
        assert resumed.endswith(f"{covers}") if covers else "last command" not in resumed
    if first is not None:
        assert new.pop(0) == "node 1: x; all ranks were restarted (1 of 1 restarts)"
        what = OVERALL if usage else TIMES
        assert new.pop(0).startswith(f"{what} include the attempts before the last restart")
    assert new == []


def test_new_attempt_keeps_only_checkpoints(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    _remove_previous_attempt(paths)
    assert list(paths.directory.iterdir()) == []
    for name in ("live", "checkpoints/local/epoch-00001-step-0000000"):
        (paths.directory / name).mkdir(parents=True)
    for file in (paths.result, paths.events, paths.directory / "live" / "rank-0.jsonl"):
        file.touch()
    _remove_previous_attempt(paths)
    assert [path.name for path in paths.directory.iterdir()] == ["checkpoints"]
    assert list(paths.checkpoints.glob("local/*"))
