"""The splits that runs trained on, as their certificates have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from trainer.training.partition import PartitionSummary


def survey_of(row: Row) -> PartitionSummary | None:
    """How the samples of epoch 1 lay over the ranks; None for a run without result or certificate."""
    certificate = row.result.certificate if row.ok else None
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
    """The earth mover's distance of the nodes' labels, `reduce`d over them; None in results without it."""

    def metric(row: Row) -> float | None:
        seen = survey_of(row)
        return reduce(seen.earth_movers_distance) if seen and seen.earth_movers_distance else None

    return metric


distance_mean, distance_max = distance(fmean), distance(max)


def representatives(groups: Sequence[Group]) -> list[Row]:
    """For each number of ranks and each partitioner its certified run of the lowest seed, without a server
    and with the whole model on each rank if there is one.

    In the order of ranks, and then of the sweep; ranks that hold one copy of the model train on one part
    and count once. A single one has everything: it is left out unless there is nothing else to see.
    """
    chosen: dict[tuple[int, str], Row] = {}
    for group in groups:
        for row in group.ok_rows:
            if row.partitioner_label and survey_of(row):
                cell = (_sharers(row), row.partitioner_label)
                if cell not in chosen or _order(row) < _order(chosen[cell]):
                    chosen[cell] = row
    rows = sorted(chosen.values(), key=_sharers)
    return [row for row in rows if _sharers(row) > 1] or rows


def holders(row: Row) -> tuple[str, ...]:
    """The ranks of each copy of the model, `0–1`, where it is cut; empty where a rank has one to itself."""
    return tuple(_range([rank.rank for rank in copy]) for copy in row.result.copies)


def _range(ranks: list[int]) -> str:
    first, last = ranks[0], ranks[-1]
    if ranks != list(range(first, last + 1)):
        return ", ".join(map(str, ranks))
    return f"{first}" if first == last else f"{first}–{last}"


def _sharers(row: Row) -> int:
    return row.run.num_replicas if row.run.strategy.partitions_model else row.shape.ranks


def _order(row: Row) -> tuple[bool, int, int]:
    return row.run.strategy.partitions_model, row.run.strategy.servers, row.seed
