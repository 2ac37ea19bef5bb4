"""How runs reach warm containers, and how containers are cleaned between two runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.test_compose_files import services
from trainer.cluster import clean_up
from trainer.cluster import hand_over as module
from trainer.cluster.clean_up import remove_traces
from trainer.cluster.hand_over import NEXT, Ending, hand_over, log_marks, take_over
from trainer.cluster.rank_assignment import AssignmentError

# Handing over


def test_run_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.05)
    for name in ("first", "second"):
        hand_over(tmp_path, name)
        assert take_over(tmp_path) == tmp_path / name
    assert take_over(tmp_path) is None
    assert [*tmp_path.iterdir()] == []


def test_run_is_visible_only_once_its_name_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    replace = Path.replace

    def watched(draft: Path, target: Path) -> Path:
        assert target == tmp_path / NEXT
        assert not target.exists()
        moved.append(draft.read_text())
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", watched)
    hand_over(tmp_path, "name")
    assert moved == ["name"]


def test_log_marks_differ_between_runs_and_ends() -> None:
    marks = [*log_marks("a"), *log_marks("b")]
    assert len(set(marks)) == 4
    assert not any("\n" in mark for mark in marks)
    assert not any(one in other for one in marks for other in marks if one != other)


@pytest.mark.parametrize("lost", [None, "of node-1 was killed by SIGKILL"])
def test_ending_round_trip(lost: str | None) -> None:
    ending = Ending(exits={"node-1": 1, "coordinator": 1}, lost=lost)
    assert Ending.model_validate_json(ending.model_dump_json()) == ending


# Cleaning


class Process:
    """A fake of psutil's process. It survives this many kills."""

    def __init__(self, pid: int, survives: int = 0, status: str = psutil.STATUS_RUNNING) -> None:
        self.pid, self.kills, self._survives, self._status = pid, 0, survives, status

    @property
    def alive(self) -> bool:
        return self.kills <= self._survives

    def status(self) -> str:
        if not self.alive:
            raise psutil.NoSuchProcess(self.pid)
        return self._status

    def kill(self) -> None:
        self.kills += 1


@pytest.fixture
def writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two directories that stand in for all that a node can write to, and no processes."""
    directories = [tmp_path / "home", tmp_path / "tmp"]
    for directory in directories:
        directory.mkdir()
    monkeypatch.setattr(clean_up, "WRITABLE", directories)
    start_processes(monkeypatch)
    return directories


def start_processes(monkeypatch: pytest.MonkeyPatch, *processes: Process) -> None:
    """Let init have these descendants."""

    class Init:
        def __init__(self, pid: int) -> None:
            assert pid == clean_up.INIT == 1

        def children(self, recursive: bool) -> list[Process]:
            assert recursive
            return [*processes]

    monkeypatch.setattr(psutil, "Process", Init)
    monkeypatch.setattr(psutil, "wait_procs", lambda left, timeout: None)


def test_all_processes_but_those_to_keep_are_killed(
    writable: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, parent, rank, stubborn = (Process(2), Process(3), Process(4), Process(5, survives=2))
    zombie = Process(6, status=psutil.STATUS_ZOMBIE)
    start_processes(monkeypatch, agent, parent, rank, stubborn, zombie)
    remove_traces(keep={2, 3})
    assert [each.kills for each in (agent, parent, rank, stubborn, zombie)] == [0, 0, 1, 3, 0]


def test_process_that_ends_by_itself_is_no_error(
    writable: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(Process):
        def kill(self) -> None:
            super().kill()
            raise psutil.NoSuchProcess(self.pid)

    gone = Gone(7)
    start_processes(monkeypatch, gone)
    remove_traces(keep=set())
    assert not gone.alive


def test_process_that_cannot_be_killed_is_named(
    writable: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_processes(monkeypatch, Process(4), Process(4711, survives=1000))
    with pytest.raises(AssignmentError, match=r"\b4711$"):
        remove_traces(keep=set())


def test_writable_directories_are_emptied_and_kept(writable: list[Path], tmp_path: Path) -> None:
    home, temporary = writable
    (home / "out" / "deep").mkdir(parents=True)
    (home / "out" / "deep" / "rank-0.jsonl").touch()
    (home / ".hidden").touch()
    os.mkfifo(temporary / "pipe")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (temporary / "link").symlink_to(kept)
    (temporary / "dangling").symlink_to(tmp_path / "nowhere")
    remove_traces(keep=set())
    assert [[*directory.iterdir()] for directory in writable] == [[], []]
    assert (kept / "file").exists()


def test_clean_directories_are_all_that_a_node_can_write_to() -> None:
    agent: Any = services("ddp")["node"]
    mounted = {Path(mount.partition(":")[0]) for mount in agent["tmpfs"]}
    assert {*clean_up.WRITABLE} == {*mounted, Path("/dev/shm")}
