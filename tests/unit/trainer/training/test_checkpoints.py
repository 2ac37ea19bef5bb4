"""The checkpoint store, which specs may set intervals, and the result of a resumed run."""

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
from orchestrator.report.model.baselines import rows_of
from orchestrator.results.store import RunPaths
from tests.unit.conftest import event, run_result
from tests.unit.orchestrator.execution.test_run_result import row, trained
from tests.unit.training import fields_for
from trainer.core.cgroup import NodeUsage
from trainer.core.events import Event, format_event
from trainer.spec.registries import COMPRESSIONS, STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.training import checkpoint_store as module
from trainer.training.checkpoint_store import CheckpointError, CheckpointStore, Position

AT = Position(2, 13)
ABLE = {"serial", "one_shot", "local_sgd", "all_reduce", "all_gather", "reduce_broadcast", "ddp"}
ABLE |= {
    "zero1",
    "zero2",
    "fsdp",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline",
    "hybrid",
}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", "run-key", 0, 2)


def state(number: float = 1.0) -> dict[str, Any]:
    return {"weights": torch.full((3, 2), number), "steps": 5, "loss": None}


# The store


def test_state_round_trip(store: CheckpointStore, tmp_path: Path) -> None:
    written = store.write(AT, state(0.1))
    (file,) = tmp_path.glob("checkpoints/*/*")
    assert (file.parent.name, file.name) == ("epoch-00002-step-0000013", "rank-0.pt")
    assert file.stat().st_size == written
    read, taken = store.read(AT)
    assert torch.equal(read["weights"], state(0.1)["weights"])
    assert (read["steps"], read["loss"]) == (5, None)
    assert abs(taken - file.stat().st_mtime) < 5


def test_crash_before_the_rename_keeps_earlier_checkpoints(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(AT, state(1))

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        for position in (AT, Position(3, 0)):
            with pytest.raises(KeyboardInterrupt):
                store.write(position, state(2))
    assert store.positions() == [AT]
    assert torch.equal(store.read(AT)[0]["weights"], state(1)["weights"])
    store.write(Position(3, 0), state(3))  # overwrites the temporary file of the crash
    assert store.positions() == [Position(3, 0), AT]


def test_file_is_synced_before_it_is_renamed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (done.append(name), real(*a)))
    store.write(AT, state())
    assert done == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777], ids=oct)
def test_directories_inherit_the_mode_of_their_parent(tmp_path: Path, mode: int) -> None:
    """Local checkpoints stay private; `make_world_writable` opens the mounted directory to containers."""
    tmp_path.chmod(mode)
    store = CheckpointStore(tmp_path / "checkpoints", "run-key", 0, 2)
    store.open()
    store.write(AT, state())
    made = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert [path.stat().st_mode & 0o777 for path in made] == [mode, mode]


@pytest.mark.parametrize("target", ["epoch-00002-step-0000013/rank-0.tmp", "resumed"])
def test_symbolic_links_are_not_followed(store: CheckpointStore, tmp_path: Path, target: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("another's")
    link = tmp_path / "checkpoints" / target
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with pytest.raises(CheckpointError, match="Too many levels of symbolic links"):
        store.record_resumption() if target == "resumed" else store.write(AT, state())
    assert victim.read_text() == "another's"


@pytest.mark.parametrize("length", [0, 1, 50, 700])
def test_truncated_file_is_damaged(store: CheckpointStore, tmp_path: Path, length: int) -> None:
    store.write(AT, state())
    (file,) = tmp_path.glob("checkpoints/*/*")
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match="damaged"):
        store.read(AT)


def test_flipped_bits_are_detected(store: CheckpointStore, tmp_path: Path) -> None:
    store.write(AT, state())
    (file,) = tmp_path.glob("checkpoints/*/*")
    whole = file.read_bytes()
    for at in range(whole.index(b"\n"), len(whole), 97):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CheckpointError, match="damaged"):
            store.read(AT)


@pytest.mark.parametrize(
    ("other", "what"),
    [(("another-key", 0, 2), "run is run-key"), (("run-key", 0, 3), "ranks is 2, not 3")],
    ids=["another run", "another world size"],
)
def test_checkpoint_of_another_run_is_rejected(
    store: CheckpointStore, tmp_path: Path, other: tuple[str, int, int], what: str
) -> None:
    store.write(AT, state())
    with pytest.raises(CheckpointError, match=f"its {what}"):
        CheckpointStore(tmp_path / "checkpoints", *other).read(AT)


