"""The Docker engine: whether it responds, and its version."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import InputError

if TYPE_CHECKING:
    from docker import DockerClient

MIN_ENGINE = (23, 0)  # builds with additional contexts
MIN_COMPOSE = (2, 20)  # `include`, `attach`
BARE = "on a bare Debian or Ubuntu machine: make engine"
TIMEOUT_S = 60  # starting a container takes long on a busy machine


class EngineError(InputError):
    """The engine cannot be used; the message says why and how to fix it."""


@dataclass(frozen=True)
class Engine:
    """An engine that responds. host: its address. cores: those of its machine."""

    client: DockerClient
    host: str
    version: str
    compose: str
    cores: int

    def command(self, *arguments: str) -> list[str]:
        """A docker command line for this engine, independent of the current context."""
        return ["docker", "--host", self.host, *arguments]


def reach() -> Engine:
    """The engine that the docker command would use. Raises EngineError."""
    import docker

    host = _address()
    if not host.startswith(("unix://", "npipe://")):
        raise EngineError(
            f"the Docker engine at {host} is on another machine, and results come back through a "
            "shared directory: unset DOCKER_HOST, or use --runtime local"
        )
    client: DockerClient | None = None
    try:
        client = docker.DockerClient(base_url=host, timeout=TIMEOUT_S)
        version = str(client.version()["Version"])
        cores = int(client.info()["NCPU"])
    except Exception as error:  # the SDK does not wrap the exceptions of its HTTP library
        if client:
            client.close()
        raise EngineError(f"no Docker engine answers at {host} ({_reason(error)})") from error
    if _number(version) < MIN_ENGINE:
        raise EngineError(
            f"Docker engine {version} is too old, {_dotted(MIN_ENGINE)} or newer is needed; {BARE}"
        )
    return Engine(client, host, version, _compose(host), cores)


def is_responding(engine: Engine) -> bool:
    """Whether the engine responds."""
    try:
        return bool(engine.client.ping())
    except Exception:  # the SDK does not wrap the exceptions of its HTTP library
        return False


def command_error(engine: Engine, *arguments: str) -> str | None:
    """Run a docker command. Returns why it failed, or None."""
    try:
        done = subprocess.run(engine.command(*arguments), capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S} s"
    return (done.stderr.strip()[:300] or f"exit code {done.returncode}") if done.returncode else None


def _address() -> str:
    """DOCKER_HOST, else that of the current docker context: what the docker command uses."""
    from docker.context import ContextAPI

    if host := os.environ.get("DOCKER_HOST"):
        return host
    try:
        context = ContextAPI.get_current_context()
    except Exception as error:
        raise EngineError(f"the current docker context cannot be read ({_reason(error)})") from error
    return str(context.Host) if context and context.Host else "unix:///var/run/docker.sock"


def _compose(host: str) -> str:
    """The version of Docker Compose, whose plugin may be missing. Raises EngineError."""
    command = ["docker", "--host", host, "compose", "version", "--short"]
    needed = f"Docker Compose {_dotted(MIN_COMPOSE)} or newer is needed; {BARE}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError as error:
        raise EngineError(f"there is no docker command ({error.strerror}); {needed}") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"`docker compose version` timed out; {needed}") from error
    version = done.stdout.strip()
    if done.returncode or not version:
        raise EngineError(f"there is no docker compose command; {needed}")
    if _number(version) < MIN_COMPOSE:
        raise EngineError(f"Docker Compose {version} is too old; {needed}")
    return version


def _number(version: str) -> tuple[int, ...]:
    """(26, 1) of 26.1.5+dfsg1 or v26.1.5."""
    found = re.search(r"(\d+)\.(\d+)", version)
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _reason(error: BaseException) -> str:
    """The cause of an exception of the SDK, in one line."""
    text = str(error)
    if "Permission denied" in text or "PermissionError" in text:
        return "permission denied: sudo usermod -aG docker $USER, then log in again"
    if "No such file" in text or "FileNotFoundError" in text:
        return f"it is not running; {BARE}"
    if "Connection refused" in text:
        return f"it has ended; start it again, {BARE}"
    return (text.splitlines() or [type(error).__name__])[0][:120]
