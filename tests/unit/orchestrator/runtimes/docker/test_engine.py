"""Mistakes in how the Docker engine is found, and in the errors about one that cannot be used."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import docker
import pytest
from docker.context import ContextAPI
from docker.errors import DockerException

from orchestrator.runtimes.docker.engine import Engine, EngineError, command_error, reach

SOCKET = "unix:///var/run/docker.sock"
BARE = "on a bare Debian or Ubuntu machine: make engine"
NEEDED = f"Docker Compose 2.20 or newer is needed; {BARE}"


class Machine:
    """The installed software: an engine, and a docker command, which prints, exits or cannot be run."""

    def __init__(self) -> None:
        self.version: Any = {"Version": "26.1.5+dfsg1"}
        self.output, self.code = "2.26.1-4\n", 0
        self.error: Exception | None = None
        self.addresses: list[str] = []

    def client(self, base_url: str, timeout: int) -> Any:
        assert timeout >= 30
        self.addresses.append(base_url)
        if isinstance(self.version, Exception):
            raise self.version
        return SimpleNamespace(version=lambda: self.version, info=lambda: {"NCPU": 8}, close=lambda: None)

    def run(self, command: list[str], **_: Any) -> Any:
        assert command[:2] == ["docker", "--host"]
        if self.error:
            raise self.error
        return SimpleNamespace(stdout=self.output, stderr=self.output, returncode=self.code)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(ContextAPI, "get_current_context", lambda: SimpleNamespace(Host=SOCKET))
    monkeypatch.setattr(docker, "DockerClient", made.client)
    monkeypatch.setattr(subprocess, "run", made.run)
    return made


def error(use: Callable[[], Any] = reach) -> str:
    with pytest.raises(EngineError) as caught:
        use()
    return str(caught.value)


def test_engine_is_that_of_the_variable_or_the_context(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = {"variable": SOCKET, "context": "unix:///run/user/1/docker.sock", "empty": "", "none": None}
    for name, host in contexts.items():
        context = SimpleNamespace(Host=host) if host is not None else None
        monkeypatch.setattr(ContextAPI, "get_current_context", lambda context=context: context)
        monkeypatch.setenv("DOCKER_HOST", "unix:///x.sock" if name == "variable" else "")
        found = reach()
        assert found.command("compose", "up") == ["docker", "--host", found.host, "compose", "up"]
    assert machine.addresses == ["unix:///x.sock", contexts["context"], SOCKET, SOCKET]
    assert (found.version, found.compose, found.cores) == ("26.1.5+dfsg1", "2.26.1-4", 8)


def test_remote_engine_and_unreadable_context_are_errors(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("tcp://10.0.0.5:2375", "ssh://me@there"):
        monkeypatch.setenv("DOCKER_HOST", host)
        assert error().startswith(f"the Docker engine at {host} is on another machine")
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setattr(ContextAPI, "get_current_context", lambda: [][0])
    assert error() == "the current docker context cannot be read (list index out of range)"
    assert machine.addresses == []


def test_engine_that_does_not_answer(machine: Machine) -> None:
    denied = "permission denied: sudo usermod -aG docker $USER, then log in again"
    for answer, reason in (  # as the SDK and urllib3 word them
        (DockerException("FileNotFoundError(2, 'No such file')"), f"it is not running; {BARE}"),
        (DockerException("PermissionError(13, 'Permission denied')"), denied),
        (DockerException("(111, 'Connection refused')"), f"it has ended; start it again, {BARE}"),
        (DockerException("odd\nand a second line"), "odd"),
        (DockerException("x" * 5000), "x" * 120),
        (TimeoutError(), "TimeoutError"),
        ({}, "'Version'"),
    ):
        machine.version = answer
        assert error() == f"no Docker engine answers at {SOCKET} ({reason})"


def test_too_old_or_missing_software_is_named_and_versions_are_numbers(machine: Machine) -> None:
    for version in ("20.10.24+dfsg1", "22.9.9", "unknown"):
        machine.version = {"Version": version}
        assert error() == f"Docker engine {version} is too old, 23.0 or newer is needed; {BARE}"
    for engine, compose in (("23.0.0", "2.20.0"), ("100.1", "v2.100.0"), ("v28.0.1", "5.0.0")):
        machine.version, machine.output = {"Version": engine}, f"{compose}\n"
        assert (reach().version, reach().compose) == (engine, compose)
    for version in ("2.19.1", "1.29.2"):
        machine.version, machine.output = {"Version": "26.1"}, version
        assert error() == f"Docker Compose {version} is too old; {NEEDED}"
    for machine.output, machine.code in (("", 0), ("Usage:  docker [OPTIONS] COMMAND", 125)):
        assert error() == f"there is no docker compose command; {NEEDED}"
    machine.error = PermissionError(13, "Permission denied")
    assert error() == f"there is no docker command (Permission denied); {NEEDED}"
    machine.error = subprocess.TimeoutExpired(["docker"], 30)
    assert error() == f"`docker compose version` timed out; {NEEDED}"


def test_commands_that_fail_say_why(machine: Machine) -> None:
    engine = Engine(SimpleNamespace(), SOCKET, "26.1", "2.26", 8)  # type: ignore[arg-type]
    for machine.code, machine.output, why in ((0, "x", None), (1, " no \n", "no"), (3, "", "exit code 3")):
        assert command_error(engine, "update") == why
    machine.error = subprocess.TimeoutExpired(["docker"], 60)
    assert command_error(engine, "update") == "no answer within 60 s"
