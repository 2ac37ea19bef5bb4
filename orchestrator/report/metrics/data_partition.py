"""The data partitions that runs trained on, from their certificates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from trainer.training.partition import PartitionSummary


def partition_summary_of(row: Row) -> PartitionSummary | None:
    """The distribution of epoch 1's classes over the ranks; None without classes, result or certificate."""
    certificate = row.result.certificate if row.ok and row.has_classes else None
    parts = certificate.first_epoch() if certificate else []
    if not parts or row.coverage is None or row.overlap is None:
        return None
    distances = [part.earth_movers_distance for part in parts]
    return PartitionSummary(
        labels=np.array([part.labels for part in parts], dtype=np.int64),
        coverage=row.coverage,
        overlap=row.overlap,
        js_divergence=tuple(part.js_divergence for part in parts),
        earth_movers_distance=tuple(value for value in distances if value is not None),
    )


def distance(reduce: Callable[[Sequence[float]], float]) -> Callable[[Row], float | None]:
    """A metric: the earth mover's distance of nodes' labels, reduced over nodes; None if not recorded."""

    def metric(row: Row) -> float | None:
        summary = partition_summary_of(row)
        return reduce(summary.earth_movers_distance) if summary and summary.earth_movers_distance else None

    return metric


distance_mean, distance_max = distance(fmean), distance(max)


def representatives(groups: Sequence[Group]) -> list[Row]:
    """One certified run for each number of data-parallel ranks and each partitioner.

    Runs with the whole model on every rank, without servers, and with the lowest seed are preferred. Rows
    come in the order of ranks, then of the sweep. Ranks that share one replica count once. A single rank
    trains on everything, and is left out unless nothing else was run.
    """
    chosen: dict[tuple[int, str], Row] = {}
    for group in groups:
        for row in group.ok_rows:
            if row.partitioner_label and partition_summary_of(row):
                key = (_replicas(row), row.partitioner_label)
                if key not in chosen or _order(row) < _order(chosen[key]):
                    chosen[key] = row
    rows = sorted(chosen.values(), key=_replicas)
    return [row for row in rows if _replicas(row) > 1] or rows


def replica_ranks(row: Row) -> tuple[str, ...]:
    """The ranks of each replica, `0–1`, if the model is partitioned; empty if every rank has its own."""
    return tuple(_range([rank.rank for rank in copy]) for copy in row.result.copies)


def _range(ranks: list[int]) -> str:
    first, last = ranks[0], ranks[-1]
    if ranks != list(range(first, last + 1)):
        return ", ".join(map(str, ranks))
    return f"{first}" if first == last else f"{first}–{last}"


def _replicas(row: Row) -> int:
    return row.run.num_replicas if row.run.strategy.partitions_model else row.shape.ranks


def _order(row: Row) -> tuple[bool, int, int]:
    return row.run.strategy.partitions_model, row.run.strategy.servers, row.seed
