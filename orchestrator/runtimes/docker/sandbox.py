"""Sandboxes that are containers: confined as a node is, and without a network."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

from orchestrator.identity import identity
from orchestrator.runtimes.docker.engine import Engine
from orchestrator.runtimes.docker.reaper import LABEL
from orchestrator.sandbox.base import Program, Sandbox, SandboxError, described_exit, receive, send, shut

NODE_USER = "10001:10001"
END_S = 5.0  # for the engine to notice the end of a process whose stream has ended
_STDOUT = 1
_HEADER = 8  # bytes before each part of a container's output: its stream, three zeros, its length


class ContainerSandbox(Sandbox):
    """One container, which the code shares with nothing.

    Args:
        engine: the engine on which it runs.
        image: name or ID.
        program: what it runs.
    """

    has_other_user = True

    def __init__(self, engine: Engine, image: str, program: Program) -> None:
        super().__init__()
        self._engine, self._image, self._program = engine, image, program
        self._api = engine.client.api
        self._id: str | None = None
        self._stream: Any = None  # keeps the connection of the socket open
        self._socket: socket.socket | None = None
        self._left = 0  # bytes of the present part of the output
        self._header = bytearray()
        self._is_output = False

    def open(self) -> None:
        try:
            created = self._engine.client.containers.create(self._image, **confined(self._program))
            self._id = str(created.id)
            wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            self._stream = self._api.attach_socket(self._id, params=wanted)
            self._socket = self._stream._sock
            self._api.start(self._id)
        except Exception as error:  # the SDK does not wrap the exceptions of its HTTP library
            self.close()
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
            self.printed.add(data)

    def _receive(self, count: int, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return receive(self._socket, count, left)

    def write(self, data: bytes, timeout_s: float) -> None:
        send(self._socket, data, timeout_s)

    def ending(self) -> str:
        from docker.errors import NotFound

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
                    return f"needed more than {self._program.limits.memory_mb} MiB of memory and was killed"
                code = int(state["ExitCode"])
                return described_exit(128 - code if code > 128 else code)
            if time.monotonic() > deadline:
                return "closed the channel of its answers"
            time.sleep(0.05)
        return "was stopped"

    def close(self) -> None:
        identifier, self._id = self._id, None
        shut(self._socket)
        if identifier:
            # Another process may remove it at the same moment; what is left, the reaper removes.
            with suppress(Exception):
                self._api.remove_container(identifier, force=True, v=True)


def confined(program: Program) -> dict[str, Any]:
    """What the engine is asked for: everything that a container may do and have. It can write to /tmp."""
    from docker.types import LogConfig, Mount

    limits = program.limits
    return {
        "entrypoint": ["python", "-m", *program.module],
        "command": [],
        "labels": {LABEL: identity()},
        "user": NODE_USER,
        "environment": dict(program.environment),
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
        "mounts": [
            Mount(to, str(path), type="bind", read_only=True) for path, to in program.readable.items()
        ],
        "log_config": LogConfig(type=LogConfig.types.NONE),
        "healthcheck": {"test": ["NONE"]},
    }
