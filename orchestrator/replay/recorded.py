"""What the ranks of a run did in wall time, from their traces.

Waiting is separated from communication as in `trainer/comm/stragglers.py`: in a collective a rank waits for
the last one to enter, in a shift for its source, in a receive until the sender starts, at the end of a send
until the receiver starts, in a request until the server answers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trainer.core.trace import WORK_PHASES, Kind, Trace
from trainer.time_model.outcome import Interval, Track
from trainer.time_model.program import BESIDE, COLLECTIVES, NAMES, NUMBERED, Entry, Group, join_groups

# Until when a rank waited in a record, and for which rank.
Wait = tuple[float, int]

_MARKS = (Kind.EPOCH, Kind.STEP)
# The record that a rank waits for at its peer. The n-th one waits for the n-th one.
_COUNTERPARTS = {
    int(Kind.RECEIVE): int(Kind.SEND),
    int(Kind.SEND_WAIT): int(Kind.RECEIVE),
    int(Kind.REQUEST): int(Kind.RESPOND),
    int(Kind.TAKE): int(Kind.REQUEST),
}
_TO_PEER = frozenset(map(int, (Kind.SEND, Kind.RECEIVE, Kind.REQUEST, Kind.RESPOND)))


def recorded(traces: Sequence[Trace], one_clock: bool) -> list[Track]:
    """One track per rank, from the moment the first rank started.

    Args:
        one_clock: whether the ranks' clocks agree. Otherwise each track begins at its own start, and
            waiting is part of communication, since it cannot be known.

    Raises:
        ReplayError: a trace has a group, a peer, a root or a phase that does not exist.
    """
    first = min(trace.header.started_s for trace in traces)
    starts = [trace.header.started_s - first if one_clock else 0.0 for trace in traces]
    programs: list[list[Entry]] = [trace.records.tolist() for trace in traces]
    waits = _Entries(traces, programs, starts).waits() if one_clock else [{} for _ in traces]
    return [_track(*each) for each in zip(programs, starts, waits, strict=True)]


def _track(program: Sequence[Entry], start: float, waits: dict[int, Wait]) -> Track:
    intervals, step_ends = list[Interval](), list[float]()
    now = 0.0
    for at, (kind, _, peer, nbytes, _, entered, left) in enumerate(program):
        # What a library does beside the computation may overlap with it.
        begin, end = max(start + entered, now), max(start + left, now)
        now = end
        if kind == Kind.STEP:
            step_ends.append(end)
        if kind in _MARKS or end == begin:
            continue
        if kind == Kind.WORK:
            intervals.append(Interval(WORK_PHASES[peer], begin, end))
            continue
        until, cause = waits.get(at, (begin, -1))
        wait = max(0.0, min(until, end) - begin)
        size = 0 if kind in NUMBERED else nbytes
        intervals.append(Interval(NAMES[kind], begin, end, wait, cause if wait else -1, size))
    return Track(intervals, step_ends)


@dataclass
class _Joined:
    """A collective: when each rank of its group entered it. shift: its distance, or 0."""

    group: Group
    shift: int = 0
    entered: dict[int, float] = field(default_factory=dict)

    def wait(self, rank: int) -> Wait:
        """Until when the rank waits, and for which."""
        if self.shift:
            ranks = self.group.ranks
            source = ranks[(self.group.where[rank] - self.shift) % len(ranks)]
            return self.entered.get(source, 0.0), source
        last = max(self.entered, key=self.entered.__getitem__)
        return self.entered[last], last


class _Entries:
    """When each rank entered each exchange."""

    def __init__(
        self, traces: Sequence[Trace], programs: Sequence[Sequence[Entry]], starts: Sequence[float]
    ) -> None:
        self._programs = programs
        self._groups = join_groups(traces)
        self._joined: list[dict[int, list[_Joined]]] = [{} for _ in traces]  # by record
        self._entered: dict[tuple[int, Group, int, int], list[float]] = defaultdict(list)
        collectives: dict[tuple[Group, bool, int], _Joined] = {}
        for rank, (program, start) in enumerate(zip(programs, starts, strict=True)):
            counts: dict[tuple[Group, bool], int] = defaultdict(int)
            beside: dict[tuple[int, int], _Joined] = {}  # by group and number, until waited for
            numbers = Counter[int]()
            for at, (kind, index, peer, number, _, entered, _) in enumerate(program):
                group = self._groups[rank][index]
                if kind in COLLECTIVES or kind in BESIDE:
                    key = group, kind in BESIDE
                    shift = peer if kind == Kind.SHIFT else 0
                    joined = collectives.setdefault((*key, counts[key]), _Joined(group, shift))
                    joined.entered[rank] = start + entered
                    counts[key] += 1
                    if kind in BESIDE:
                        beside[index, numbers[index]] = joined
                    else:
                        self._joined[rank][at] = [joined]
                elif kind == Kind.WAIT_STARTED:
                    self._joined[rank][at], beside = [*beside.values()], {}
                elif kind == Kind.WAIT and (waited := beside.pop((index, number), None)):
                    self._joined[rank][at] = [waited]
                elif kind in _TO_PEER:
                    self._entered[kind, group, rank, group.ranks[peer]].append(start + entered)
                numbers[index] += kind in BESIDE or kind == Kind.START_RECEIVE

    def waits(self) -> list[dict[int, Wait]]:
        """The waits of each rank, by record."""
        return [dict(self._waits_of(rank)) for rank in range(len(self._programs))]

    def _waits_of(self, rank: int) -> Iterator[tuple[int, Wait]]:
        for at, joined in self._joined[rank].items():
            if waits := [each.wait(rank) for each in joined]:
                yield at, max(waits)
        counts: dict[tuple[int, Group, int], int] = defaultdict(int)
        for at, (kind, index, peer, number, *_) in enumerate(self._programs[rank]):
            if kind in _COUNTERPARTS:
                group = self._groups[rank][index]
                other = group.ranks[peer]
                entered = self._entered[_COUNTERPARTS[kind], group, other, rank]
                nth = number if kind == Kind.SEND_WAIT else counts[kind, group, other]
                counts[kind, group, other] += 1
                if nth < len(entered):
                    yield at, (entered[nth], other)
