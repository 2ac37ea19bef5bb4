"""Events: what a rank reports while it runs, one JSON object per line. Imports no torch.

`event_schema` lists the kinds and their fields.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

from trainer.core.event_schema import EVENTS, VERSION, Head
from trainer.core.position import Position
from trainer.core.record import checked, cut, one_line, parse_object
from trainer.core.regular_files import RefusedFile, open_below

MAX_BYTES = 8192  # pipes and log drivers may split longer lines
MAX_DAMAGED = 128  # lines of one file: each restart of a killed rank can leave one
UNREPORTED = "ended with exit code 0 before it reported its result"


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
        """The inverse of `to_line`, with visible escapes for control characters.

        Raises ValueError for anything else; the message names the kind and the field that does not fit.
        """
        if len(line) + 1 >= MAX_BYTES:
            raise ValueError(f"event: a line of {len(line)} characters; allowed: fewer than {MAX_BYTES}")
        fields = parse_object(line, "event")
        own = {name: fields.pop(name) for name in Head.model_fields if name in fields}
        head = checked(Head, own, "event")
        if head.kind not in EVENTS:
            raise ValueError(f"event: kind: {head.kind[:80]!r} is none of {', '.join(EVENTS)}")
        body = checked(EVENTS[head.kind], fields, f"event {head.kind}")
        found = body.model_dump(exclude_unset=True)
        event = cls(head.time, head.run, head.rank, head.host, head.kind, found)
        event.to_line()  # escapes can make it too long to be stored
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
        self._file = _lines(directory / events_name(rank)) if directory else None

    def write(self, kind: str, **fields: Any) -> None:
        event = self._append(kind, fields)
        if line := format_event(event):
            self.write_text(line)

    def write_text(self, text: str) -> None:
        """Write to the console only."""
        self._console.write(
            self._prefix.replace("{rank}", str(self.rank)) + text + "\n"
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

    def close(self) -> None:
        """Close the file, which a process that outlives the run must not keep open."""
        if self._file:
            self._file.close()

    def as_rank(self, rank: int) -> EventWriter:
        """A writer for another rank of the same run."""
        return EventWriter(self._run, rank, self._directory, self._console, self._prefix)


def events_name(rank: int) -> str:
    """The name of the file with a rank's events."""
    return f"rank-{rank}.jsonl"


def make_files(directory: Path, ranks: Iterable[int]) -> None:
    """Make the files to which these ranks will write their events."""
    for rank in ranks:
        (directory / events_name(rank)).touch()


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


@dataclass
class _Position:
    """How far a reader has read one file.

    size: that of the file when it was read. time: the time of the last event. latest: the latest time of
    all events so far.
    """

    offset: int = 0
    size: int = -1
    time: float = field(default_factory=time.time)
    latest: float = 0.0
    damaged: int = 0
    given_up: bool = False


class EventReader:
    """Reads the events of a directory as they are written, each exactly once.

    What does not fit the schema becomes an event of kind `damaged`, e.g. after a full disk.
    """

    def __init__(
        self,
        directory: Path,
        ranks: int | None = None,
        max_bytes_per_rank: int | None = None,
        restarts: int | None = None,
        made: Iterable[int] = (),
    ) -> None:
        """
        Args:
            directory: With a file per rank.
            ranks: Number of ranks of the run, whose files are read; None: all files are.
            max_bytes_per_rank: What is read of a file; a longer one is damaged. None: all of it.
            restarts: That the run may have; None: any number.
            made: Ranks whose files were made before they started: a missing one was removed.
        """
        self._directory, self._ranks, self._max_bytes = directory, ranks, max_bytes_per_rank
        self._restarts = restarts
        self._positions = {rank: _Position() for rank in made}

    @property
    def has_given_up(self) -> bool:
        """Whether it reads no more of some file, because there is too much in it."""
        return any(position.given_up for position in self._positions.values())

    def new(self) -> list[Event]:
        """The events since the last call. Incomplete lines are left for the next call.

        Events of different ranks are in order of time. Those of one rank are in the order in which they
        were written, also if the clock was set back between the death of a rank and its next start.
        """
        events: list[tuple[float, Event]] = []
        removed = {*self._positions}
        for path in sorted(self._directory.glob("rank-*.jsonl")):
            name = re.fullmatch(r"rank-(0|[1-9][0-9]{0,4})\.jsonl", path.name)
            if name and (self._ranks is None or int(name[1]) < self._ranks):
                rank = int(name[1])
                position = self._positions.setdefault(rank, _Position())
                removed.discard(rank)
                for event in self._new_of(path, rank, position):
                    position.latest = max(position.latest, event.time)
                    events.append((position.latest, event))
        for rank in sorted(removed) if self._directory.exists() else ():
            position = self._positions[rank]
            if not position.given_up:
                position.given_up = True
                damaged = _damaged(rank, position.time, f"{events_name(rank)} was removed", b"")
                events.append((position.latest, damaged))
        return [event for _, event in sorted(events, key=lambda each: each[0])]

    def _new_of(self, path: Path, rank: int, position: _Position) -> Iterator[Event]:
        if position.given_up or (size := _size(path)) == position.size:  # most files, if there are many
            return
        position.size = size
        try:
            opened = open_below(path.parent, path.name)
        except RefusedFile as error:
            position.given_up = True
            yield _damaged(rank, position.time, f"{path.name} {error.strerror}", b"")
            return
        with opened as file:
            file.seek(position.offset)
            most = -1 if self._max_bytes is None else self._max_bytes - position.offset
            data = file.read(most)
            more = len(data) == most and bool(file.read(1))
        whole, newline, rest = data.rpartition(b"\n")
        position.offset += len(whole + newline)
        for line in whole.split(b"\n") if whole else ():
            if not line:
                continue
            try:
                event = _event_of(rank, line.decode(errors="replace"))
                if self._restarts is not None:
                    check_attempt(event, self._restarts)
            except ValueError as error:
                event = _damaged(rank, position.time, str(error), line)
                position.damaged += 1
            position.time = event.time
            yield event
            if position.damaged == MAX_DAMAGED:
                position.given_up = True
                return
        if more or len(rest) >= MAX_BYTES:
            position.given_up = True
            limit = (
                f"{MAX_BYTES} bytes in one line" if len(rest) >= MAX_BYTES else f"{self._max_bytes} bytes"
            )
            yield _damaged(rank, position.time, f"events: more than {limit}", rest)


