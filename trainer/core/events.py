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
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

from trainer.core.event_schema import EVENTS, VERSION, Head
from trainer.core.position import Position
from trainer.core.record import checked, cut, one_line, parse_object
from trainer.core.regular_files import RefusedFile, open_below

MAX_BYTES = 8192  # pipes and log drivers may split longer lines
MAX_DAMAGED = 128  # lines of one file: each restart of a killed rank can leave one
PLAIN = re.compile(r"(?:[\x20-\x5b\x5d-\x7e]|\\[\"\\/])*")  # JSON of which nothing becomes an escape
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
        return self._line

    @cached_property
    def _line(self) -> str:
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

        A line without control characters is kept as it is. Raises ValueError for anything else; the message
        names the kind and the field that does not fit.
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
        if PLAIN.fullmatch(line):
            vars(event)["_line"] = line
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


@dataclass(frozen=True)
class Written:
    """What a rank has written since the last look.

    lines: whole ones, unchecked. fault: why no more of its file is read. rest: what the file has beyond the
    lines, then.
    """

    rank: int
    lines: bytes = b""
    fault: str | None = None
    rest: bytes = b""


@dataclass
class _Position:
    """How far one file has been read. size: that of the file when it was read."""

    offset: int = 0
    size: int = -1
    given_up: bool = False


class Tail:
    """Reads what ranks write to the files of a directory, each line exactly once. Checks no line."""

    def __init__(
        self,
        directory: Path,
        ranks: int | None = None,
        max_bytes_per_rank: int | None = None,
        made: Iterable[int] = (),
    ) -> None:
        """
        Args:
            directory: With a file per rank.
            ranks: Number of ranks of the run, whose files are read; None: all files are.
            max_bytes_per_rank: What is read of a file; a longer one has a fault. None: all of it.
            made: Ranks whose files were made before they started: a missing one was removed.
        """
        self._directory, self._ranks, self._max_bytes = directory, ranks, max_bytes_per_rank
        self._positions = {rank: _Position() for rank in made}

    @property
    def has_given_up(self) -> bool:
        """Whether it reads no more of some file."""
        return any(position.given_up for position in self._positions.values())

    def written(self) -> Iterator[Written]:
        """What was written since the last call, by rank. Incomplete lines are left for the next call."""
        removed = {*self._positions}
        for path in sorted(self._directory.glob("rank-*.jsonl")):
            name = re.fullmatch(r"rank-(0|[1-9][0-9]{0,4})\.jsonl", path.name)
            if name and (self._ranks is None or int(name[1]) < self._ranks):
                rank = int(name[1])
                position = self._positions.setdefault(rank, _Position())
                removed.discard(rank)
                # Most are as before, if there are many.
                if not position.given_up and (size := _size(path)) != position.size:
                    position.size = size
                    yield self._read(path, rank, position)
        for rank in sorted(removed) if self._directory.exists() else ():
            if not (position := self._positions[rank]).given_up:
                position.given_up = True
                yield Written(rank, fault=f"{events_name(rank)} was removed")

    def _read(self, path: Path, rank: int, position: _Position) -> Written:
        try:
            opened = open_below(path.parent, path.name)
        except RefusedFile as error:
            position.given_up = True
            return Written(rank, fault=f"{path.name} {error.strerror}")
        with opened as file:
            file.seek(position.offset)
            most = -1 if self._max_bytes is None else self._max_bytes - position.offset
            data = file.read(most)
            more = len(data) == most and bool(file.read(1))
        whole, newline, rest = data.rpartition(b"\n")
        position.offset += len(whole + newline)
        if not more and len(rest) < MAX_BYTES:
            return Written(rank, whole)
        position.given_up = True
        limit = f"{MAX_BYTES} bytes in one line" if len(rest) >= MAX_BYTES else f"{self._max_bytes} bytes"
        return Written(rank, whole, f"events: more than {limit}", rest)


def _size(path: Path) -> int:
    """The size of a file, without following a link; -1 if it is gone."""
    try:
        return path.lstat().st_size
    except OSError:
        return -1


