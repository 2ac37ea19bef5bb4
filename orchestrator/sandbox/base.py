"""A process that runs code that is not trusted, and the messages with it."""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trainer.core.events import signal_name
from trainer.core.frames import HEADER, MAX_FRAME, MAX_VALUES, ProtocolError, frame, length, message
from trainer.core.record import printable

READY_S = 60.0  # for the process to start, on a busy machine
MAX_BYTES = 256 * 2**20  # that the process may send until `Channel.renew`
TAIL_BYTES = 1000  # of what the code prints


class SandboxError(Exception):
    """The sandbox cannot be used, through no fault of the code in it."""


class Ended(Exception):
    """The process has ended, or must not go on. The message says how, as a sentence without subject."""


class TimedOut(Exception):
    """The process sent nothing in time."""


@dataclass(frozen=True)
class Limits:
    """Limits of one sandbox.

    Attributes:
        memory_mb: the memory, in MiB. processes: processes and threads together. scratch_mb: the size of
            /tmp, in MiB.
    """

    memory_mb: int = 1024
    processes: int = 128
    scratch_mb: int = 64


@dataclass(frozen=True)
class Program:
    """What a sandbox runs, and what that may have.

    Attributes:
        module: a module of the trainer, which serves on standard input and output, and its arguments.
        environment: its variables; as a process of this machine, beside those of this one.
        limits, readable: those of a container: its limits, and the paths that it can read, with their
            paths in it.
        requirements: a file with packages that it needs; None: none.
        prints: whether the terminal shows what it prints, as a process of this machine.
        user: whose rights it has, as a process of this machine; empty: those of this process.
    """

    module: Sequence[str]
    environment: Mapping[str, str]
    limits: Limits
    readable: Mapping[Path, str]
    requirements: Path | None = None
    prints: bool = False
    user: str = ""


def no_answer(error: Exception, subject: str, limit_s: float) -> str:
    """Why a process sent no answer.

    Args:
        error: what a channel has raised.
        subject: what the process is called.
        limit_s: seconds in which it had to answer.
    """
    match error:
        case SandboxError():
            return str(error)
        case TimedOut():
            return f"{subject} did not answer within {limit_s:g} s"
    return f"{subject} {error}"


class Tail:
    """The last bytes of a stream."""

    def __init__(self) -> None:
        self._bytes = b""

    def add(self, data: bytes) -> None:
        self._bytes = (self._bytes + data)[-TAIL_BYTES:]

    @property
    def line(self) -> str:
        """The last line that is not empty, with visible escapes for what controls a terminal."""
        lines = self._bytes.decode(errors="replace").splitlines()
        return printable(next((line.strip() for line in reversed(lines) if line.strip()), ""))


class Sandbox(ABC):
    """A process that gets and sends messages, in frames of `trainer.core.frames`.

    Attributes:
        has_other_user: whether the process has another user, who can read only what all users can.
        printed: the last bytes that the code in it has printed.
    """

    has_other_user: ClassVar[bool] = False

    def __init__(self) -> None:
        self.printed = Tail()

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
    """Messages with the process in a sandbox.

    Args:
        sandbox: not yet started.
        most: bytes of a message that the process may send.
    """

    def __init__(self, sandbox: Sandbox, most: int = MAX_FRAME) -> None:
        """Start the process, and wait until it is ready. Raises SandboxError."""
        self._sandbox, self._most = sandbox, most
        self._buffer = bytearray()
        self._received = 0
        try:
            sandbox.open()
            self.receive(time.monotonic() + READY_S)
        except (Ended, TimedOut, ProtocolError) as error:
            sandbox.close()
            how = str(error) or f"it sent nothing within {READY_S:g} s"
            raise SandboxError(f"the process in the sandbox did not start: {how}") from None
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
        size = length(self._exactly(HEADER, deadline), self._most)
        return message(self._exactly(size, deadline), MAX_VALUES)

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

    def renew(self) -> None:
        """Begin to count what the process sends from 0."""
        self._received = 0

    def close(self) -> None:
        self._sandbox.close()


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
