"""Sandboxes that are containers: without network, rights, or anything but the submission to read."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from docker.errors import DockerException, NotFound
from docker.types import LogConfig, Mount

from orchestrator.course.sandbox import (
    ONE_THREAD,
    Limits,
    Sandbox,
    SandboxError,
    described_exit,
    receive,
    send,
    shut,
)
from orchestrator.errors import InputError
from orchestrator.runtimes.docker.engine import EngineError, reach
from orchestrator.runtimes.docker.image import image_id, image_trouble
from orchestrator.runtimes.docker.reaper import LABEL, Reaper, remove_of_orchestrator, remove_orphans
from orchestrator.runtimes.identity import identity

SUBMISSION = "/submission"  # in the container
NODE_USER = "10001:10001"
END_S = 5.0  # for the engine to notice the end of a process whose stream has ended
_STDOUT = 1
_HEADER = 8  # bytes before each part of a container's output: its stream, three zeros, its length


class ContainerSandboxes:
    """The engine, the image, and the clean-up of all containers of this process."""

    def __init__(self) -> None:
        """Raises InputError if there is no engine, or no image of these sources."""
        try:
            self.engine = reach()
            trouble = image_trouble(self.engine)
        except EngineError as error:
            trouble = str(error)
        if trouble:
            raise InputError(f"--runtime docker: {trouble}; or --runtime local, for code that you trust")
        self.image = image_id(self.engine)
        remove_orphans(self.engine)
        self._reaper = Reaper(identity())  # removes them if this process is killed

    def sandbox(self, directory: Path, limits: Limits) -> Sandbox:
        """A sandbox for one submission, not yet started."""
        return ContainerSandbox(self, directory, limits)

    def close(self) -> None:
        """Remove whatever is left."""
        remove_of_orchestrator(self.engine, identity())


class ContainerSandbox(Sandbox):
    """One container, which the student's code shares with nothing."""

    def __init__(self, sandboxes: ContainerSandboxes, directory: Path, limits: Limits) -> None:
        self._sandboxes, self._directory, self._limits = sandboxes, directory, limits
        self._api = sandboxes.engine.client.api
        self._id: str | None = None
        self._stream: Any = None  # keeps the connection of the socket open
        self._socket: socket.socket | None = None
        self._left = 0  # bytes of the present part of the output
        self._header = bytearray()
        self._is_output = False

    def open(self) -> None:
        try:
            created = self._sandboxes.engine.client.containers.create(
                self._sandboxes.image, **settings(self._directory, self._limits)
            )
            self._id = str(created.id)
            wanted = {"stdin": 1, "stdout": 1, "stream": 1}
            self._stream = self._api.attach_socket(self._id, params=wanted)
            self._socket = self._stream._sock
            self._api.start(self._id)
        except Exception as error:  # the SDK does not wrap the exceptions of its HTTP library
            raise SandboxError(f"the engine did not start a container: {error}") from error

    def read(self, count: int, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while True:
            while not self._left:
                data = self._receive(_HEADER - len(self._header), deadline)
                if not data:
                    return b""
                self._header += data
                if len(self._header) == _HEADER:
                    self._is_output = self._header[0] == _STDOUT
                    self._left = int.from_bytes(self._header[4:], "big")
                    self._header.clear()
            data = self._receive(min(count, self._left), deadline)
            self._left -= len(data)
            if self._is_output or not data:
                return data

    def _receive(self, count: int, deadline: float) -> bytes:
        return receive(self._socket, count, max(0.01, deadline - time.monotonic()))

    def write(self, data: bytes, timeout_s: float) -> None:
        send(self._socket, data, timeout_s)

    def ending(self) -> str:
        deadline = time.monotonic() + END_S
        while self._id:
            try:
                state = self._api.inspect_container(self._id)["State"]
            except NotFound:
                break
            except Exception as error:  # as in `open`
                raise SandboxError(f"the engine does not answer: {error}") from error
            if not state["Running"]:
                if state["OOMKilled"]:
                    return f"needed more than {self._limits.memory_mb} MiB of memory and was killed"
                code = int(state["ExitCode"])
                return described_exit(128 - code if code > 128 else code)
            if time.monotonic() > deadline:
                return "closed the channel of the grader"
            time.sleep(0.05)
        return "was stopped"

    def close(self) -> None:
        identifier, self._id = self._id, None
        shut(self._socket)
        if identifier:
            # Another process may remove it at the same moment; what is left, ContainerSandboxes removes.
            with suppress(DockerException, OSError):
                self._api.remove_container(identifier, force=True, v=True)


def settings(directory: Path, limits: Limits) -> dict[str, Any]:
    """What the engine is asked for: everything that a container may do and have."""
    return {
        "entrypoint": ["python", "-m", "trainer.course", SUBMISSION],
        "command": [],
        "labels": {LABEL: identity()},
        "user": NODE_USER,
        "environment": ONE_THREAD,
        "stdin_open": True,
        "init": True,
        "network_mode": "none",
        "ipc_mode": "none",  # no /dev/shm
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": f"{limits.memory_mb}m",
        "memswap_limit": f"{limits.memory_mb}m",
        "pids_limit": limits.processes,
        "nano_cpus": 10**9,
        "tmpfs": {"/tmp": f"mode=1777,size={limits.scratch_mb}m,noexec,nosuid,nodev"},
        "mounts": [Mount(SUBMISSION, str(directory.resolve()), type="bind", read_only=True)],
        "log_config": LogConfig(type=LogConfig.types.NONE),
        "healthcheck": {"test": ["NONE"]},
    }


def unreadable(directory: Path) -> Path | None:
    """A file of a submission that the container's user cannot read; None: there is none."""
    for path in (directory, *sorted(directory.rglob("*"))):
        if not path.is_symlink():
            needed = 0o5 if path.is_dir() else 0o4
            if path.stat().st_mode & needed != needed:
                return path
    return None
