"""What it means for a node that several hold one model: what it keeps and sends, how long it stands idle.

Bytes, seconds per step, and shares 0 … 1. What was not recorded, as in older results, is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.rows import Row
from orchestrator.results.records import RankResult

KINDS = ("weights", "gradient", "optimizer", "activations")  # of what a rank keeps
WORK = ("data", "compute", "other")  # phases of the trainer's clock in which a rank works
LESS = 0.95  # of what others hold: so much less is no matter of bookkeeping


def step_s(row: Row) -> float | None:
    """Training time by steps of the rank that took most."""
    return row.train_s / row.steps if row.train_s and row.steps else None


def bubble_formula(row: Row) -> float | None:
    """The share of a step that a stage stands idle if all take equally long and sending takes no time."""
    return row.run.strategy.bubble(row.run.world_size) if row.ok else None


def bubble(row: Row) -> float | None:
    """The share of training time that stages stood idle and waited, mean over them.

    None without stages, and where waiting is not told from moving bytes.
    """
    if bubble_formula(row) is None or not row.run.strategy.attributes_stragglers:
        return None
    held = [rank.seconds for rank in _ranks(row) if rank.blocks]  # a master holds none
    training = sum(value for seconds in held for phase, value in seconds.items() if phase != "evaluate")
    return sum(seconds["wait"] for seconds in held) / training if training else None


def stages(row: Row, copy: int = 0) -> list[RankResult]:
    """The ranks that hold a copy of the model block by block, in that order; none if it is not cut so."""
    held = row.result.copies[copy] if row.ok and row.result.copies else []
    return [rank for rank in held if rank.blocks]


def split_points(row: Row) -> list[str]:
    """Where the model was cut, by the blocks with which its parts but the first begin."""
    return [rank.blocks[0] for rank in stages(row)[1:] if rank.blocks]


def cut_bytes_per_step(row: Row) -> float | None:
    """Payload that crosses the busiest cut in a step, in both directions."""
    crossed = [
        before.bytes_to[after.rank] + after.bytes_to[before.rank]
        for copy in range(len(row.result.copies))
        for before, after in pairwise(stages(row, copy))
        if before.bytes_to and after.bytes_to
    ]
    return max(crossed) / row.steps if crossed and row.steps else None


def parameters(row: Row) -> int | None:
    """Of the rank that holds most."""
    return max((rank.parameters for rank in _ranks(row)), default=None) or None


def model_size(groups: Iterable[Group]) -> int | None:
    """Parameters of the model that these groups train: of a rank that has all, or of one copy's parts."""
    rows = [row for group in groups for row in group.ok_rows]
    if whole := [row for row in rows if not row.run.strategy.partitions_model]:
        return max((size for row in whole if (size := parameters(row))), default=None)
    return max((sum(rank.parameters for rank in stages(row)) for row in rows), default=0) or None


def state_bytes(row: Row) -> int | None:
    """Weights, gradient and optimizer state of the rank that holds most."""
    held = [sum(rank.state_bytes.values()) for rank in _ranks(row) if rank.state_bytes]
    return max(held, default=None)


def activation_bytes(row: Row) -> int | None:
    """What forward passes kept for backward passes on the rank that kept most."""
    return max((r.activation_bytes for r in _ranks(row) if r.activation_bytes is not None), default=None)


def memory_by_kind(row: Row) -> dict[str, int]:
    """All that the fullest rank keeps, by KINDS; empty where no rank recorded it."""
    kept = [
        {**rank.state_bytes, "activations": rank.activation_bytes or 0}
        for rank in _ranks(row)
        if rank.state_bytes
    ]
    return max(kept, key=lambda each: sum(each.values()), default={})


def memory_bytes(row: Row) -> int | None:
    """The sum of `memory_by_kind`."""
    return sum(memory_by_kind(row).values()) or None


def work_s(row: Row) -> list[float]:
    """Seconds of work per step of each rank that trains, by rank; of a model in parts, who holds one."""
    trains = [r for r in _ranks(row) if r.rank >= row.run.strategy.servers and r.blocks != []]
    return [sum(rank.seconds[phase] for phase in WORK) / (row.steps or 1) for rank in trains]


def balance(row: Row) -> float | None:
    """Mean by longest time of work of the ranks that train: 1 where all have equally much to do."""
    work = work_s(row)
    return fmean(work) / max(work) if any(work) else None


def divides(groups: Sequence[Group]) -> bool:
    """Whether there is anything to tell: some strategy cuts the model, or ranks keep different amounts.

    Gradients are left out, which some strategies free and others keep.
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
    return bool(held) and min(held) < LESS * max(held)


def _of_serial(metric: Metric, whole: Metric) -> Metric:
    """The metric as a share of what serial has, which `whole` says; None without serial."""

    def share(row: Row) -> float | None:
        mine, all_of_it = metric(row), whole(row)
        return mine / all_of_it if mine is not None and all_of_it else None

    return share


parameters_share = _of_serial(parameters, lambda row: row.baseline.parameters if row.baseline else None)
held_share = _of_serial(state_bytes, lambda row: row.baseline.state_bytes if row.baseline else None)


def _ranks(row: Row) -> list[RankResult]:
    return row.result.ranks if row.ok else []
