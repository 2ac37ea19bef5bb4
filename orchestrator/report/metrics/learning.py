"""How fast a run learned: the rates that it stepped with, and when it reached its target accuracy."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row


def rates(row: Row) -> list[float]:
    """The learning rates of its epochs, as they were used; none of older results."""
    points = sorted(row.result.epochs, key=lambda point: point.epoch) if row.ok else []
    return [point.lr for point in points if point.lr is not None]


def first_rate(row: Row) -> float | None:
    return next(iter(rates(row)), None)


def last_rate(row: Row) -> float | None:
    return next(reversed(rates(row)), None)


def last_epoch(row: Row) -> int | None:
    """How many epochs it trained for."""
    return row.result.last_epoch if row.ok else None


def as_many_epochs(rows: Iterable[Row]) -> bool:
    """Whether all trained for the same number of epochs: only then are their times those of equal work."""
    return len({last_epoch(row) for row in rows}) < 2


def target_reached(row: Row) -> bool | None:
    """None unless the run is ok and had a target accuracy."""
    if row.run.target_accuracy is None or not row.ok:
        return None
    return any(point.target_reached for point in row.result.epochs)


def time_to_target_s(row: Row) -> float | None:
    """Training time to the end of the first of the epochs in a row that reached the target, in seconds."""
    if not target_reached(row):
        return None
    first = (last_epoch(row) or 0) - row.run.patience + 1
    return max(point.train_s for point in row.result.epochs if point.epoch == first)


def in_how_many(group: Group) -> tuple[int, int]:
    """Of its runs that are ok: how many reached their target accuracy, and how many there are."""
    return sum(bool(target_reached(row)) for row in group.ok_rows), len(group.ok_rows)
