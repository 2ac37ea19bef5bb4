"""What the containers of a run's nodes used, by the kernel's counters, beside what the ranks counted.

A counter is of everything in the container from its start to its end: start-up, roll call, evaluation and
protocol headers are in it. Open MPI's launcher is no node, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from orchestrator.report.model.rows import Row
from orchestrator.results.limits import memory_limit_mb
from trainer.core.cgroup import NodeUsage


@dataclass(frozen=True)
class Containers:
    """The nodes' containers of one run; None where a container's counter is missing.

    sent_bytes, cpu_s: mean. throttled_s: longest. memory_peak_mb: largest, in MiB; memory_limit_mb: of
    each. payload_bytes: mean of what the ranks in a container say to have sent to other containers; None
    where a container has several ranks, which also send to each other.
    """

    count: int
    sent_bytes: float | None
    payload_bytes: float | None
    cpu_s: float | None
    throttled_s: float | None
    memory_peak_mb: float | None
    memory_limit_mb: int

    @property
    def sent_by_payload(self) -> float | None:
        """What went over the network for each byte of payload; None where there was none."""
        return self.sent_bytes / self.payload_bytes if self.sent_bytes and self.payload_bytes else None


def containers(row: Row) -> Containers | None:
    """None for a run that is not ok, that had no containers, or not from all of them an account."""
    members = [member for member in row.result.usage if member.ranks]
    if not row.ok or len(members) != (1 if row.result.topology == "single" else row.run.nodes):
        return None
    apart = all(len(member.ranks) == 1 for member in members)
    return Containers(
        count=len(members),
        sent_bytes=_over(fmean, [member.sent_bytes for member in members]),
        payload_bytes=row.bytes_sent_per_rank if apart and row.run.world_size > 1 else None,
        cpu_s=_over(fmean, [member.cpu_s for member in members]),
        throttled_s=_over(max, [member.throttled_s for member in members]),
        memory_peak_mb=_over(max, [member.memory_peak_mb for member in members]),
        memory_limit_mb=memory_limit_mb(row.run),
    )


def metric(name: str) -> Callable[[Row], float | None]:
    """A quantity of a run's containers, as groups and tables ask for it."""
    return lambda row: getattr(containers(row), name, None)


def held_by_one(row: Row) -> bool:
    """Whether all of several nodes were one container."""
    return bool(row.result.usage) and row.result.topology == "single" and row.run.nodes > 1


def ran_out_of_memory(usage: Sequence[NodeUsage]) -> bool:
    return any(member.out_of_memory for member in usage)


def _over(reduce: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return reduce(known) if known and len(known) == len(values) else None