class RankEvents:
    """Checks the lines of one rank, which is not trusted.

    What does not fit the schema becomes an event of kind `damaged`, e.g. after a full disk.

    Attributes:
        given_up: whether too many lines were damaged, so that the others are ignored.
    """

    def __init__(self, rank: int, restarts: int | None = None) -> None:
        """restarts: those that the run may have; None: any number."""
        self._rank, self._restarts = rank, restarts
        self._time = time.time()  # of the last event
        self._damaged = 0
        self.given_up = False

    def of(self, lines: bytes) -> Iterator[Event]:
        """The events in whole lines."""
        for line in filter(None, lines.split(b"\n")):
            if self.given_up:
                return
            try:
                event = Event.from_line(line.decode(errors="replace"))
                if event.rank != self._rank:
                    raise ValueError(
                        f"event {event.kind}: rank: {event.rank} in the file of rank {self._rank}"
                    )
                if self._restarts is not None:
                    _check_attempt(event, self._restarts)
            except ValueError as error:
                event = self.damaged(str(error), line)
                self._damaged += 1
                self.given_up = self._damaged == MAX_DAMAGED
            self._time = event.time
            yield event

    def damaged(self, reason: str, line: bytes = b"") -> Event:
        """The event that says that something, of which `line` is the beginning, is no event."""
        fields = {"line": one_line(line[:80].decode(errors="replace")), "reason": cut(reason, 500)}
        return Event(self._time, "", self._rank, "", "damaged", fields)


class EventReader(Tail):
    """Reads the events of a directory as they are written, each exactly once.

    Attributes:
        events: all that were read.
    """

    def __init__(
        self,
        directory: Path,
        ranks: int | None = None,
        max_bytes_per_rank: int | None = None,
        restarts: int | None = None,
        made: Iterable[int] = (),
    ) -> None:
        """See `Tail` and `RankEvents`."""
        super().__init__(directory, ranks, max_bytes_per_rank, made)
        self._checks, self._restarts = dict[int, RankEvents](), restarts
        self._latest: dict[int, float] = {}
        self.events: list[Event] = []
        self._told = 0  # of them, by `untold`

    @property
    def has_given_up(self) -> bool:
        """Whether it reads no more of some file, because there is too much in it."""
        return super().has_given_up or any(each.given_up for each in self._checks.values())

    def new(self) -> list[Event]:
        """The events since the last call, see `in_order`. Incomplete lines are left for the next call."""
        found: list[Event] = []
        for written in self.written():
            if (rank := written.rank) not in self._checks:
                self._checks[rank] = RankEvents(rank, self._restarts)
            found += (own := self._checks[rank]).of(written.lines)
            if written.fault and not own.given_up:
                found.append(own.damaged(written.fault, written.rest))
        self.events += (events := in_order(found, self._latest))
        return events

    def untold(self) -> list[Event]:
        """Those of the events that no earlier call has returned."""
        told, self._told = self._told, len(self.events)
        return self.events[told:]


def in_order(events: Iterable[Event], latest: dict[int, float] | None = None) -> list[Event]:
    """Events of different ranks in order of time, and those of one rank as they were written.

    The clock may have been set back between the death of a rank and its next start.

    Args:
        latest: the latest time of each rank's earlier events; updated.
    """
    latest = {} if latest is None else latest
    timed = []
    for event in events:
        latest[event.rank] = max(latest.get(event.rank, 0.0), event.time)
        timed.append((latest[event.rank], event))
    return [event for _, event in sorted(timed, key=itemgetter(0))]


def _check_attempt(event: Event, restarts: int) -> None:
    """Raise ValueError if a run with this many restarts has no such attempt.

    Its events would replace those of all ranks in the attempt before it.
    """
    if (attempt := event.fields.get("attempt", 0)) > restarts:
        raise ValueError(f"event {event.kind}: attempt: {attempt}, more than the run has restarts")


def damage(event: Event, name: str | None = None) -> str:
    """What an event of kind `damaged` says. name: the name of its rank, if it is not `rank N`."""
    return f"{name or f'rank {event.rank}'}'s events are damaged: {event.fields['reason']}"


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
