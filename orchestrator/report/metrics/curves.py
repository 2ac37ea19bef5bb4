"""Accuracy over the time of training, and who reaches an accuracy first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Bounds
from orchestrator.report.statistics.spread import Spread, accuracy_interval


@dataclass(frozen=True)
class CurvePoint:
    """A group after an epoch. train_s: mean over seeds. accuracy: 0 … 1. interval: of 95 %."""

    epoch: int
    train_s: float
    accuracy: float
    interval: Bounds | None


def curve(group: Group) -> list[CurvePoint]:
    """One point for each epoch that every seed evaluated: the mean over nodes' models, then over seeds."""
    runs = [_epochs(row) for row in group.ok_rows if row.timed]
    points = []
    for epoch in sorted(set.intersection(*map(set, runs))) if runs else ():
        times, reached = zip(*(run[epoch] for run in runs), strict=True)
        after = partial(_accuracies, epoch)
        shift = group.shift(f"{Q.accuracy.name} after epoch {epoch}", after, Q.accuracy.possible)
        shifted = [each + shift for each in reached]
        interval = accuracy_interval(shifted, group.first.test_samples)
        if time := Spread.of(times, geometric=True):
            points.append(CurvePoint(epoch, time.mean, fmean(shifted), interval))
    return points


def _accuracies(epoch: int, group: Group) -> dict[int, float]:
    """By seed, those after an epoch."""
    known = {
        row.seed: [point.accuracy for point in row.result.epochs if point.epoch == epoch]
        for row in group.ok_rows
        if row.timed
    }
    return {seed: fmean(of_ranks) for seed, of_ranks in known.items() if of_ranks}


def _epochs(row: Row) -> dict[int, tuple[float, float]]:
    """epoch -> (time of the slowest rank so far, mean accuracy of the ranks' models)."""
    epochs: dict[int, list[tuple[float, float]]] = {}
    for point in row.result.epochs:
        epochs.setdefault(point.epoch, []).append((point.train_s, point.accuracy))
    return {
        epoch: (max(train_s for train_s, _ in points), fmean(accuracy for _, accuracy in points))
        for epoch, points in epochs.items()
    }


def has_local_models(group: Group) -> bool:
    """Whether nodes keep local models until the end."""
    return any(row.local_accuracies for row in group.ok_rows)


def reached_sooner(group: Group, rivals: Sequence[Group]) -> tuple[Group, CurvePoint] | None:
    """Who was measured at the group's final accuracy in less time than the group took, and when.

    Configurations are compared after the same number of epochs. Another may have been as accurate after
    fewer of them. None if no rival was. Local models are not the model that their average is.
    """
    found = [
        (rival, point)
        for rival in rivals
        if rival is not group and not has_local_models(rival)
        for point in curve(rival)
        if point.accuracy >= Q.accuracy.mean_of(group) and point.train_s < Q.train_s.mean_of(group)
    ]
    return min(found, key=lambda item: item[1].train_s, default=None)
