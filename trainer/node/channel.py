"""What the orchestrator and a coordinator tell each other, a line of JSON each.

    orchestrator ── run, cancel, end, beat ─────────────►  coordinator     Request
    orchestrator ◄─ waiting, alive, suspended, ended … ──  coordinator     Answer

The lines go through two pipes, or are appended to two files of a directory that both ends can write to. A
mounted directory is the one channel that every container engine has, those in virtual machines included. A
network file system may hide a new file for a minute, but not what is appended to an old one.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from trainer.core.processes import Suspended
from trainer.core.record import Count, Record, Text, checked, parse_object

REQUESTS, ANSWERS = "requests.jsonl", "answers.jsonl"
POLL_S = 0.02  # between looks at what the other end has written
READ_BYTES = 2**16
SPEC = "spec.json"  # in the directory of a run


class Ending(Record):
    """How a run has ended.

    exits: exit code by agent (node-1, launcher) and of the coordinator, as its container would have it,
        and that of mpirun if it has failed.
    failures: the first known cause, by agent.
    unreported: those of them that no event of a rank reports.
    lost: how a warm parent has failed; None if none has.
    cut_off: which container was cut off the network or did not register; None if none.
    untrusted: which container has sent invalid data, and what; None if none has.
    """

    exits: dict[str, int]
    failures: dict[str, str] = Field(default_factory=dict)
    unreported: dict[str, str] = Field(default_factory=dict)
    lost: str | None = None
    cut_off: str | None = None
    untrusted: str | None = None


class Request(Record):
    """What the orchestrator asks for.

    Attributes:
        run: numbers the runs of a cluster.
        beat: numbers the heartbeats whose answers are waited for.
        name: that of the run in logs.
        directory: that of the run, with its spec; below the channel's own, or an absolute path.
        site: the machines, see `Site`.
        warm: whether warm parents fork the ranks.
    """

    kind: Literal["run", "cancel", "end", "beat"]
    run: Count = 0
    beat: Count = 0
    name: str = ""
    directory: str = ""
    site: dict[str, Any] = Field(default_factory=dict)
    warm: bool = False


class Answer(Record):
    """What has happened.

    run: the number of the run that it is about. beat: that of the heartbeat that it answers. suspended: the
    run's suspended processes. reason: what the run waits for, or why the coordinator takes no more runs.
    facts: of the cluster, for its runtime.
    """

    kind: Literal["waiting", "alive", "suspended", "ended", "lost"]
    run: Count = 0
    beat: Count = 0
    suspended: dict[str, Count] = Field(default_factory=dict)
    ending: Ending | None = None
    reason: Text | None = None
    facts: dict[str, float | str] = Field(default_factory=dict)

    @property
    def processes(self) -> Suspended:
        """`suspended`, with ranks as numbers, which are no keys in JSON."""
        return {int(name) if name != "mpirun" else "mpirun": pid for name, pid in self.suspended.items()}


R = TypeVar("R", bound=Record)


class Channel(ABC, Generic[R]):
    """One end. R: what the other end writes.

    Attributes:
        closed: whether the other end writes nothing more.
        poll_s: seconds between looks at what it has written, where it is waited for.
    """

    closed = False
    poll_s = POLL_S

    def __init__(self, reads: type[R]) -> None:
        self._reads, self._rest = reads, b""

    def post(self, record: Record) -> None:
        """Write a line. Raises OSError."""
        self._write(record.model_dump_json(exclude_defaults=True).encode() + b"\n")

    def new(self) -> list[R]:
        """The complete lines since the last call. Raises ValueError if one is no such record."""
        *lines, self._rest = (self._rest + b"".join(self._read())).split(b"\n")
        what = self._reads.__name__.lower()
        return [checked(self._reads, parse_object(line, what), what) for line in lines]

    @abstractmethod
    def _write(self, line: bytes) -> None:
        """Raises OSError."""

    @abstractmethod
    def _read(self) -> Iterator[bytes]:
        """What the other end has written since the last call."""


class FileChannel(Channel[R]):
    """Through two files, which exist before both ends."""

    def __init__(self, inbox: Path, outbox: Path, reads: type[R]) -> None:
        super().__init__(reads)
        self._inbox, self._outbox, self._position = inbox, outbox, 0

    def _write(self, line: bytes) -> None:
        file = os.open(self._outbox, os.O_WRONLY | os.O_APPEND)  # one that was removed stays so
        try:
            _write_all(file, line)
        finally:
            os.close(file)

    def _read(self) -> Iterator[bytes]:
        with suppress(FileNotFoundError), open(self._inbox, "rb") as file:
            file.seek(self._position)
            content = file.read()
            self._position += len(content)
            yield content


class PipeChannel(Channel[R]):
    """Through two pipes."""

    poll_s = 0.002

    def __init__(self, inbox: int, outbox: int, reads: type[R]) -> None:
        """inbox, outbox: descriptors."""
        super().__init__(reads)
        self._inbox, self._outbox = inbox, outbox
        os.set_blocking(inbox, False)

    def _write(self, line: bytes) -> None:
        _write_all(self._outbox, line)

    def _read(self) -> Iterator[bytes]:
        with suppress(BlockingIOError):
            while content := os.read(self._inbox, READ_BYTES):
                yield content
            self.closed = True


def _write_all(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]


def file_channel(directory: Path) -> FileChannel[Answer]:
    """The orchestrator's end of a new channel in a directory."""
    for name in (REQUESTS, ANSWERS):
        (directory / name).write_text("")
    return FileChannel(directory / ANSWERS, directory / REQUESTS, Answer)


def coordinators_channel(directory: Path) -> FileChannel[Request]:
    """The coordinator's end of the channel in a directory."""
    return FileChannel(directory / REQUESTS, directory / ANSWERS, Request)


def log_marks(key: str) -> tuple[str, str]:
    """The lines that enclose a run in the log of a warm container."""
    return f"--- run {key} ---", f"--- end of run {key} ---"
