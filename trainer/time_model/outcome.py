"""What a replay computes for each rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Interval(NamedTuple):
    """What a rank did from `start` to `end`, in seconds.

    It first waited `wait_s` for rank `cause`, or -1.
    """

    name: str
    start: float
    end: float
    wait_s: float = 0.0
    cause: int = -1
    bytes: int = 0


class Track(NamedTuple):
    """What one rank did, on one clock, in order. step_ends_s: when each of its steps ended."""

    intervals: Sequence[Interval]
    step_ends_s: Sequence[float]


@dataclass
class RankReplay:
    """The time of one rank, in seconds of cluster time.

    Attributes:
        work_s: work by phase of WORK_PHASES.
        communicate_s: exposed communication: the rank did nothing else.
        wait_s: waiting, by the rank whose late entry or work ended the wait; without the ranks that it
            never waited for.
        overlapped_s: communication beside work, which does not add to the rank's time.
        end_s: its last record; it is idle from then to the end of the run.
        epoch_ends_s: the end of each of its epochs, by number.
        intervals: the intervals of a timeline, if wanted.
        step_ends_s: the end of each of its steps, if intervals are wanted.
    """

    work_s: list[float]
    wait_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    communicate_s: float = 0.0
    overlapped_s: float = 0.0
    end_s: float = 0.0
    epoch_ends_s: dict[int, float] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)
    step_ends_s: list[float] = field(default_factory=list)

    @property
    def track(self) -> Track:
        return Track(self.intervals, self.step_ends_s)


@dataclass(frozen=True)
class Replay:
    """The result of `simulate`. records: how many records of traces were replayed."""

    ranks: list[RankReplay]
    records: int

    @property
    def cluster_s(self) -> float:
        """The time from the moment all ranks are ready to the end of the slowest one."""
        return max(rank.end_s for rank in self.ranks)
