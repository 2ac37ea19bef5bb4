"""Labels of orchestrators, and removal of orphaned containers, networks and volumes."""

from __future__ import annotations

import io
import os
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
from orchestrator.runtimes.docker.reaper import (
    LABEL,
    PROJECT_LABEL,
    STACK_LABEL,
    remove_of_orchestrator,
    remove_orphans,
    remove_project,
    remove_stack,
)

# Identity


def labelled(pid: str | None = None, since: str | None = None, namespace: str | None = None) -> str:
    """The label of this process, with some fields replaced."""
    own = identity().split(" ")
    return " ".join(new or old for new, old in zip((pid, since, namespace), own, strict=True))


@pytest.fixture
def ended() -> int:
    """PID of a process that has exited."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_identity_of_this_process() -> None:
    assert identity() == identity()
    pid, since, namespace = identity().split(" ")
    assert int(pid) == os.getpid()
    assert since == identities._since(os.getpid())
    assert namespace == identities._namespace()


def test_process_of_another_machine_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a swarm or a Slurm cluster: the first PID namespace has the same number on all machines."""
    monkeypatch.setattr(identities.socket, "gethostname", lambda: "another-machine")
    label = labelled(pid="999999999")
    monkeypatch.undo()
    assert not is_gone(label)
    assert is_gone(labelled(pid="999999999"))


def test_running_process_is_not_gone() -> None:
    assert not is_gone(identity())


def test_identity_survives_a_clock_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil derives a process's creation time from the boot time, which moves with the clock."""
    label = identity()
    if not Path("/proc/self/stat").exists():
        pytest.skip("only Linux counts a process's start in ticks")
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1.0)
    assert identity() == label
    assert not is_gone(label)


def test_ended_process_is_gone(ended: int) -> None:
    assert is_gone(labelled(pid=str(ended)))


def test_reused_pid_is_gone() -> None:
    assert is_gone(labelled(since="1000000000.00"))