def _size(path: Path) -> int:
    """The size of a file, without following a link; -1 if it is gone."""
    try:
        return path.lstat().st_size
    except OSError:
        return -1


def check_attempt(event: Event, restarts: int) -> None:
    """Raise ValueError if a run with this many restarts has no such attempt.

    Its events would replace those of all ranks in the attempt before it.
    """
    if (attempt := event.fields.get("attempt", 0)) > restarts:
        raise ValueError(f"event {event.kind}: attempt: {attempt}, more than the run has restarts")


def damage(event: Event, name: str | None = None) -> str:
    """What an event of kind `damaged` says. name: the name of its rank, if it is not `rank N`."""
    return f"{name or f'rank {event.rank}'}'s events are damaged: {event.fields['reason']}"


def _event_of(rank: int, line: str) -> Event:
    """The event in a line of a rank's file. Raises ValueError."""
    event = Event.from_line(line)
    if event.rank != rank:
        raise ValueError(f"event {event.kind}: rank: {event.rank} in the file of rank {rank}")
    return event


def _damaged(rank: int, at: float, reason: str, line: bytes) -> Event:
    excerpt = one_line(line[:80].decode(errors="replace"))
    return Event(at, "", rank, "", "damaged", {"line": excerpt, "reason": cut(reason, 500)})


def read_events(path: Path) -> Iterator[Event]:
    """The events of one merged file."""
    with open_below(path.parent, path.name) as file:
        for line in file:
            yield Event.from_line(line.decode())


def signal_name(number: int) -> str:
    """Name of a signal in events and messages."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def how_ended(code: int) -> str:
    """How a process ended, by its exit code; a negative one is a signal."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


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
        case "result" if fields["steps"]:
            text = f"took {fields['steps']:,} steps in {fields['train_s']:.2f} s, not trained"
        case "checkpoint":
            text = (
                f"checkpoint after {_place(fields)}, {fields['bytes']:,} bytes in {fields['seconds']:.2f} s"
            )
        case "checkpoint_skipped":
            text = f"checkpoint after {_place(fields)} is not used: {fields['cause']}"
        case "resumed":
            text = f"resumed from the checkpoint after {_place(fields)}"
        case "fault":
            where = f"in epoch {fields['epoch']}, after {fields['step']:,} steps"
            text = f"fault {fields['fault']} of the spec: {fields['action']} {where}"
        case "failed":
            text = f"failed: {fields['cause']}\n{fields.get('traceback', '')}".rstrip()
        case "terminated" | "died":
            position = fields.get("position")
            where = f", {Position.model_validate(position).text}" if position else ""
            text = f"{event.kind}: {fields.get('cause', '')}{where}"
        case _:
            return None
    return text


def _place(fields: dict[str, Any]) -> str:
    steps = f" and {fields['step']} steps" if fields["step"] else ""
    return f"epoch {fields['epoch']}{steps}"
