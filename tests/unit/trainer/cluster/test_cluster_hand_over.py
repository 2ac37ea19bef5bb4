"""How runs reach warm containers, and how containers are cleaned between two runs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.orchestrator.runtimes.docker.test_compose_files import services
from trainer.cluster import clean_up
from trainer.cluster import hand_over as module
from trainer.cluster.clean_up import remove_traces
from trainer.cluster.hand_over import NEXT, Ending, hand_over, log_marks, take_over

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

    def __init__(
        self, pid: int, survives: int = 0, status: str = psutil.STATUS_RUNNING, threads: int = 1
    ) -> None:
        self.pid, self.kills, self._survives = pid, 0, survives
        self._status, self._threads = status, threads

    @property
    def alive(self) -> bool:
        return self.kills <= self._survives

    def status(self) -> str:
        if not self.alive:
            raise psutil.NoSuchProcess(self.pid)
        return self._status

    def num_threads(self) -> int:
        return self._threads

    def kill(self) -> None:
        self.kills += 1


@pytest.fixture
def writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two directories that stand in for all that a node can write to, and no processes."""
    directories = [tmp_path / "home", tmp_path / "tmp"]
    for directory in directories:
        directory.mkdir()
    monkeypatch.setattr(clean_up, "WRITABLE", directories)
    monkeypatch.setattr(clean_up, "SYSTEM_V", tmp_path / "none")
    monkeypatch.setattr(clean_up, "_settings", lambda pid: {})
    monkeypatch.setattr(clean_up, "KILL_S", 0.0)
    monkeypatch.setattr(clean_up, "LOOK_S", 0.0)
    monkeypatch.setattr(clean_up.cgroup, "threads", lambda: None)
    monkeypatch.setattr(clean_up.cgroup, "shared_memory_mb", lambda: None)
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


def clean(*keep: int) -> str | None:
    """Clean without a warm parent."""
    return remove_traces({pid: {} for pid in keep}, lambda: None)


def test_all_processes_but_those_to_keep_are_killed(
    writable: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, parent, rank, stubborn = (Process(2), Process(3), Process(4), Process(5, survives=2))
    zombie = Process(6, status=psutil.STATUS_ZOMBIE)
    headless = Process(7, status=psutil.STATUS_ZOMBIE, threads=2)  # its other thread runs
    processes = [agent, parent, rank, stubborn, zombie, headless]
    start_processes(monkeypatch, *processes)
    assert clean(2, 3) is None
    assert [each.kills for each in processes] == [0, 0, 1, 3, 0, 1]


def test_process_that_no_list_shows_is_named(writable: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_up.cgroup, "threads", lambda: 2**40)
    assert clean()


def test_changed_settings_are_named(writable: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_up, "_settings", lambda pid: {"priority": 5})
    assert "priority" in str(remove_traces({2: {"priority": 0}}, lambda: None))


def test_warm_parent_that_does_not_answer_is_named(writable: list[Path]) -> None:
    def fail() -> None:
        raise OSError("no answer")

    assert remove_traces({}, fail) == "no answer"


def test_shared_memory_that_is_left_is_named(writable: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_up.cgroup, "shared_memory_mb", lambda: 64.0)
    assert "64 MiB" in str(clean())


def test_directory_that_cannot_be_removed_is_named(writable: list[Path]) -> None:
    path = writable[0]
    for _ in range(1200):
        path = path / "d"
    subprocess.run(["mkdir", "-p", str(path)], check=True)
    assert clean()
    subprocess.run(["rm", "-r", str(writable[0] / "d")], check=True)


def test_process_that_ends_by_itself_is_no_error(
    writable: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(Process):
        def kill(self) -> None:
            super().kill()
            raise psutil.NoSuchProcess(self.pid)

    gone = Gone(7)
    start_processes(monkeypatch, gone)
    assert clean() is None
    assert not gone.alive


def test_process_that_cannot_be_killed_is_named(
    writable: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_processes(monkeypatch, Process(4), Process(4711, survives=1000))
    assert re.search(r"\b4711$", str(clean()))


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
    assert clean() is None
    assert [[*directory.iterdir()] for directory in writable] == [[], []]
    assert (kept / "file").exists()


def test_clean_directories_are_all_that_a_node_can_write_to() -> None:
    agent: Any = services("ddp")["node"]
    mounted = {Path(mount.partition(":")[0]) for mount in agent["tmpfs"]}
    assert {*clean_up.WRITABLE} == {*mounted, Path("/dev/shm"), Path("/dev/mqueue")}
