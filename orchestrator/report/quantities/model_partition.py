"""Model partitioning: memory per rank, traffic at split points, pipeline bubbles, load balance.

Bytes, seconds per step, and shares 0 … 1. What was not recorded, as in older results, is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from orchestrator.report.formats import memory, percent, ratio, size, whole
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.rows import Row, quotient
from orchestrator.report.quantities.communication import Communication
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.results.records import RankResult

BUSY_PHASES = ("data", "compute", "other")  # phases of the trainer's clock in which a rank works
NOTABLY_LESS = 0.95  # of what other ranks hold; a smaller difference is bookkeeping


def _parameters(row: Row) -> int | None:
    return max((rank.parameters for rank in row.result.ranks), default=0) or None


def model_size(groups: Iterable[Group]) -> int | None:
    """Parameters of the model: those of a rank that holds it whole, or the sum over a replica's stages."""
    rows = [row for group in groups for row in group.ok_rows]
    if whole := [row for row in rows if not row.run.strategy.partitions_model]:
        return max((size for row in whole if (size := _parameters(row))), default=None)
    sizes = [
        sum(rank.parameters for (rank,) in stages)
        for stages in (row.stages() for row in rows)
        if all(len(ranks) == 1 for ranks in stages)  # others hold shards, and copies of some layers
    ]
    return max(sizes, default=0) or None


def memory_by_kind(row: Row) -> dict[str, int]:
    """Bytes of weights, gradient, optimizer and activations on the fullest rank; empty if not recorded."""
    kept = [
        {**rank.state_bytes, "activations": rank.activation_bytes or 0}
        for rank in row.result.ranks
        if rank.state_bytes
    ]
    return max(kept, key=lambda each: sum(each.values()), default={})


def memory_bytes(row: Row) -> int | None:
    """The sum of `memory_by_kind`."""
    return sum(memory_by_kind(row).values()) or None


def busy_s(row: Row) -> list[float]:
    """Busy seconds per step of each training rank, in the order of ranks; of those with blocks, if any."""
    trains = [r for r in row.result.ranks if r.rank >= row.run.strategy.servers and r.blocks != []]
    return [sum(rank.seconds[phase] for phase in BUSY_PHASES) / (row.steps or 1) for rank in trains]


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
        for rank in row.result.ranks
        if rank.state_bytes
    ]
    return bool(held) and min(held) < NOTABLY_LESS * max(held)


def _bubble(row: Row) -> float | None:
    """None without stages, and if the strategy does not separate waiting from communication."""
    strategy = row.run.strategy
    if not row.timed or strategy.bubble(row.run.world_size) is None or not strategy.attributes_stragglers:
        return None
    held = [rank.seconds for rank in row.result.ranks if rank.blocks]  # a master holds none
    training = sum(value for phases in held for phase, value in phases.items() if phase != "evaluate")
    return sum(phases["wait"] for phases in held) / training if training else None


def _split_point_bytes_per_step(row: Row) -> float | None:
    """Payload over the busiest split point per step, in both directions.

    None where ranks hold several stages: between two of them are several split points.
    """
    if len(row.split_points) >= max(1, len(row.stages())):
        return None
    crossed = [
        sum(_sent(*ends) + _sent(*reversed(ends)) for ends in zip(before, after, strict=False))
        for replica in range(len(row.result.copies))
        for before, after in pairwise(row.stages(replica))
        if all(rank.bytes_to for rank in (*before, *after))
    ]
    return max(crossed) / row.steps if crossed and row.steps else None


def _sent(sender: RankResult, receiver: RankResult) -> int:
    return sender.bytes_to[receiver.rank] if sender.bytes_to else 0


def _load_balance(row: Row) -> float | None:
    busy = busy_s(row)
    return fmean(busy) / max(busy) if any(busy) else None


def _peak_memory(row: Row) -> float | None:
    peaks = [rank.peak_memory_mb for rank in row.result.ranks]
    return max((peak for peak in peaks if peak is not None), default=None)


def _of_serial(read: Metric) -> Callable[[Group, str], str]:
    """The share of the serial run's value, for the small print of a table."""

    def detail(group: Group, span: str) -> str:
        share = group.over(lambda row: row.of_serial(read))
        return percent(share.mean) if share and not group.serial else ""

    return detail


# Of published figures.
ACTIVATIONS_OF_SERIAL = Quantity(
    percent, lambda row: row.of_serial(lambda each: each.activation_bytes), "Activations, of serial"
)

STATE_OF_SERIAL = Quantity(
    percent, lambda row: row.of_serial(lambda each: each.state_bytes), "State, of serial"
)
SENT_OF_WEIGHTS = Quantity(
    ratio,
    lambda row: quotient(
        Communication.bytes_sent_per_rank_per_step.of(row),
        row.serials(lambda each: memory_by_kind(each).get("weights")),
    ),
    "Sent per rank and step, of the weights",
)


class ModelPartitions:
    """What a rank holds, and how stages wait."""

    parameters_per_rank_max = Quantity(
        whole, _parameters, "Parameters (of serial)", detail=_of_serial(_parameters)
    )
    state_bytes_per_rank_max = Quantity(
        size,
        lambda row: row.state_bytes,
        "Weights, gradient, optimizer state (of serial)",
        detail=_of_serial(lambda row: row.state_bytes),
    )
    dropped_choices = Quantity(percent, lambda row: row.result.dropped_share, "Dropped choices")
    activation_bytes_per_rank_max = Quantity(size, lambda row: row.activation_bytes, "Activations")
    peak_memory_mib = Quantity(memory, _peak_memory, "Peak memory")
    load_balance = Quantity(percent, _load_balance, "Load balance")
    bubble_share = Quantity(percent, _bubble, "Bubble")
    bubble_share_formula = Quantity(
        percent, lambda row: row.run.strategy.bubble(row.run.world_size), "Bubble by formula"
    )
    split_point_bytes_per_step_max = Quantity(
        size, _split_point_bytes_per_step, "Split-point traffic per step"
    )
