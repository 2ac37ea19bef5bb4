"""The Docker engine: errors of one that cannot be used, and how to fix them."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import docker
import pytest
from docker.context import ContextAPI
from docker.errors import DockerException

from orchestrator.runtimes.docker.engine import EngineError, reach

SOCKET = "unix:///var/run/docker.sock"


class Machine:
    """The installed software: an engine, a docker command and its compose plugin."""

    def __init__(self) -> None:
        self.version = "26.1.5+dfsg1"
        self.error: Exception | None = None
        self.compose: Any = ("2.26.1-4\n", 0)
        self.addresses: list[str] = []
        self.commands: list[list[str]] = []

    def client(self, base_url: str, timeout: int) -> Any:
        assert timeout >= 30
        self.addresses.append(base_url)
        if self.error:
            raise self.error
        return SimpleNamespace(
            version=lambda: {"Version": self.version}, info=lambda: {"NCPU": 8}, close=print
        )

    def run(self, command: list[str], **_: Any) -> Any:
        self.commands.append(command)
        if isinstance(self.compose, Exception):
            raise self.compose
        stdout, code = self.compose
        return SimpleNamespace(stdout=stdout, returncode=code)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(ContextAPI, "get_current_context", lambda: SimpleNamespace(Host=SOCKET))
    monkeypatch.setattr(docker, "DockerClient", made.client)
    monkeypatch.setattr(subprocess, "run", made.run)
    return made


def error() -> str:
    with pytest.raises(EngineError) as caught:
        reach()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_usable_engine(machine: Machine) -> None:
    found = reach()
    assert (found.host, found.version, found.compose, found.cores) == (
        SOCKET,
        "26.1.5+dfsg1",
        "2.26.1-4",
        8,
    )
    assert machine.commands == [["docker", "--host", SOCKET, "compose", "version", "--short"]]
    assert found.command("compose", "up") == ["docker", "--host", SOCKET, "compose", "up"]


# Address


@pytest.mark.parametrize(
    ("variable", "context", "address"),
    [
        (
            None,
            SimpleNamespace(Host="unix:///run/user/1000/docker.sock"),
            "unix:///run/user/1000/docker.sock",
        ),
        ("unix:///x.sock", SimpleNamespace(Host=SOCKET), "unix:///x.sock"),
        ("", SimpleNamespace(Host=SOCKET), SOCKET),
        (None, SimpleNamespace(Host=""), SOCKET),
        (None, None, SOCKET),
    ],
)
def test_address(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, variable: str | None, context: Any, address: str
) -> None:
    if variable is not None:
        monkeypatch.setenv("DOCKER_HOST", variable)
    monkeypatch.setattr(ContextAPI, "get_current_context", lambda: context)
    assert reach().host == address
    assert machine.addresses == [address]


@pytest.mark.parametrize("host", ["tcp://10.0.0.5:2375", "ssh://me@there", "http://localhost:2375"])
def test_remote_engine_is_rejected(machine: Machine, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    reason = error()
    assert reason.startswith(f"the Docker engine at {host} is on another machine")
    assert reason.endswith("unset DOCKER_HOST, or use --runtime local")
    assert machine.addresses == []


def test_unreadable_context(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("bad json\nand more")

    monkeypatch.setattr(ContextAPI, "get_current_context", broken)
    assert error() == "the current docker context cannot be read (bad json)"


# Causes, as the SDK and urllib3 word them


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (
            "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))",
            "it is not running; on a bare Debian or Ubuntu machine: make engine",
        ),
        (
            "('Connection aborted.', PermissionError(13, 'Permission denied'))",
            "permission denied: sudo usermod -aG docker $USER, then log in again",
        ),
        (
            "('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))",
            "it has ended; start it again, on a bare Debian or Ubuntu machine: make engine",
        ),
        ("odd\nand a second line", "Error while fetching server API version: odd"),
    ],
)
def test_engine_that_does_not_respond(machine: Machine, inner: str, reason: str) -> None:
    machine.error = DockerException(f"Error while fetching server API version: {inner}")
    assert error() == f"no Docker engine answers at {SOCKET} ({reason})"
    assert machine.commands == []


def test_exception_without_a_message(machine: Machine) -> None:
    machine.error = TimeoutError()
    assert error() == f"no Docker engine answers at {SOCKET} (TimeoutError)"


def test_long_message_is_truncated(machine: Machine) -> None:
    machine.error = DockerException("x" * 5000)
    assert len(error()) < 250


def test_unexpected_response(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def client(**_: Any) -> Any:
        return SimpleNamespace(version=lambda: {"Version": "26.1"}, info=dict, close=lambda: None)

    monkeypatch.setattr(docker, "DockerClient", client)
    assert error().startswith(f"no Docker engine answers at {SOCKET}")


# Versions


@pytest.mark.parametrize("version", ["20.10.24+dfsg1", "22.9.9", "19.03.15", "unknown"])
def test_old_engine(machine: Machine, version: str) -> None:
    machine.version = version
    assert error() == (
        f"Docker engine {version} is too old, 23.0 or newer is needed; "
        "on a bare Debian or Ubuntu machine: make engine"
    )


@pytest.mark.parametrize("version", ["23.0.0", "100.1", "26.1.5+dfsg1", "v28.0.1"])
def test_supported_engine(machine: Machine, version: str) -> None:
    machine.version = version
    assert reach().version == version


@pytest.mark.parametrize("version", ["2.20.0", "v2.26.1", "2.100.0", "5.0.0"])
def test_supported_compose(machine: Machine, version: str) -> None:
    machine.compose = (f"{version}\n", 0)
    assert reach().compose == version


NEEDED = "Docker Compose 2.20 or newer is needed; on a bare Debian or Ubuntu machine: make engine"


@pytest.mark.parametrize(
    ("compose", "reason"),
    [
        (("", 1), "there is no docker compose command"),
        (("", 0), "there is no docker compose command"),
        (("Usage:  docker [OPTIONS] COMMAND", 125), "there is no docker compose command"),
        (("2.19.1\n", 0), "Docker Compose 2.19.1 is too old"),
        (("1.29.2\n", 0), "Docker Compose 1.29.2 is too old"),
        (FileNotFoundError(2, "No such file or directory"), "there is no docker command"),
        (PermissionError(13, "Permission denied"), "there is no docker command (Permission denied)"),
        (subprocess.TimeoutExpired(["docker"], 30), "`docker compose version` timed out"),
    ],
)
def test_unusable_compose(machine: Machine, compose: Any, reason: str) -> None:
    machine.compose = compose
    found = error()
    assert found.startswith(reason)
    assert found.endswith(NEEDED)
