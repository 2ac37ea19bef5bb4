"""What a replay computes for each rank."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Interval:
    """What a rank did from `start` to `end`, in seconds. cause: the rank that it waited for, or -1."""

    name: str
    start: float
    end: float
    wait_s: float = 0.0
    cause: int = -1
    bytes: int = 0


@dataclass
class RankReplay:
    """The time of one rank, in seconds of cluster time.

    Attributes:
        work_s: by phase of WORK_PHASES.
        communicate_s: exposed communication: the rank did nothing else.
        wait_s: by the rank whose late entry or work ended the wait.
        overlapped_s: communication beside work, which does not add to the rank's time.
        end_s: its last record; it is idle from then to the end of the run.
        epoch_ends_s: the end of each of its epochs, by number.
        intervals: for a timeline, if wanted.
    """

    work_s: list[float]
    wait_s: list[float]
    communicate_s: float = 0.0
    overlapped_s: float = 0.0
    end_s: float = 0.0
    epoch_ends_s: dict[int, float] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)


@dataclass(frozen=True)
class Replay:
    """The result of `simulate`. records: how many records of traces were replayed."""

    ranks: list[RankReplay]
    records: int

    @property
    def cluster_s(self) -> float:
        """From the moment all ranks are ready to the end of the slowest one."""
        return max(rank.end_s for rank in self.ranks)
