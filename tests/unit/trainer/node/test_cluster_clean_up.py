"""Mistakes between two runs of warm containers: what is not cleaned, or cleaned though it is to stay."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from tests.unit.orchestrator.runtimes.docker.test_compose_files import services
from trainer.node import clean_up
from trainer.node.clean_up import remove_traces


class Process:
    """A fake of psutil's process. It survives this many kills."""

    def __init__(self, pid: int, survives: int = 0, status: str = "running", threads: int = 1) -> None:
        self.pid, self.kills, self._survives = pid, 0, survives
        self._status, self._threads = status, threads

    def status(self) -> str:
        if self.kills > self._survives:
            raise psutil.NoSuchProcess(self.pid)
        return self._status

    def num_threads(self) -> int:
        return self._threads

    def kill(self) -> None:
        self.kills += 1
        if self._survives < 0:  # it has ended by itself
            raise psutil.NoSuchProcess(self.pid)


@pytest.fixture
def writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two directories that stand in for all that a node can write to, and no processes."""
    directories = [tmp_path / "home", tmp_path / "tmp"]
    for directory in directories:
        directory.mkdir()
    fakes: dict[str, Any] = {"WRITABLE": directories, "SYSTEM_V": tmp_path / "none", "KILL_S": 0.0}
    for name, value in {**fakes, "LOOK_S": 0.0, "_settings": lambda pid: {"priority": 0}}.items():
        monkeypatch.setattr(clean_up, name, value)
    for name in ("threads", "shared_memory_mb"):
        monkeypatch.setattr(clean_up.cgroup, name, lambda: None)
    start_processes(monkeypatch)
    return directories


def start_processes(monkeypatch: pytest.MonkeyPatch, *processes: Process) -> None:
    """Let init have these descendants."""

    init = SimpleNamespace(children=lambda recursive: [*processes] if recursive else [])
    monkeypatch.setattr(psutil, "Process", {1: init}.__getitem__)
    monkeypatch.setattr(psutil, "wait_procs", lambda left, timeout: None)


def test_all_processes_but_those_to_keep_are_killed(
    writable: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [Process(2), Process(3), Process(6, status=psutil.STATUS_ZOMBIE)]
    headless = Process(7, status=psutil.STATUS_ZOMBIE, threads=2)  # its other thread runs
    killed = [Process(4), Process(5, survives=2), headless, Process(8, survives=-1)]
    start_processes(monkeypatch, *kept, *killed)
    killed[-1].kills = -1
    assert remove_traces({2: {}, 3: {}}, lambda: None) is None
    assert [each.kills for each in kept] == [0, 0, 0]
    assert [each.kills for each in killed] == [1, 3, 1, 0]


@pytest.mark.parametrize(
    ("owner", "name", "value", "left"),
    [
        (clean_up, "_settings", lambda pid: {"priority": 5}, "priority of process 2"),
        (clean_up.cgroup, "shared_memory_mb", lambda: 64.0, "64 MiB of shared memory"),
        (clean_up.cgroup, "threads", lambda: 2**40, "one that forks all the time"),
        (clean_up, "_descendants", lambda keep: [Process(4711, survives=1000)], "be killed: 4711"),
        (clean_up, "empty", Mock(side_effect=RecursionError("nested too deeply")), "nested too deeply"),
    ],
    ids=["settings", "memory", "fork bomb", "process", "directory"],
)
def test_what_cannot_be_cleaned_is_named(
    writable: list[Path], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any, left: str
) -> None:
    kept = {2: clean_up._settings(2)}
    monkeypatch.setattr(owner, name, value)
    assert left in str(remove_traces(kept, lambda: None))


def test_warm_parent_that_does_not_answer_is_named(writable: list[Path]) -> None:
    assert remove_traces({}, Mock(side_effect=OSError("no answer"))) == "no answer"


def test_writable_directories_are_emptied_and_kept(writable: list[Path], tmp_path: Path) -> None:
    home, temporary = writable
    (home / "out" / "deep").mkdir(parents=True)
    (home / "out" / "deep" / "rank-0.jsonl").touch()
    (home / ".hidden").touch()
    os.mkfifo(temporary / "pipe")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (temporary / "link").symlink_to(tmp_path / "kept")
    (temporary / "dangling").symlink_to(tmp_path / "nowhere")
    assert remove_traces({}, lambda: None) is None
    assert [[*directory.iterdir()] for directory in writable] == [[], []]
    assert (tmp_path / "kept" / "file").exists()


def test_clean_directories_are_all_that_a_node_can_write_to() -> None:
    agent: Any = services("ddp")["node"]
    mounted = {Path(mount.partition(":")[0]) for mount in agent["tmpfs"]}
    assert {*clean_up.WRITABLE} == {*mounted, Path("/dev/shm"), Path("/dev/mqueue")}
