"""Mistakes in removal by label: whose containers are orphans, what is left after a SIGKILL."""

from __future__ import annotations

import io
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator import identity as identities
from orchestrator.identity import identity, is_gone
from orchestrator.runtimes.docker import reaper as module
from orchestrator.runtimes.docker.engine import Engine, EngineError
from orchestrator.runtimes.docker.reaper import LABEL, PROJECT_LABEL, remove_orphans

ENDED_PID = "999999999"


def other(pid: str = "", since: str = "", namespace: str = "") -> str:
    """The label of this process, with other fields."""
    fields = zip((pid, since, namespace), identity().split(" "), strict=True)
    return " ".join(new or own for new, own in fields)


def test_orchestrator_is_gone_if_its_process_has_ended() -> None:
    assert not is_gone(identity())
    assert is_gone(other(since="1.00")), "its PID is that of another process"
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as child:
        label = identity(child.pid)
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            pass
        assert is_gone(label), "a zombie"
    assert is_gone(label)


def test_orchestrator_of_which_nothing_is_known_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_gone(other(ENDED_PID, namespace="pid:[1]"))
    for label in ("", "x", "12 1.00", other("x"), other("-1")):  # a bare `docker compose up` sets the first
        assert not is_gone(label), label
    # Of a Slurm cluster: the first PID namespace has the same number on all machines.
    monkeypatch.setattr(identities.socket, "gethostname", lambda: "another-machine")
    label = other(ENDED_PID)
    monkeypatch.undo()
    assert (is_gone(label), is_gone(other(ENDED_PID))) == (False, True)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux counts a start in ticks")
def test_identity_survives_a_clock_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil derives a process's creation time from the boot time, which moves with the clock."""
    label = identity()
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1.0)
    assert identity() == label


class Daemon:
    """Fake engine. It refuses to remove a network that is in use."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self.refused: list[str] = []  # the next removals
        self.vanishing = ""  # another process removes it at the same moment
        kinds = ("containers", "networks", "volumes")
        listing: Any = {kind: SimpleNamespace(list=partial(self._listed, kind)) for kind in kinds}
        self.engine = Engine(SimpleNamespace(**listing), "unix:///x.sock", "26.1", "2.26", 4)

    def add(self, kind: str, name: str, owner: str, project: str = "p") -> None:
        labels = {"Labels": {LABEL: owner, PROJECT_LABEL: project}}
        attrs = {"Config": labels} if kind == "containers" else labels
        thing = SimpleNamespace(kind=kind, name=name, attrs=attrs, **labels)
        thing.remove = partial(self._remove, thing)
        if kind == "containers":
            thing.kill = None
        self.things.append(thing)

    def _remove(self, thing: Any, **options: bool) -> None:
        assert options == ({"force": True, "v": True} if thing.kind == "containers" else {})
        if thing.kind == "networks" and "containers" in [each.kind for each in self.things]:
            raise RuntimeError("it is in use")
        if thing.name in self.refused:
            self.refused.remove(thing.name)
            raise RuntimeError("removal is in progress")
        self.things.remove(thing)
        if thing.name == self.vanishing:
            raise RuntimeError("404 Client Error: it is not there")

    def _listed(self, kind: str, filters: dict[str, str], **options: bool) -> list[Any]:
        assert options == ({"all": True, "ignore_removed": True} if kind == "containers" else {})
        name, equals, value = filters["label"].partition("=")
        found = [each for each in self.things if each.kind == kind]
        return [each for each in found if each.Labels[name] == value or not equals]

    @property
    def left(self) -> list[str]:
        return sorted(each.name for each in self.things)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """Everything that a killed orchestrator has left."""
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    made = Daemon()
    for kind in ("networks", "volumes", "containers"):
        made.add(kind, kind, other(since="1.00"))
    return made


def test_only_orphans_are_removed_and_refused_removals_repeated(daemon: Daemon) -> None:
    others = {"ours": identity(), "of a bare up": "", "elsewhere": other(ENDED_PID, namespace="pid:[1]")}
    for name, owner in others.items():
        daemon.add("volumes", name, owner)
    daemon.refused, daemon.vanishing = ["volumes", "volumes"], "containers"
    assert remove_orphans(daemon.engine) == 2
    assert daemon.left == sorted(others)
    assert remove_orphans(daemon.engine) == 0


@pytest.mark.parametrize(
    ("remove", "owner", "project"), [("remove_of_orchestrator", "o 1", "p"), ("remove_project", "", "p 1")]
)
def test_only_what_has_the_label_is_removed(daemon: Daemon, remove: str, owner: str, project: str) -> None:
    before = daemon.left
    daemon.add("containers", "1", owner, project)
    daemon.add("volumes", "2", owner, project)
    assert getattr(module, remove)(daemon.engine, owner or project) == 2
    assert daemon.left == before


def test_removal_that_fails_is_an_error(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.refused = ["containers"] * 10**4
    monkeypatch.setattr(module, "REMOVE_S", 0.02)
    with pytest.raises(EngineError, match="2 containers, networks or volumes"):
        remove_orphans(daemon.engine)
    assert daemon.left == ["containers", "networks"]


def test_reaper_removes_unless_it_received_the_whole_exit_message(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    monkeypatch.setattr(module, "reach", lambda: None)
    monkeypatch.setattr(module, "remove_of_orchestrator", lambda engine, owner: removed.append(owner))
    for message in (b"", module.EXIT_MESSAGE, b"ex"):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(message)))
        module.main(f"owner {len(message)}")
    assert removed == ["owner 0", "owner 2"]


def test_reaper_gets_the_exit_message_at_the_end_and_no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    def start(argv: list[str], **options: Any) -> Any:
        assert argv == [sys.executable, "-m", "orchestrator.runtimes.docker.reaper", "owner 1"]
        assert (options["start_new_session"], options["stdin"]) == (True, subprocess.PIPE)
        return SimpleNamespace(communicate=sent.append)

    monkeypatch.setattr(subprocess, "Popen", start)
    reaper = module.Reaper("owner 1")
    assert sent == []
    del reaper
    assert sent == [module.EXIT_MESSAGE]
