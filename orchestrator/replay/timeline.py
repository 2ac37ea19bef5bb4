"""Timelines of a run in the Chrome trace format, which Perfetto and chrome://tracing show.

Two processes, wall time and cluster time, each with one thread per rank. Format: Duca and Sinclair 2016,
"Trace Event Format".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from orchestrator.replay.windows import Window, Windows, pieces
from trainer.core.trace import WORK_PHASES
from trainer.time_model.outcome import Interval, Track

WALL, CLUSTER = 1, 2  # process ids
FIRST_THREAD = 1  # of rank 0: Perfetto takes thread 0 of every process for an idle core
MOST_INTERVALS = 10_000  # of one track: from its start, around the window, and from its end


def timeline(wall: Sequence[Track], replayed: Sequence[Track], windows: Windows) -> dict[str, Any]:
    """The timeline as an object for JSON.

    Args:
        wall: one track per rank.
        replayed: the same in cluster time.
        windows: what long tracks must contain.
    """
    tracks = [
        *((WALL, rank, each, windows.wall) for rank, each in enumerate(wall)),
        *((CLUSTER, rank, each, windows.replayed) for rank, each in enumerate(replayed)),
    ]
    events = [*_names(len(wall))]
    left_out = 0
    for process, rank, track, window in tracks:
        shown = _kept(track.intervals, window)
        left_out += len(track.intervals) - len(shown)
        events += _events(process, rank, shown)
    note = f"at most {MOST_INTERVALS} intervals per track: its start, the steps in a report, and its end"
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "run": windows.run,
            "cluster": windows.cluster.model_dump(mode="json"),
            "limit": note,
            "intervals_left_out": left_out,
        },
    }


def _kept(intervals: Sequence[Interval], window: Window) -> Sequence[Interval]:
    """The first and the last intervals, and those around the window."""
    if len(intervals) <= MOST_INTERVALS:
        return intervals
    quarter = MOST_INTERVALS // 4
    middle = (window.start_s + window.end_s) / 2
    at = bisect_left(intervals, middle, key=lambda each: each.start)
    first = min(max(at - quarter, quarter), len(intervals) - 3 * quarter)
    return [*intervals[:quarter], *intervals[first : first + 2 * quarter], *intervals[-quarter:]]


def _events(process: int, rank: int, intervals: Iterable[Interval]) -> Iterator[dict[str, Any]]:
    """Complete events that do not overlap, times in microseconds with nanoseconds as decimals.

    Perfetto truncates each time to nanoseconds, and drops an event that begins before the previous one has
    ended. Therefore a nanosecond is left between two events.
    """
    shown_until = 0
    for each in intervals:
        for phase, begin, end in pieces(each):
            until = round(1e9 * end)
            start = max(shown_until, round(1e9 * begin))
            if until <= start + 1:
                continue
            waits = phase == "wait"
            event = {
                "name": f"wait for rank {each.cause}" if waits else each.name,
                "cat": "work" if each.name in WORK_PHASES else phase,
                "ph": "X",
                "ts": start / 1000,
                "dur": (until - start - 1) / 1000,
                "pid": process,
                "tid": FIRST_THREAD + rank,
            }
            if each.bytes:
                event["args"] = {"bytes": each.bytes}
            yield event
            shown_until = until


def _names(ranks: int) -> Iterator[dict[str, Any]]:
    for process, name in ((WALL, "wall time"), (CLUSTER, "cluster time")):
        yield _name("process_name", process, FIRST_THREAD, name)
        for rank in range(ranks):
            yield _name("thread_name", process, FIRST_THREAD + rank, f"rank {rank}")


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