def test_misplaced_file_is_rejected(store: CheckpointStore, tmp_path: Path) -> None:
    store.write(AT, state())
    (file,) = tmp_path.glob("checkpoints/*/*")
    file.rename(file.with_name("rank-1.pt"))
    with pytest.raises(CheckpointError, match="its rank is 0, not 1"):
        CheckpointStore(tmp_path / "checkpoints", "run-key", 1, 2).read(AT)
    store.write(AT, state())
    file.parent.rename(file.parent.with_name("epoch-00003-step-0000000"))
    with pytest.raises(CheckpointError, match="its position is"):
        CheckpointStore(tmp_path / "checkpoints", "run-key", 0, 2).read(Position(3, 0))


def test_another_torch_version_is_rejected(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(AT, state())
    monkeypatch.setattr(torch, "__version__", "9.9")
    with pytest.raises(CheckpointError, match=r"written with torch .*9\.9"):
        store.read(AT)


def test_other_trainer_sources_are_rejected(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(AT, state())
    monkeypatch.setattr(module, "source_digest", lambda: "0123456789abcdef")
    with pytest.raises(CheckpointError, match=r"sources \w{16}; these are 0123"):
        store.read(AT)


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


def test_missing_checkpoint_is_an_error(store: CheckpointStore) -> None:
    assert store.positions() == []
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        store.read(AT)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_is_no_checkpoint(store: CheckpointStore, kind: str) -> None:
    store.write(AT, {})
    (path,) = store.directory.rglob("*.pt")
    path.rename(path.with_name("moved"))
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("moved")
    assert store.positions() == [AT]
    with pytest.raises(CheckpointError, match=f"cannot be read: is a .*{kind}"):
        store.read(AT)


def test_unreadable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"{tmp_path}/file: .*Not a directory"):
        CheckpointStore(tmp_path / "file", "run-key", 0, 2).positions()


def test_prune_keeps_the_last_two(store: CheckpointStore, tmp_path: Path) -> None:
    other = CheckpointStore(tmp_path / "checkpoints", "run-key", 1, 2)
    for steps in range(5):
        store.write(Position(1, steps), state())
    other.write(Position(1, 0), state())
    store.prune(Position(1, 3))
    assert store.positions() == [Position(1, 3), Position(1, 2)]
    assert other.positions() == [Position(1, 0)]  # another rank's checkpoints stay
    left = sorted(path.name[-1] for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["0", "2", "3"]


def test_full_disk_error_names_the_directory(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    buffer = io.BytesIO()
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(module, "io", SimpleNamespace(BytesIO=lambda: buffer))
    with pytest.raises(
        CheckpointError, match=f"{tmp_path}/checkpoints: .*No space left on device"
    ) as failed:
        store.write(AT, state())
    buffer.close()  # no frame of the traceback has a view of it, which Python 3.13 reports when it collects
    assert failed.tb


def test_position_numbers_increase() -> None:
    positions = [Position(0, 1), Position(0, 9), Position(1, 0), Position(1, 5), Position(9_999, 2**31)]
    assert sorted(positions, key=lambda each: each.number) == sorted(positions) == positions
    assert len({each.number for each in positions}) == len(positions)


def test_loading_executes_no_pickled_code(store: CheckpointStore) -> None:
    store.write(AT, {"loss": module.CheckpointError("an object of any class")})
    with pytest.raises(CheckpointError, match="UnpicklingError"):
        store.read(AT)


# Which runs may set an interval


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "all_reduce", "nodes": 2, **fields})


def error_message(**fields: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        spec(**fields)
    return str(raised.value.errors()[0]["type"]) + ": " + raised.value.errors()[0]["msg"]


def test_at_most_one_interval() -> None:
    assert error_message(checkpoint_epochs=1, checkpoint_steps=1).startswith("checkpoint_steps: ")


@pytest.mark.parametrize("strategy", STRATEGIES.entries)
def test_checkpoint_intervals_follow_the_strategy(strategy: str) -> None:
    kind = STRATEGIES.load(strategy)
    run: dict[str, Any] = {"strategy": strategy, "nodes": max(kind.min_nodes, 2)}
    run |= fields_for(strategy)
    if kind.max_nodes:
        run["nodes"] = min(run["nodes"], kind.max_nodes)
    for interval in ("epochs", "steps"):
        fields_of_run = {**run, f"checkpoint_{interval}": 2}
        if interval in kind.checkpoint_intervals:
            assert spec(**fields_of_run).checkpoints
        elif kind.checkpoint_intervals:
            reported = error_message(**fields_of_run)
            assert reported.startswith(f"checkpoint_{interval}: ")
            assert f"checkpoint_{kind.checkpoint_intervals[0]}" in reported
        else:
            reported = error_message(**fields_of_run)
            assert reported.startswith(f"checkpoint_{interval}: {strategy} ")
            assert {*reported.partition("one of ")[2].split(", ")} == ABLE


@pytest.mark.parametrize("compression", COMPRESSIONS.entries)
def test_compression_with_error_feedback_has_no_checkpoints(compression: str) -> None:
    run = {"strategy": {"name": "all_reduce", "compression": compression}, "checkpoint_steps": 3}
    if compression in ("none", "fp16"):
        assert spec(**run).checkpoints
    else:
        assert error_message(**run).startswith("checkpoint_steps: all_reduce ")


def test_run_key_includes_the_interval() -> None:
    """Checkpoints cost time."""
    keys = {
        spec().key,
        spec(checkpoint_epochs=2).key,
        spec(checkpoint_steps=2).key,
        spec(checkpoint_steps=3).key,
    }
    assert len(keys) == 4


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


RESUMED = "interrupted and resumed from a checkpoint"
SINCE = "; start-up and wall time cover the last command only"
CONTAINED = "start-up and wall time include the attempts before the last restart"


def test_only_the_last_attempt_counts() -> None:
    result, alone = row(restarted(last=resumed_run()), restarts=1), row(trained({}, {}))
    assert (result.status, result.cause) == ("ok", None)
    assert (result.epochs, result.ranks, result.certificate) == (
        alone.epochs,
        alone.ranks,
        alone.certificate,
    )
    assert result.flags[-2] == "node 1: x; all ranks were restarted (1 of 1 restarts)"


@pytest.mark.parametrize(("times", "count"), [(1, "once"), (3, "3 times")])
def test_resumed_run_is_flagged(times: int, count: str) -> None:
    (flag,) = set(row(resumed_run(times)).flags) - set(row(trained({}, {})).flags)
    assert flag.startswith(f"{RESUMED} {count}, last from the one after epoch 1 and 7 steps, 61 s later")
    assert flag.endswith(SINCE)


def test_lost_attempts_without_checkpoints_are_flagged() -> None:
    result = row(restarted(last=trained({}, {})), restarts=1)
    assert result.flags[-1].startswith(CONTAINED)


def test_run_resumed_within_one_command_has_complete_start_up_and_wall_time() -> None:
    resumed, _, contained = row(restarted(last=resumed_run(taken=12.0)), restarts=1).flags[-3:]
    assert resumed.startswith(f"{RESUMED} once")
    assert SINCE not in resumed
    assert contained.startswith(CONTAINED)


def test_run_resumed_by_another_command_excludes_the_first_one() -> None:
    """The orchestrator is killed; the next one's ranks resume, write a checkpoint and are restarted."""
    first = event("resumed", 0, 11.0, epoch=1, step=2, age_s=8.0, times=1)
    result = row(restarted(first, last=resumed_run(times=2, taken=12.0)), restarts=1)
    resumed, _, contained = result.flags[-3:]
    assert resumed.startswith(f"{RESUMED} 2 times")
    assert resumed.endswith(SINCE)
    assert contained.startswith(CONTAINED)


def test_usage_of_containers_covers_the_last_command_only() -> None:
    absent = dict.fromkeys(("cpu_s", "throttled_s", "memory_peak_mb", "sent_bytes", "received_bytes"), None)
    usage = [NodeUsage(name=f"node-{n}", ranks=[n], out_of_memory=0, **absent) for n in range(2)]
    resumed, _, contained = row(restarted(last=resumed_run()), usage=usage, restarts=1).flags[-3:]
    overall = "start-up time, wall time and what the nodes used"
    assert resumed.endswith(f"; {overall} cover the last command only")
    assert contained.startswith(f"{overall} include the attempts before")


@pytest.mark.parametrize(
    ("fields_of_run", "label"), [({}, "serial"), ({"checkpoint_steps": 5}, "serial checkpoint_steps=5")]
)
def test_strategy_label_includes_the_interval(fields_of_run: dict[str, int], label: str) -> None:
    run = spec(strategy="serial", nodes=1, **fields_of_run)
    result = run_result(key=run.key, spec=run.model_dump(mode="json"))
    (in_report,) = rows_of([(run.key, result, run)], {})
    assert in_report.strategy_label == label


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


@pytest.mark.parametrize(
    ("kind", "fields", "line"),
    [
        ("checkpoint", {"bytes": 1234, "seconds": 0.5}, "checkpoint after epoch 2, 1,234 bytes in 0.50 s"),
        (
            "checkpoint_skipped",
            {"cause": "it is bad"},
            "checkpoint after epoch 2 is not used: it is bad",
        ),
        ("resumed", {}, "resumed from the checkpoint after epoch 2"),
    ],
)
def test_console_lines_of_checkpoint_events(kind: str, fields: dict[str, Any], line: str) -> None:
    assert format_event(event(kind, epoch=2, step=0, **fields)) == line
    assert "epoch 2 and 5 steps" in str(format_event(event(kind, epoch=2, step=5, **fields)))
