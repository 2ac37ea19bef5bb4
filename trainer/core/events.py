"""Events: what a rank reports while it runs, one JSON object per line. Imports no torch.

Every event has `version`, `time` (seconds since 1970), `run` (key), `rank`, `host`, `kind`, and the
fields of its kind:

| kind | when | fields |
| --- | --- | --- |
| start | the process is up | pid, attempt (from 0, where torchrun starts ranks again) |
| ready | set up; waits for its node's CPU quota, if one will be applied | |
| train_start | clock starts, all ranks ready | parameters |
| step | at most twice a second | epoch, epochs, step, steps, loss, accuracy (of the batch), samples_per_s |
| partition | a rank finished an epoch | see certificate.PartitionRecord |
| coverage | the first training rank finished an epoch | see certificate.CoverageRecord |
| epoch | an epoch was evaluated | epoch, epochs, train_s, lr, loss (none of a server), accuracy, |
| | | test_loss, target_reached (training ends here), consensus_distance (of replicas that differ) |
| checkpoint | a checkpoint was written | epoch (completed), step (of the next epoch), bytes, seconds |
| checkpoint_skipped | a checkpoint cannot be resumed from | epoch, step, cause |
| resumed | a run resumes from a checkpoint | epoch, step, age_s (of the checkpoint), times (so far) |
| train_end | clock stopped | |
| result | training ended | see result.TrainResult |
| done, failed, terminated, died | exit report | cause, traceback, signal, forced |
| damaged | the reader found a line that is not an event | line |

A restarted rank begins with another `start`, and only its events since then count. After `resumed` it
repeats the `partition`, `coverage` and `epoch` events of the checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, TextIO

VERSION = 1
MAX_BYTES = 8192  # pipes and log drivers may split longer lines
EXIT_REPORTS = ("done", "failed", "terminated", "died")


@dataclass(frozen=True)
class Event:
    """One event of one rank."""

    time: float
    run: str
    rank: int
    host: str
    kind: str
    fields: dict[str, Any]

    def to_line(self) -> str:
        """One line of JSON, without its newline. Raises ValueError if it is 8 KiB or longer."""
        head = {"version": VERSION, "time": self.time, "run": self.run, "rank": self.rank}
        head |= {"host": self.host, "kind": self.kind}
        if taken := head.keys() & self.fields.keys():
            raise ValueError(f"event {self.kind}: {', '.join(sorted(taken))} cannot be a field's name")
        line = json.dumps(head | self.fields, allow_nan=False)
        if len(line) + 1 >= MAX_BYTES:
            raise ValueError(f"event {self.kind} has {len(line)} bytes; allowed: fewer than {MAX_BYTES}")
        return line

    @classmethod
    def from_line(cls, line: str) -> Event:
        """The inverse of `to_line`. Raises ValueError for anything else."""
        fields = json.loads(line)
        if not isinstance(fields, dict) or fields.pop("version", None) != VERSION:
            raise ValueError(f"not an event of version {VERSION}: {line[:80]!r}")
        try:
            head = {name: fields.pop(name) for name in ("time", "run", "rank", "host", "kind")}
        except KeyError as missing:
            raise ValueError(f"event without {missing}: {line[:80]!r}") from None
        event = cls(**head, fields=fields)
        if not (isinstance(event.time, int | float) and isfinite(event.time) and type(event.rank) is int):
            raise ValueError(f"event with an invalid time or rank: {line[:80]!r}")
        return event


class EventWriter:
    """Writes one rank's events: JSON lines to a file if there is one, readable lines to `console`.

    prefix: starts each readable line; {rank} is replaced by the rank.
    """

    def __init__(
        self,
        run: str,
        rank: int,
        directory: Path | None = None,
        console: TextIO | None = None,
        prefix: str = "node-{rank} | ",
    ) -> None:
        self._run = run
        self.rank = rank
        self._prefix = prefix
        self._directory = directory
        self._host = socket.gethostname()
        self._console = console or sys.stdout
        self._file = _lines(directory / f"rank-{rank}.jsonl") if directory else None

    def write(self, kind: str, **fields: Any) -> None:
        event = self._append(kind, fields)
        if line := format_event(event):
            self._console.write(
                self._prefix.replace("{rank}", str(self.rank)) + line + "\n"
            )  # one write, so that ranks do not mix their lines on a shared console
            self._console.flush()

    def write_quietly(self, kind: str, **fields: Any) -> None:
        """Write an event of an earlier attempt again, without its console line."""
        self._append(kind, fields)

    def _append(self, kind: str, fields: dict[str, Any]) -> Event:
        event = Event(time.time(), self._run, self.rank, self._host, kind, fields)
        if self._file:
            self._file.write(event.to_line() + "\n")
        return event

    def as_rank(self, rank: int) -> EventWriter:
        """A writer for another rank of the same run."""
        return EventWriter(self._run, rank, self._directory, self._console, self._prefix)


def _lines(path: Path) -> TextIO:
    _end_last_line(path)
    return open(path, "a", buffering=1, encoding="utf-8")  # line-buffered: readers see each event at once


def _end_last_line(path: Path) -> None:
    """End the incomplete line of a killed process, so that the next event has a line of its own."""
    with open(path, "ab+") as file:
        if file.tell() == 0:
            return
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.write(b"\n")


class EventReader:
    """Reads the events of a directory as they are written, each exactly once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}

    def new(self) -> list[Event]:
        """The events since the last call, in order of time. Incomplete lines are left for the next call."""
        events: list[Event] = []
        for path in sorted(self._directory.glob("rank-*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._offsets.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole + newline)
            lines = whole.decode(errors="replace").split("\n")
            events += [_read(line, path) for line in lines if line]
        return sorted(events, key=lambda event: event.time)


def _read(line: str, path: Path) -> Event:
    """The event; for an invalid line, e.g. after a full disk, one of kind `damaged`."""
    try:
        return Event.from_line(line)
    except ValueError:
        rank = int(path.stem.partition("-")[2])
        return Event(time.time(), "", rank, "", "damaged", {"line": line[:80]})


def read_events(path: Path) -> Iterator[Event]:
    """The events of one merged file."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield Event.from_line(line)


def signal_name(number: int) -> str:
    """Name of a signal in events and messages."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def combined_digest(part_digests: Iterable[str]) -> str:
    """Digest of a partition, 16 hex digits: a hash of its parts' digests in rank order.

    The `coverage` event has the digest of the partition. Each rank's `partition` event has the digest of
    the samples that it trained on. If both agree, the nodes trained on the partition.
    """
    return sha256("".join(part_digests).encode()).hexdigest()[:16]


def format_event(event: Event) -> str | None:
    """The console line of an event; None for kinds that are not shown."""
    fields = event.fields
    match event.kind:
        case "start":
            text = f"up, process {fields['pid']}"
        case "step":
            text = (
                f"epoch {fields['epoch']}/{fields['epochs']} step {fields['step']}/{fields['steps']} "
                f"loss {fields['loss']:.3f} acc {fields['accuracy']:.1%} "
                f"{fields['samples_per_s']:,.0f} samples/s"
            )
        case "epoch":
            loss = "" if fields["loss"] is None else f"loss {fields['loss']:.3f} "
            text = (
                f"epoch {fields['epoch']}/{fields['epochs']} done in {fields['train_s']:.2f} s, "
                f"{loss}acc {fields['accuracy']:.1%}"
                f"{', target reached' if fields.get('target_reached') else ''}"
            )
        case "result" if "accuracy" in fields and fields["accuracy"] is not None:
            # A server, or a rank with a part of the model, counts no samples of its own.
            did = f"trained {fields['samples']:,} samples" if fields["samples"] else "took part"
            text = f"{did} in {fields['train_s']:.2f} s, acc {fields['accuracy']:.1%}"
        case "checkpoint":
            text = (
                f"checkpoint after {_place(fields)}, {fields['bytes']:,} bytes in {fields['seconds']:.2f} s"
            )
        case "checkpoint_skipped":
            text = f"checkpoint after {_place(fields)} is not used: {fields['cause']}"
        case "resumed":
            text = f"resumed from the checkpoint after {_place(fields)}"
        case "failed":
            text = f"failed: {fields['cause']}\n{fields.get('traceback', '')}".rstrip()
        case "terminated" | "died":
            text = f"{event.kind}: {fields.get('cause', '')}"
        case _:
            return None
    return text


def _place(fields: dict[str, Any]) -> str:
    steps = f" and {fields['step']} steps" if fields["step"] else ""
    return f"epoch {fields['epoch']}{steps}"
