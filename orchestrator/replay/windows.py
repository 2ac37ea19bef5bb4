"""The part of a run that a small timeline shows: a few steps, on the wall clock and in cluster time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Annotated, Literal, NamedTuple, cast

import numpy as np
from pydantic import ConfigDict, Field

from orchestrator.replay.run import VERSION as MODEL_VERSION
from trainer.core.record import Amount, Count, Record, Text
from trainer.core.trace import WORK_PHASES, Kind, Trace
from trainer.time_model.cluster import Cluster
from trainer.time_model.outcome import Interval, Track

VERSION: Literal[2] = 2  # changes when the same traces would give other files

MOST_STEPS = 8
MOST_INTERVALS = 40  # of a rank; fewer steps are shown if they have more
MARGIN_STEPS = 3  # before and after an exchange that does not take place in every step

Phase = Literal["data", "compute", "communicate", "wait", "other"]


class _Strict(Record):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Part(_Strict):
    """A time in which a rank stays in one phase. Seconds since training started.

    exchange: such as `all_reduce`; empty while the rank works. bytes: those that it sends or receives in
    the exchanges.
    waits_for: the rank that ends the wait, if known.
    """

    phase: Phase
    start_s: Amount
    end_s: Amount
    exchange: Text = ""
    bytes: Count = 0
    waits_for: Count | None = None


class Steps(_Strict):
    """Which steps a window shows, by the numbers of the rank with most steps, from 1.

    exchange: the window shows the one exchange that follows step `last`, since most steps have none.
    """

    first: Annotated[int, Field(ge=1)]
    last: Annotated[int, Field(ge=1)]
    of: Count
    exchange: bool


class Window(_Strict):
    """The time from `start_s` to `end_s` since training started. ranks: the parts of each rank."""

    start_s: Amount
    end_s: Amount
    ranks: list[list[Part]]


class Windows(_Strict):
    """What a report draws of a run.

    version: that of this record and of the timeline beside it. model: version of the replay's model.
    cluster: the cluster of both. steps: None if the run has too few steps, so that all of it is shown.
    """

    version: Literal[2] = VERSION
    model: Count = MODEL_VERSION
    run: Text
    cluster: Cluster
    steps: Steps | None
    wall: Window
    replayed: Window


class Piece(NamedTuple):
    """A piece of an interval: its phase, and from when to when."""

    phase: Phase
    start: float
    end: float


def pieces(interval: Interval) -> Iterator[Piece]:
    """Waiting, then communication; or work."""
    if interval.name in WORK_PHASES:
        yield Piece(cast("Phase", interval.name), interval.start, interval.end)
        return
    ready = interval.start + interval.wait_s
    yield Piece("wait", interval.start, ready)
    yield Piece("communicate", ready, interval.end)


def steps_of(traces: Sequence[Trace]) -> tuple[int, Steps | None]:
    """The rank with most steps, and the steps of it that a window shows.

    These are steps in the middle of the epoch in the middle of the run. Where most steps have no exchange,
    it is the exchange nearest to the middle instead.
    """
    counts = [_steps(trace) for trace in traces]
    rank = counts.index(max(counts))
    total = counts[rank]
    if total < 2:
        return rank, None
    records = traces[rank].records
    kinds = records["kind"]
    ended = np.cumsum(kinds == Kind.STEP)  # steps that ended before each record
    marks = np.isin(kinds, (Kind.STEP, Kind.EPOCH))
    exchange = ~marks & (kinds != Kind.WORK) & (ended >= 1)
    if (exchange & (records["bytes"] > 0)).any():
        exchange &= records["bytes"] > 0
    after = np.unique(ended[exchange])
    if 0 < 2 * len(after) < total:
        step = int(after[np.abs(after - total / 2).argmin()])
        first = max(1, step - MARGIN_STEPS + 1)
        return rank, Steps(first=first, last=step, of=total, exchange=True)
    epochs = [*{0, *ended[kinds == Kind.EPOCH].tolist()} - {total}, total]
    epochs.sort()
    at = bisect_right(epochs, total // 2 - 1) - 1
    begin, end = epochs[at], epochs[at + 1]
    per_step = max(1, int((~marks).sum()) // total)
    shown = min(max(2, min(MOST_STEPS, MOST_INTERVALS // per_step)), end - begin)
    first = begin + (end - begin - shown) // 2 + 1
    return rank, Steps(first=first, last=first + shown - 1, of=total, exchange=False)


def _steps(trace: Trace) -> int:
    """The steps of a rank; 0 of a server, whose steps are those of its workers."""
    kinds = trace.records["kind"]
    return 0 if (kinds == Kind.TAKE).any() else int((kinds == Kind.STEP).sum())


def window_of(tracks: Sequence[Track], rank: int, steps: Steps | None) -> Window:
    """The window of these steps on the clock of the tracks. rank: whose steps they are."""
    begin, end = _span(tracks, tracks[rank], steps)
    return Window(start_s=begin, end_s=end, ranks=[_parts(track.intervals, begin, end) for track in tracks])


def _span(tracks: Sequence[Track], own: Track, steps: Steps | None) -> tuple[float, float]:
    whole = max((track.intervals[-1].end for track in tracks if track.intervals), default=0.0)
    ends = own.step_ends_s
    if steps is None:
        return 0.0, whole
    if not steps.exchange:
        return _start_after(own, ends[steps.first - 2] if steps.first > 1 else 0.0), ends[steps.last - 1]
    until = ends[steps.last] if steps.last < len(ends) else whole
    exchanges = [
        each
        for each in own.intervals[_first_from(own.intervals, ends[steps.last - 1]) :]
        if each.start < until and each.name not in WORK_PHASES
    ]
    begin = min((each.start for each in exchanges), default=ends[steps.last - 1])
    end = max((each.end for each in exchanges), default=until)
    # Ranks that entered before this one have waited for it.
    for track in tracks:
        for each in track.intervals[_first_until(track.intervals, begin) :]:
            if each.start >= end:
                break
            if each.name not in WORK_PHASES:
                begin, end = min(begin, each.start), max(end, each.end)
    lengths = [one - other for one, other in zip(ends[1:], ends, strict=False)]
    margin = max(MARGIN_STEPS * median(lengths), (end - begin) / 4)
    return max(0.0, begin - margin), min(whole, end + margin)


def _start_after(track: Track, time: float) -> float:
    """When the rank begins what follows this time: there may be an evaluation between."""
    at = _first_from(track.intervals, time)
    return track.intervals[at].start if at < len(track.intervals) else time


def _first_from(intervals: Sequence[Interval], time: float) -> int:
    """The first interval that starts at this time or later."""
    return bisect_left(intervals, time, key=lambda each: each.start)


def _first_until(intervals: Sequence[Interval], time: float) -> int:
    """The first interval that ends after this time."""
    return bisect_right(intervals, time, key=lambda each: each.end)


def _parts(intervals: Sequence[Interval], begin: float, end: float) -> list[Part]:
    """What lies between these times. Parts of one phase and exchange that follow each other are one."""
    parts: list[Part] = []
    for each in intervals[_first_until(intervals, begin) :]:
        if each.start >= end:
            break
        for piece in pieces(each):
            start, left = max(piece.start, begin), min(piece.end, end)
            if left > start:
                _append(parts, _part(each, piece.phase, start, left))
    return parts


def _part(interval: Interval, phase: Phase, start: float, end: float) -> Part:
    exchange = "" if interval.name in WORK_PHASES else interval.name
    cause = interval.cause if phase == "wait" and interval.cause >= 0 else None
    size = interval.bytes if phase == "communicate" else 0
    return Part(phase=phase, start_s=start, end_s=end, exchange=exchange, bytes=size, waits_for=cause)


def _append(parts: list[Part], part: Part) -> None:
    last = parts[-1] if parts else None
    if (
        last
        and part.start_s <= last.end_s
        and (part.phase, part.exchange, part.waits_for) == (last.phase, last.exchange, last.waits_for)
    ):
        joined = {"start_s": last.start_s, "bytes": last.bytes + part.bytes}
        parts[-1] = part.model_copy(update=joined)
    else:
        parts.append(part)
