"""Resource usage of a run's containers, from the kernel's counters, beside the payload that ranks counted.

A counter covers everything in the container while it works for the run, including start-up, coordination,
evaluation and protocol headers. Open MPI's launcher is not a node and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.quantity import (
    BYTES,
    MIB,
    NUMBER,
    RATIO,
    SECONDS,
    Quantity,
    Unit,
    named,
)
from orchestrator.results.limits import memory_limit_mb
from trainer.core.cgroup import NodeUsage

NO_CONTAINERS = "nodes were no containers, or one reported no usage"


@dataclass(frozen=True)
class Containers:
    """Usage of the node containers of one run; None if the counter of a container is missing.

    sent_bytes, cpu_s: mean over containers. throttled_s, memory_peak_mb (MiB): maximum. memory_limit_mb:
    the limit of each container. payload_bytes: mean of the bytes that ranks counted as sent to other
    containers; None if a container has several ranks, which also send to each other.
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
        """Bytes on the network per byte of payload; None without payload."""
        return self.sent_bytes / self.payload_bytes if self.sent_bytes and self.payload_bytes else None


def containers(row: Row) -> Containers | None:
    """None if the run is not ok, had no containers, or some of them reported no usage."""
    nodes = [node for node in row.result.usage if node.ranks]
    if not row.ok or len(nodes) != (1 if row.result.topology == "single" else row.run.nodes):
        return None
    one_rank_each = all(len(node.ranks) == 1 for node in nodes)
    return Containers(
        count=len(nodes),
        sent_bytes=_over(fmean, [node.sent_bytes for node in nodes]),
        payload_bytes=row.result.bytes_sent_per_rank if one_rank_each and row.run.world_size > 1 else None,
        cpu_s=_over(fmean, [node.cpu_s for node in nodes]),
        throttled_s=_over(max, [node.throttled_s for node in nodes]),
        memory_peak_mb=_over(max, [node.memory_peak_mb for node in nodes]),
        memory_limit_mb=memory_limit_mb(row.run),
    )


def single_container(row: Row) -> bool:
    """Whether all nodes of a run with several shared one container."""
    return bool(row.result.usage) and row.result.topology == "single" and row.run.nodes > 1


def ran_out_of_memory(usage: Sequence[NodeUsage]) -> bool:
    return any(node.out_of_memory for node in usage)


def _over(reduce: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return reduce(known) if known and len(known) == len(values) else None


def _usage(unit: Unit, field: str, title: str = "", meaning: str = "", empty: str = "") -> Quantity:
    """A field of `Containers`."""

    def read(row: Row) -> float | None:
        return getattr(containers(row), field, None)

    return Quantity(unit, read, title, meaning, "; ".join(filter(None, [NO_CONTAINERS, empty])))


CONTAINERS = named(
    containers=_usage(NUMBER, "count", meaning="number of containers with nodes"),
    container_payload_bytes_mean=_usage(BYTES, "payload_bytes", "Payload sent"),
    container_sent_bytes_mean=_usage(
        BYTES, "sent_bytes", "Network sent", "sent on the network interface, mean over containers"
    ),
    container_sent_by_payload=_usage(RATIO, "sent_by_payload", "Network / payload"),
    container_cpu_s_mean=_usage(
        SECONDS, "cpu_s", "CPU time", "CPU time of all processes, mean over containers"
    ),
    container_throttled_s_max=_usage(
        SECONDS,
        "throttled_s",
        "Throttled",
        "time in which the CPU quota stopped the container, summed over cores; maximum",
    ),
    container_memory_peak_mib_max=_usage(
        MIB,
        "memory_peak_mb",
        "Peak memory (of limit)",
        "peak memory with cached files; maximum",
        "a warm container needed no more than in an earlier run",
    ),
    container_memory_limit_mib=_usage(MIB, "memory_limit_mb", meaning="memory limit"),
)
