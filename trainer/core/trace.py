"""Trace: what one rank did during training, in order, and the file that holds it. Imports no torch.

A trace is a list of intervals. Work and exchanges alternate: a `WORK` record has the CPU seconds that the
rank computed, an exchange has its kind, bytes and peers. The wall times show what happened on this machine;
a replay (`orchestrator/replay/`) does not use them to compute the time on another cluster.

The file has one line of JSON, the `TraceHeader`, then `count` records of `RECORD`, then the CRC-32 of all
bytes before it, as 4 bytes, little-endian.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from trainer.core.record import Amount, Count, Rank, Record, Text
from trainer.core.regular_files import open_below

VERSION = 2
MAX_RECORDS = 1_000_000  # of one rank; a longer trace ends with `complete: false`
MAX_HEADER_BYTES = 2**20

RECORD = np.dtype(
    [
        ("kind", "u1"),
        ("group", "<u2"),  # index into the header's groups
        ("peer", "<i4"),  # see Kind; -1 where it has no meaning
        ("bytes", "<u8"),  # see Kind; 0 where it has no meaning
        ("cpu_s", "<f8"),  # CPU seconds of the rank's own thread within the interval
        ("entered_s", "<f8"),  # wall seconds since the header's `started_s`
        ("left_s", "<f8"),
    ]
)
CHECKSUM_BYTES = 4
MAX_BYTES = MAX_HEADER_BYTES + MAX_RECORDS * RECORD.itemsize + CHECKSUM_BYTES

# Phases of WORK records, by `peer`.
WORK_PHASES = ("data", "compute", "other")

TraceMode = Literal["none", "steps", "full"]


class Kind(IntEnum):
    """Kinds of records.

    `bytes` of a collective is the size of the buffer that this rank passes, n in the formulas of Traffic.
    `group` numbers the communicator: peers and roots are ranks within it.
    """

    WORK = 1  # peer: index into WORK_PHASES
    EPOCH = 2  # an epoch begins; peer: its number
    STEP = 3  # a step ends
    # Collectives, blocking: all ranks of the group take part.
    ALL_REDUCE = 10
    ALL_GATHER = 11
    ALL_TO_ALL = 12  # bytes: the size of all rows
    REDUCE_SCATTER = 13  # bytes: the size of the whole buffer
    GATHER = 14  # peer: the root
    BROADCAST = 15  # peer: the root
    BARRIER = 16
    SHIFT = 17  # peer: the distance; sends to rank + distance, receives from rank - distance
    # Point to point. Messages between two ranks stay in order: the n-th receive takes the n-th send.
    SEND = 20  # starts to send; peer: the receiver
    SEND_WAIT = (
        21  # until a send is complete; peer: the receiver, bytes: its index among sends to it, from 0
    )
    RECEIVE = 22  # peer: the sender
    # What runs beside the computation. It starts, in order, when all ranks have started it; bytes as above.
    START_ALL_REDUCE = 30
    WAIT_STARTED = 31  # until all that was started is complete; in traces of version 1 only
    START_ALL_GATHER = 32
    START_REDUCE_SCATTER = 33
    START_BROADCAST = 34  # peer: the root
    START_RECEIVE = 35  # peer: the sender
    # Until one of them is complete; bytes: its number among the starts of its group, from 0; peer: the
    # microseconds for which it was complete before; -1: not known.
    WAIT = 36
    # Requests to a server, which takes them in the order of arrival.
    REQUEST = 40  # until the response has arrived; peer: the server, bytes: the size of the request
    TAKE = 41  # until a request is there; peer: its sender, bytes: the size of the request
    RESPOND = 42  # peer: the sender of the request, bytes: the size of the response


def bytes_sent(kind: Kind, size: int, nbytes: float, is_root: bool = False) -> float:
    """Bytes that a rank sends in an exchange of `size` ranks, at the optimal cost of its kind.

    nbytes: see Kind. is_root: whether it is the root of a gather or a broadcast.
    """
    match kind:
        case Kind.ALL_REDUCE | Kind.START_ALL_REDUCE:
            return 2 * nbytes * (size - 1) / size
        case Kind.ALL_GATHER | Kind.START_ALL_GATHER:
            return nbytes * (size - 1)
        case Kind.ALL_TO_ALL | Kind.REDUCE_SCATTER | Kind.START_REDUCE_SCATTER:
            return nbytes * (size - 1) / size
        case Kind.GATHER:
            return 0 if is_root else nbytes
        case Kind.BROADCAST | Kind.START_BROADCAST:
            return nbytes * (size - 1) if is_root else 0
    return nbytes


class TraceError(Exception):
    """A trace cannot be read or is not of this version. The message names the file and the reason."""


class TraceHeader(Record):
    """The first line of a trace.

    Attributes:
        run: its key.
        mode: steps: consecutive intervals of work are one record. full: each has its own.
        groups: ranks of each communicator of this rank, in its order; None: all ranks of the run, as the
            first one has.
        started_s: the rank's clock at the start of training, in seconds.
        count: number of records.
        complete: whether the trace reaches the end of training.
    """

    version: Literal[1, 2] = 2
    run: Text
    rank: Rank
    size: Annotated[int, Field(ge=1, le=2**20)]
    transport: Text
    mode: Literal["steps", "full"]
    groups: list[list[Rank] | None]
    started_s: Amount
    count: Annotated[Count, Field(le=MAX_RECORDS)]
    complete: bool = True

    def members(self, group: int) -> Sequence[int]:
        """The ranks of a group, by its number."""
        ranks = self.groups[group]
        return range(self.size) if ranks is None else ranks


@dataclass(frozen=True)
class TraceLimits:
    """What a rank can have done, from the spec of its run; by default, what any rank can have done.

    Attributes:
        seconds: the largest time.
        bytes: the most bytes of an exchange.
        epochs: the epochs of the run.
    """

    seconds: float = 1e8
    bytes: int = 2**44
    epochs: int = 10_000


ANY_RUN = TraceLimits()


@dataclass(frozen=True)
class Trace:
    """One rank's trace. records: array of RECORD, shape (count,)."""

    header: TraceHeader
    records: np.ndarray


