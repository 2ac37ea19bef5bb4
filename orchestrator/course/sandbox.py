"""Where a student's code runs: a process with limits, reached through one byte stream."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import psutil

from orchestrator.runtimes.local.runtime import labelled, own_label
from orchestrator.shipped import python_path
from trainer.core.events import signal_name
from trainer.course.protocol import HEADER, ProtocolError, frame, length, message

READY_S = 60.0  # for the process to start, on a busy machine
MAX_BYTES = 256 * 2**20  # that one check may receive
KILL_TIMES = 100  # passes over the processes of code that forks
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class SandboxError(Exception):
    """The sandbox cannot be used, through no fault of the submission."""


class Ended(Exception):
    """The process has ended, or must not go on. The message says how, as a sentence without subject."""


class TimedOut(Exception):
    """The process sent nothing in time."""


@dataclass(frozen=True)
class Limits:
    """Limits of one submission.

    Attributes:
        memory_mb: in MiB. processes: processes and threads together. scratch_mb: of /tmp, in MiB.
    """

    memory_mb: int = 1024
    processes: int = 128
    scratch_mb: int = 64


class Sandbox(ABC):
    """A process that runs `python -m trainer.course`."""

    @abstractmethod
    def open(self) -> None:
        """Start the process. Raises SandboxError."""

    @abstractmethod
    def read(self, count: int, timeout_s: float) -> bytes:
        """1 to `count` bytes; empty at the end of the stream. Raises TimeoutError or OSError."""

    @abstractmethod
    def write(self, data: bytes, timeout_s: float) -> None:
        """Raises OSError."""

    @abstractmethod
    def ending(self) -> str:
        """How a process ended whose stream has ended."""

    @abstractmethod
    def close(self) -> None:
        """Stop the process and all that it started. Idempotent."""


class Channel:
    """Messages with the process in a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Start the process, and wait until it is ready. Raises SandboxError."""
        self._sandbox = sandbox
        self._buffer = bytearray()
        self._received = 0
        try:
            sandbox.open()
            self.receive(time.monotonic() + READY_S)
        except (Ended, TimedOut) as error:
            sandbox.close()
            raise SandboxError(f"the process for the student's code did not start: {error}") from None
        except BaseException:
            sandbox.close()
            raise

    def send(self, reply: dict[str, Any], deadline: float) -> None:
        """Raises Ended or TimedOut."""
        try:
            self._sandbox.write(frame(reply), max(0.01, deadline - time.monotonic()))
        except TimeoutError:
            raise TimedOut from None
        except OSError:
            raise Ended(self._sandbox.ending()) from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next message. Raises Ended, TimedOut or ProtocolError."""
        return message(self._exactly(length(self._exactly(HEADER, deadline)), deadline))

    def _exactly(self, count: int, deadline: float) -> bytes:
        while len(self._buffer) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimedOut
            try:
                data = self._sandbox.read(2**16, left)
            except TimeoutError:
                raise TimedOut from None
            except OSError:
                data = b""
            if not data:
                raise Ended(self._sandbox.ending())
            self._buffer += data
            self._received += len(data)
            if self._received > MAX_BYTES:
                raise ProtocolError(f"sent more than {MAX_BYTES >> 20} MiB")
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def reset(self) -> None:
        """Begin another check: import the student's files again. Raises Ended."""
        self._received = 0
        self.send({"reset": True}, time.monotonic() + READY_S)

    def close(self) -> None:
        self._sandbox.close()


class LocalSandbox(Sandbox):
    """A process of this machine, with the rights of its user: for code that you trust."""

    def __init__(self, directory: Path, limits: Limits, prints: bool = False) -> None:
        """prints: show what the code prints, on standard error."""
        self._directory, self._limits, self._prints = directory, limits, prints
        self._run = {"SHARDYARD_RUN": f"course-{token_hex(8)}"}  # finds what the code has started
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def open(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainer.course", str(self._directory.resolve()), self._limits_of()],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=None if self._prints else subprocess.DEVNULL,
                env={**os.environ, **own_label(), **self._run, **ONE_THREAD, "PYTHONPATH": python_path()},
                start_new_session=True,  # Ctrl-C in the terminal is the grader's to handle
            )

    def _limits_of(self) -> str:
        limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": self._limits.scratch_mb * 2**20}
        if sys.platform == "linux":  # macOS refuses or ignores these
            limits["RLIMIT_AS"] = self._limits.memory_mb * 2**20
            limits["RLIMIT_NPROC"] = _threads_of_user() + self._limits.processes
        return json.dumps(limits)

    def read(self, count: int, timeout_s: float) -> bytes:
        return receive(self._socket, count, timeout_s)

    def write(self, data: bytes, timeout_s: float) -> None:
        send(self._socket, data, timeout_s)

    def ending(self) -> str:
        if self._process is None:
            return "was stopped"
        try:
            return described_exit(self._process.wait(1))
        except subprocess.TimeoutExpired:
            return "closed the channel of the grader"

    def close(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
            _kill_labelled(self._run)
        shut(self._socket)


def _kill_labelled(label: Mapping[str, str]) -> None:
    """Kill processes until two passes find none: a process may fork and end during a pass."""
    empty = 0
    for _ in range(KILL_TIMES):
        left = [process for process, _ in labelled(label)]
        empty = 0 if left else empty + 1
        if empty == 2:
            return
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def shut(connection: socket.socket | None) -> None:
    """Close a connection, also one from which another thread reads, which then finds its end."""
    if connection:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def receive(source: socket.socket | None, count: int, timeout_s: float) -> bytes:
    """1 to `count` bytes; empty at the end of the stream, or if it is closed here."""
    if source is None:
        return b""
    source.settimeout(timeout_s)
    return source.recv(count)


def send(target: socket.socket | None, data: bytes, timeout_s: float) -> None:
    """Send everything. Raises OSError."""
    if target is None:
        raise BrokenPipeError
    target.settimeout(timeout_s)
    target.sendall(data)


def described_exit(code: int) -> str:
    """How a process ended; code: negative if a signal killed it."""
    if code < 0:
        return f"was killed by {signal_name(-code)}"
    return f"ended its process with exit code {code}"


def _threads_of_user() -> int:
    """What the kernel counts for RLIMIT_NPROC: threads of all processes of the user. It limits no root."""
    user, count = os.getuid(), 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            count += process.num_threads() if process.uids().real == user else 0
    return count
