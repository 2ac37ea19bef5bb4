"""Metrics of model partitioning: memory per rank, traffic at split points, pipeline bubbles, load balance.

Bytes, seconds per step, and shares 0 … 1. What was not recorded, as in older results, is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.rows import Row
from orchestrator.results.records import RankResult

BUSY_PHASES = ("data", "compute", "other")  # phases of the trainer's clock in which a rank works
NOTABLY_LESS = 0.95  # of what other ranks hold; a smaller difference is bookkeeping


def step_s(row: Row) -> float | None:
    """Wall time / steps of the rank that took most."""
    return row.train_s / row.steps if row.train_s and row.steps else None


def bubble_formula(row: Row) -> float | None:
    """The bubble fraction for stages of equal length and free communication."""
    return row.run.strategy.bubble(row.run.world_size) if row.ok else None


def bubble(row: Row) -> float | None:
    """The measured bubble fraction: the share of wall time that stages waited, mean over stages.

    None without stages, and if the strategy does not separate waiting from communication.
    """
    if bubble_formula(row) is None or not row.run.strategy.attributes_stragglers:
        return None
    held = [rank.seconds for rank in _ranks(row) if rank.blocks]  # a master holds none
    training = sum(value for seconds in held for phase, value in seconds.items() if phase != "evaluate")
    return sum(seconds["wait"] for seconds in held) / training if training else None


def split_point_bytes_per_step(row: Row) -> float | None:
    """Payload over the busiest split point per step, in both directions."""
    crossed = [
        before.bytes_to[after.rank] + after.bytes_to[before.rank]
        for replica in range(len(row.result.copies))
        for before, after in pairwise(row.stages(replica))
        if before.bytes_to and after.bytes_to
    ]
    return max(crossed) / row.steps if crossed and row.steps else None


def parameters(row: Row) -> int | None:
    """Parameters of the rank that holds most."""
    return max((rank.parameters for rank in _ranks(row)), default=None) or None


def model_size(groups: Iterable[Group]) -> int | None:
    """Parameters of the model: of a rank that holds it whole, or the sum over a replica's stages."""
    rows = [row for group in groups for row in group.ok_rows]
    if whole := [row for row in rows if not row.run.strategy.partitions_model]:
        return max((size for row in whole if (size := parameters(row))), default=None)
    return max((sum(rank.parameters for rank in row.stages()) for row in rows), default=0) or None


def activation_bytes(row: Row) -> int | None:
    """Activations kept for the backward pass by the rank that kept most."""
    return max((r.activation_bytes for r in _ranks(row) if r.activation_bytes is not None), default=None)


def memory_by_kind(row: Row) -> dict[str, int]:
    """Bytes of weights, gradient, optimizer and activations on the fullest rank; empty if not recorded."""
    kept = [
        {**rank.state_bytes, "activations": rank.activation_bytes or 0}
        for rank in _ranks(row)
        if rank.state_bytes
    ]
    return max(kept, key=lambda each: sum(each.values()), default={})


def memory_bytes(row: Row) -> int | None:
    """The sum of `memory_by_kind`."""
    return sum(memory_by_kind(row).values()) or None


def busy_s(row: Row) -> list[float]:
    """Busy seconds per step of each training rank, in the order of ranks; of those with blocks, if any."""
    trains = [r for r in _ranks(row) if r.rank >= row.run.strategy.servers and r.blocks != []]
    return [sum(rank.seconds[phase] for phase in BUSY_PHASES) / (row.steps or 1) for rank in trains]


def load_balance(row: Row) -> float | None:
    """Mean / maximum busy time of the training ranks: 1 if all have equally much to do."""
    busy = busy_s(row)
    return fmean(busy) / max(busy) if any(busy) else None


def is_partitioned(groups: Sequence[Group]) -> bool:
    """Whether a strategy partitions the model, or ranks keep different amounts of it.

    Gradients are left out, since some strategies free them and others keep them.
    """
    rows = [row for group in groups for row in group.ok_rows]
    if any(row.run.strategy.partitions_model for row in rows):
        return True
    held = [
        rank.state_bytes.get("weights", 0) + rank.state_bytes.get("optimizer", 0)
        for row in rows
        for rank in _ranks(row)
        if rank.state_bytes
    ]
    return bool(held) and min(held) < NOTABLY_LESS * max(held)


def _share_of_serial(metric: Metric, serial: Metric) -> Metric:
    """The metric / its value in the serial run; None without a serial run."""

    def share(row: Row) -> float | None:
        value, whole = metric(row), serial(row)
        return value / whole if value is not None and whole else None

    return share


parameters_share = _share_of_serial(
    parameters, lambda row: row.baseline.parameters if row.baseline else None
)
state_share = _share_of_serial(
    lambda row: row.state_bytes, lambda row: row.baseline.state_bytes if row.baseline else None
)


def _ranks(row: Row) -> list[RankResult]:
    return row.result.ranks if row.ok else []