def trace_path(directory: Path, rank: int) -> Path:
    """Where the trace of a rank is."""
    return directory / f"trace-{rank}.bin"


def encode_trace(trace: Trace) -> bytes:
    """The content of a trace file."""
    content = trace.header.model_dump_json().encode() + b"\n" + trace.records.tobytes()
    return content + zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")


def read_trace(path: Path, limits: TraceLimits = ANY_RUN) -> Trace:
    """Read and check a trace file.

    Raises:
        TraceError: the file is missing, damaged, too large, of another version, or beyond the limits.
    """
    try:
        with open_below(path.parent, path.name) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise TraceError(f"{path}: larger than {MAX_BYTES} bytes")
    line, newline, _ = content[: MAX_HEADER_BYTES + 1].partition(b"\n")
    if not newline:
        raise TraceError(f"{path}: is no trace, or is damaged: no header")
    header = _read_header(path, line)
    start, end = len(line) + 1, len(content) - CHECKSUM_BYTES
    if end - start != header.count * RECORD.itemsize:
        raise TraceError(
            f"{path}: damaged: {max(end - start, 0)} bytes of records, not {header.count * RECORD.itemsize}"
        )
    if zlib.crc32(content[:end]) != int.from_bytes(content[end:], "little"):
        raise TraceError(f"{path}: damaged: its checksum does not match")
    records = np.frombuffer(content, RECORD, count=header.count, offset=start)
    if reason := wrong_record(header, records, limits):
        raise TraceError(f"{path}: {reason}")
    return Trace(header, records)


def _read_header(path: Path, line: bytes) -> TraceHeader:
    try:
        return TraceHeader.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("version",):
            raise TraceError(f"{path}: not a trace of version {VERSION}") from None
        where = ".".join(map(str, first["loc"])) or "header"
        raise TraceError(f"{path}: is no trace, or is damaged: {where}: {first['msg']}") from None


def wrong_record(header: TraceHeader, records: np.ndarray, limits: TraceLimits, first: int = 0) -> str:
    """What is wrong with the first record that no rank of the run writes; empty if there is none.

    Args:
        header: the header of the trace. The records may be a part of those in the trace.
        first: the number of the first of the records in the trace.
    """
    kinds = records["kind"]
    numbers = np.isin(kinds, (Kind.SEND_WAIT, Kind.WAIT))
    sizes = np.where(numbers, 0, records["bytes"])
    epochs = np.where(kinds == Kind.EPOCH, records["peer"], 1)
    allowed = {
        "kind": (np.isin(kinds, [*Kind]), f"one of {', '.join(str(int(kind)) for kind in Kind)}"),
        "group": (records["group"] < len(header.groups), f"less than {len(header.groups)}"),
        "peer": ((epochs >= 1) & (epochs <= limits.epochs), f"an epoch of 1 to {limits.epochs}"),
        "bytes": (sizes <= limits.bytes, f"at most {limits.bytes}"),
        "cpu_s": (_between(records["cpu_s"], 0, limits.seconds), f"0 to {limits.seconds:g}"),
        "entered_s": (
            _between(records["entered_s"], -limits.seconds, limits.seconds),
            f"{-limits.seconds:g} to {limits.seconds:g}",
        ),
        "left_s": (
            _between(records["left_s"], records["entered_s"], limits.seconds),
            f"from entered_s to {limits.seconds:g}",
        ),
    }
    for name, (right, what) in allowed.items():
        if not right.all():
            at = int(np.flatnonzero(~right)[0])
            return f"record {first + at}: {name} is {records[name][at]}; allowed: {what}"
    return ""


def _between(values: np.ndarray, least: float | np.ndarray, most: float) -> np.ndarray:
    """Which values are within a range; those that are no numbers are not."""
    return (values >= least) & (values <= most)
