"""The data partitions that runs trained on, from their certificates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from orchestrator.report.formats import bits, distance, percent, whole
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.quantity import Quantity
from trainer.training.partition import PartitionSummary

SKEWED_BITS = 0.02  # mean divergence of labels that is reported


def _split(index: int, field: str) -> Metric:
    """A share of the training set in the first (0) or the last (-1) of the recorded epochs."""

    def read(row: Row) -> float | None:
        splits = row.result.certificate.splits if row.result.certificate else []
        ordered = sorted(splits, key=lambda split: split.epoch)
        return getattr(ordered[index], field) if ordered else None

    return read


def _over_nodes(
    reduce: Callable[[Sequence[float]], float], values: Callable[[Row], Sequence[float]]
) -> Metric:
    """Values of nodes in epoch 1 reduced to one; None without any."""
    return lambda row: reduce(found) if (found := values(row)) else None


def _js_divergences(row: Row) -> list[float]:
    found = (part.js_divergence for part in row.parts) if row.has_classes else ()
    return [js for js in found if js is not None]


def _js_whole_run(row: Row) -> float | None:
    certificate = row.result.certificate if row.has_classes else None
    return certificate.js_whole_run() if certificate else None


def _distances(row: Row) -> tuple[float, ...]:
    summary = partition_summary_of(row)
    return summary.earth_movers_distance if summary else ()


class DataPartitions:
    """Which samples the nodes trained on."""

    coverage = Quantity(percent, _split(0, "coverage"), "Coverage, epoch 1")
    overlap = Quantity(percent, _split(0, "overlap"), "Overlap, epoch 1")
    coverage_whole_run = Quantity(percent, _split(-1, "coverage_so_far"), "Coverage, run")
    overlap_whole_run = Quantity(percent, _split(-1, "overlap_so_far"), "Overlap, run")
    js_divergence_mean_bits = Quantity(
        bits, _over_nodes(fmean, _js_divergences), "Mean JS divergence, epoch 1"
    )
    js_divergence_max_bits = Quantity(bits, _over_nodes(max, _js_divergences), "Max JS divergence, epoch 1")
    js_divergence_whole_run_max_bits = Quantity(bits, _js_whole_run, "Max JS divergence, run")
    samples_per_rank_min = Quantity(whole, _over_nodes(min, lambda row: row.node_samples))
    samples_per_rank_max = Quantity(whole, _over_nodes(max, lambda row: row.node_samples))
    earth_movers_distance_mean = Quantity(distance, _over_nodes(fmean, _distances), "Mean EMD, epoch 1")
    earth_movers_distance_max = Quantity(distance, _over_nodes(max, _distances), "Max EMD, epoch 1")


def partition_summary_of(row: Row) -> PartitionSummary | None:
    """The distribution of epoch 1's classes over the ranks; None without classes, result or certificate."""
    certificate = row.result.certificate if row.ok and row.has_classes else None
    parts = certificate.first_epoch() if certificate else []
    coverage, overlap = DataPartitions.coverage.of(row), DataPartitions.overlap.of(row)
    if not parts or coverage is None or overlap is None:
        return None
    return PartitionSummary(
        labels=np.array([part.labels for part in parts], dtype=np.int64),
        coverage=coverage,
        overlap=overlap,
        js_divergence=tuple(part.js_divergence for part in parts if part.js_divergence is not None),
        earth_movers_distance=tuple(
            part.earth_movers_distance for part in parts if part.earth_movers_distance is not None
        ),
    )


def representatives(groups: Sequence[Group]) -> list[Row]:
    """One certified run for each number of data-parallel ranks and each partitioner.

    Runs in which all ranks train in each round, with the whole model on every rank, without servers, and
    with the lowest seed are preferred. Rows come in the order of ranks, then of the sweep. Ranks that share
    one replica count once. A single rank trains on everything, and is left out unless nothing else was run.
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


def _order(row: Row) -> tuple[bool, bool, int, int]:
    strategy = row.run.strategy
    return strategy.rounds is not None, strategy.partitions_model, strategy.servers, row.seed
