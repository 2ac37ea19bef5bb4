"""Resource usage of a run's containers, from the kernel's counters, beside the payload that ranks counted.

A counter covers everything in the container while it works for the run, including start-up, coordination,
evaluation and protocol headers. Open MPI's launcher is not a node and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from orchestrator.report.formats import memory, ratio, seconds, short, size
from orchestrator.report.model.rows import Row, quotient
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.results.limits import memory_limit_mb
from trainer.core.cgroup import NodeUsage


def containers(row: Row) -> list[NodeUsage]:
    """The usage of its node containers; empty if the run is not ok, or if one reported none."""
    nodes = [node for node in row.result.usage if node.ranks]
    expected = 1 if row.result.topology == "single" else row.run.nodes
    return nodes if row.ok and len(nodes) == expected else []


def ran_out_of_memory(usage: Sequence[NodeUsage]) -> bool:
    return any(node.out_of_memory for node in usage)


def _usage(
    write: Callable[[float], str], reduce: Callable[[list[float]], float], field: str, title: str
) -> Quantity:
    """A field of the containers' usage; none if the counter of one is missing."""

    def read(row: Row) -> float | None:
        values = [getattr(node, field) for node in containers(row)]
        return reduce([*map(float, values)]) if values and None not in values else None

    return Quantity(write, read, title)


def _payload(row: Row) -> float | None:
    """The mean of the bytes that ranks counted as sent to other containers.

    None if a container has several ranks, which also send to each other.
    """
    one_rank_each = all(len(node.ranks) == 1 for node in containers(row))
    return row.result.bytes_sent_per_rank if one_rank_each and row.run.world_size > 1 else None


class ContainerUsage:
    """What containers used."""

    containers = Quantity(short, lambda row: len(containers(row)) or None)
    container_payload_bytes_mean = Quantity(
        size, lambda row: _payload(row) if containers(row) else None, "Payload sent"
    )
    container_sent_bytes_mean = _usage(size, fmean, "sent_bytes", "Network sent")
    container_sent_by_payload = Quantity(
        ratio,
        lambda row: quotient(ContainerUsage.container_sent_bytes_mean.of(row), _payload(row)),
        "Network / payload",
    )
    container_cpu_s_mean = _usage(seconds, fmean, "cpu_s", "CPU time")
    container_throttled_s_max = _usage(seconds, max, "throttled_s", "Throttled")
    container_memory_peak_mib_max = _usage(memory, max, "memory_peak_mb", "Peak memory (of limit)")
    container_memory_limit_mib = Quantity(
        memory, lambda row: memory_limit_mb(row.run) if containers(row) else None
    )
