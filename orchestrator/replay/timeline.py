"""Timelines of a run in the Chrome trace format, which Perfetto and chrome://tracing show.

Two processes, wall time and cluster time, each with one thread per rank. Format: Duca and Sinclair 2016,
"Trace Event Format".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from orchestrator.replay.outcome import Interval, Replay
from trainer.core.trace import WORK_PHASES, Kind, Trace

WALL, CLUSTER = 1, 2  # process ids
MOST_INTERVALS = 10_000  # of one track: half of them from its start, half from its end

_MARKS = (Kind.EPOCH, Kind.STEP)


def timeline(traces: Sequence[Trace], replay: Replay) -> dict[str, Any]:
    """The trace as an object for JSON. replay: with intervals."""
    tracks = [
        *((WALL, rank, _recorded(trace)) for rank, trace in enumerate(traces)),
        *((CLUSTER, rank, each.intervals) for rank, each in enumerate(replay.ranks)),
    ]
    events = [*_names(len(traces))]
    left_out = 0
    for process, rank, intervals in tracks:
        shown, dropped = _ends(intervals)
        left_out += dropped
        events += _events(process, rank, shown)
    note = f"at most {MOST_INTERVALS} intervals per track, from its start and its end"
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"run": traces[0].header.run, "limit": note, "intervals_left_out": left_out},
    }


def _recorded(trace: Trace) -> list[Interval]:
    """What a rank did in wall time, as intervals."""
    intervals = []
    for kind, _, peer, nbytes, _, entered, left in trace.records.tolist():
        if kind in _MARKS:
            continue
        name = WORK_PHASES[peer] if kind == Kind.WORK else Kind(kind).name.lower()
        intervals.append(Interval(name, entered, left, bytes=0 if kind == Kind.SEND_WAIT else nbytes))
    return intervals


def _ends(intervals: Sequence[Interval]) -> tuple[list[Interval], int]:
    """The first and the last intervals, and the number of those between them."""
    dropped = max(0, len(intervals) - MOST_INTERVALS)
    half = MOST_INTERVALS // 2
    return ([*intervals[:half], *intervals[-half:]], dropped) if dropped else ([*intervals], 0)


def _events(process: int, rank: int, intervals: Iterable[Interval]) -> Iterator[dict[str, Any]]:
    """Complete events that do not overlap, times in microseconds with nanoseconds as decimals."""
    shown_until = 0.0
    for each in intervals:
        waited = each.start + each.wait_s
        parts = [(f"wait for rank {each.cause}", "wait", waited)] if each.wait_s > 0 else []
        work = each.name in WORK_PHASES
        parts.append((each.name, "work" if work else "communicate", each.end))
        for name, category, end in parts:
            until = round(1e6 * end, 3)
            start = max(shown_until, round(1e6 * (each.start if end == waited else waited), 3))
            if until <= start:
                continue
            event = {
                "name": name,
                "cat": category,
                "ph": "X",
                "ts": start,
                "dur": round(until - start, 3),
                "pid": process,
                "tid": rank,
            }
            if each.bytes:
                event["args"] = {"bytes": each.bytes}
            yield event
            shown_until = until


def _names(ranks: int) -> Iterator[dict[str, Any]]:
    for process, name in ((WALL, "wall time"), (CLUSTER, "cluster time")):
        yield _name("process_name", process, 0, name)
        for rank in range(ranks):
            yield _name("thread_name", process, rank, f"rank {rank}")


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