def test_zombie_is_gone() -> None:
    process = subprocess.Popen(["true"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    label = labelled(pid=str(process.pid), since=identities._since(process.pid))
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert is_gone(label)
    process.stdout.close()
    process.wait()


def test_other_pid_namespace_is_not_gone(ended: int) -> None:
    assert not is_gone(labelled(pid=str(ended), namespace="pid:[1]"))


@pytest.mark.parametrize("label", ["", "x", "x 12.00 pid:[4]", "12", "-1 1.00 x", "12 1.00"])
def test_invalid_label_is_not_gone(label: str) -> None:
    # A bare `docker compose up` sets an empty label; its containers must stay.
    assert not is_gone(label)


# Removing


class Daemon:
    """Fake engine of a swarm's manager. It refuses to remove a network or config that is in use."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self.removed: list[str] = []
        self.stubborn: set[str] = set()
        self.asked: list[str] = []
        listing = {
            kind: SimpleNamespace(list=partial(self.listed, kind))
            for kind in ("containers", "networks", "volumes", "services", "configs")
        }
        self.swarm = {"ControlAvailable": True}
        client: Any = SimpleNamespace(**listing, info=lambda: {"Swarm": self.swarm})
        self.engine = Engine(client, "unix:///x.sock", "26.1", "2.26", 4)

    def add(self, kind: str, name: str, owner: str, project: str = "p") -> None:
        labels = {LABEL: owner, PROJECT_LABEL: project, STACK_LABEL: project}
        thing = SimpleNamespace(kind=kind, name=name, labels=labels)
        if kind == "containers":
            thing.attrs = {"Config": {"Labels": labels}}
            thing.kill = lambda: None
        elif kind in ("services", "configs"):
            thing.attrs = {"Spec": {"Labels": labels}}
        else:
            thing.attrs = {"Labels": labels}
        thing.remove = lambda **options: self.remove(thing, **options)
        self.things.append(thing)

    def remove(self, thing: Any, **options: bool) -> None:
        assert options == ({"force": True, "v": True} if thing.kind == "containers" else {})
        if thing.name in self.stubborn:
            raise RuntimeError("removal is in progress")
        if thing.kind == "networks" and any(each.kind == "containers" for each in self.things):
            raise RuntimeError("network has active endpoints")
        if thing.kind == "configs" and any(each.kind == "services" for each in self.things):
            raise RuntimeError("config is in use")
        self.removed.append(thing.name)
        self.things = [each for each in self.things if each.name != thing.name]

    def listed(self, kind: str, filters: dict[str, str], **options: bool) -> list[Any]:
        assert options == ({"all": True, "ignore_removed": True} if kind == "containers" else {})
        self.asked.append(filters["label"])
        name, equals, value = filters["label"].partition("=")
        return [
            thing
            for thing in self.things
            if thing.kind == kind and (thing.labels.get(name) == value if equals else name in thing.labels)
        ]

    @property
    def left(self) -> list[str]:
        return sorted(thing.name for thing in self.things)


@pytest.fixture
def daemon() -> Daemon:
    made = Daemon()
    made.add("networks", "gone-network", labelled(since="1.00"))
    made.add("volumes", "gone-volume", labelled(since="1.00"))
    made.add("containers", "gone-node", labelled(since="1.00"))
    return made


def test_containers_are_removed_before_networks(daemon: Daemon) -> None:
    assert remove_orphans(daemon.engine) == 3
    assert daemon.removed[0] == "gone-node"
    assert daemon.left == []


def test_only_orphans_are_removed(daemon: Daemon) -> None:
    daemon.add("containers", "ours", identity())
    daemon.add("containers", "of a bare up", "")
    daemon.add("containers", "elsewhere", labelled(pid="999999999", namespace="pid:[1]"))
    daemon.things = [thing for thing in daemon.things if thing.kind != "networks"]
    assert remove_orphans(daemon.engine) == 2
    assert daemon.left == ["elsewhere", "of a bare up", "ours"]


def test_remove_of_orchestrator(daemon: Daemon) -> None:
    daemon.things.clear()
    for name, owner in {"a": "owner 1", "b": "owner 2"}.items():
        daemon.add("containers", name, owner)
    assert remove_of_orchestrator(daemon.engine, "owner 1") == 1
    assert daemon.left == ["b"]
    assert set(daemon.asked) == {f"{LABEL}=owner 1"}


def test_remove_project(daemon: Daemon) -> None:
    daemon.things.clear()
    daemon.add("containers", "a", "", project="shardyard-1")
    daemon.add("containers", "b", identity(), project="shardyard-2")
    assert remove_project(daemon.engine, "shardyard-1") == 1
    assert daemon.left == ["b"]


def test_remove_stack(daemon: Daemon) -> None:
    for kind in ("configs", "networks", "services"):
        daemon.add(kind, f"{kind} of the stack", identity(), "q")
    daemon.things = [each for each in daemon.things if each.kind != "containers"]
    assert remove_stack(daemon.engine, "q") == 3
    assert daemon.removed[0] == "services of the stack"
    assert daemon.left == ["gone-network", "gone-volume"]


def test_an_engine_without_a_swarm_is_not_asked_for_services(daemon: Daemon) -> None:
    daemon.swarm = {"ControlAvailable": False}
    daemon.add("services", "of a swarm", labelled(since="1.00"))
    assert remove_orphans(daemon.engine) == 3
    assert daemon.left == ["of a swarm"]


def test_nothing_to_remove(daemon: Daemon) -> None:
    daemon.things.clear()
    assert remove_orphans(daemon.engine) == 0


def test_concurrent_removal(daemon: Daemon) -> None:
    (node,) = [thing for thing in daemon.things if thing.kind == "containers"]

    def vanish(**_: bool) -> None:
        daemon.things.remove(node)
        raise RuntimeError("404 Client Error: no such container")

    node.remove = vanish
    assert remove_orphans(daemon.engine) == 2
    assert daemon.left == []


def test_removal_is_retried(daemon: Daemon) -> None:
    (node,) = [thing for thing in daemon.things if thing.kind == "containers"]
    daemon.stubborn = {"gone-node"}
    remove = node.remove

    def later(**options: bool) -> None:
        daemon.stubborn, before = set(), daemon.stubborn
        if before:
            raise RuntimeError("removal is in progress")
        remove(**options)

    node.remove = later
    assert remove_orphans(daemon.engine) == 3
    assert daemon.left == []


def test_removal_that_fails_is_an_error(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.stubborn = {"gone-node"}
    monkeypatch.setattr(module, "REMOVE_S", 0.05)
    with pytest.raises(EngineError, match="2 containers, services or networks"):
        remove_orphans(daemon.engine)
    assert daemon.left == ["gone-network", "gone-node"]


# The reaper's own process


@pytest.fixture
def reaped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    owners: list[str] = []
    monkeypatch.setattr(module, "reach", lambda: None)
    monkeypatch.setattr(module, "remove_of_orchestrator", lambda engine, owner: owners.append(owner))
    return owners


@pytest.mark.parametrize(
    ("message", "owners"), [(b"", ["owner 1"]), (b"ex", ["owner 1"]), (module.EXIT_MESSAGE, [])]
)
def test_reaper_removes_unless_it_received_the_exit_message(
    monkeypatch: pytest.MonkeyPatch, reaped: list[str], message: bytes, owners: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(message)))
    module.main("owner 1")
    assert reaped == owners


def test_reaper_without_an_engine(monkeypatch: pytest.MonkeyPatch, reaped: list[str]) -> None:
    def reach() -> Engine:
        raise EngineError("no engine answers")

    monkeypatch.setattr(module, "reach", reach)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO()))
    module.main("owner 1")
    assert reaped == []


def test_reaper_receives_the_exit_message(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    class Process:
        def __init__(self, argv: list[str], **options: Any) -> None:
            assert argv == [sys.executable, "-m", "orchestrator.runtimes.docker.reaper", "owner 1"]
            assert options["start_new_session"] is True
            assert options["stdin"] == subprocess.PIPE

        def communicate(self, message: bytes) -> None:
            sent.append(message)

    monkeypatch.setattr(subprocess, "Popen", Process)
    reaper = module.Reaper("owner 1")
    assert sent == []
    del reaper
    assert sent == [module.EXIT_MESSAGE]
