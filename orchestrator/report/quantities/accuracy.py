"""Accuracy and loss of the final weights, and of the local models before they are averaged."""

from __future__ import annotations

from math import inf, log
from statistics import fmean

from orchestrator.report import formats
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.spread import accuracy_interval


def _minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def _accuracy(row: Row) -> float | None:
    return row.accuracy


def _one_image(row: Row) -> float:
    images = row.test_samples
    return 1 / images if images else 0.0


def _interval(group: Group) -> tuple[float, float] | None:
    """The interval on new images and with new seeds; None if seeds are few or test sets differ."""
    values = [*Accuracies.accuracy.sample(group).values()]
    images = {row.test_samples for row in group.ok_rows}
    return accuracy_interval(values, images.pop()) if len(images) == 1 and None not in images else None


def _within_accuracies(reference: Group) -> tuple[float, float]:
    """Differences that lead to an accuracy of 0 … 1, from anywhere in the interval of the reference."""
    low, high = _interval(reference) or (0.0, 1.0)
    return -high, 1 - low


def _mean_of_local(row: Row) -> float | None:
    return fmean(row.local_accuracies) if row.local_accuracies else None


def _bits_per_token(row: Row) -> float | None:
    loss = row.result.ranks[0].test_loss if row.result.ranks else None
    return loss / log(2) if loss is not None and row.run.dataset.target_shape else None


def _minus_serial(group: Group, serial: Group) -> float:
    return Accuracies.accuracy.mean_of(group) - Accuracies.accuracy.mean_of(serial)


class Accuracies:
    """Accuracies and losses."""

    accuracy = Quantity(
        formats.percent,
        _accuracy,
        "Test accuracy",
        lower_is_better=False,
        resolution=_one_image,
        within=_within_accuracies,
        interval=_interval,
        by_seed=True,
        possible=(0, 1),
    )
    accuracy_difference = Quantity(
        lambda value: formats.points(value).partition(formats.JOIN)[0],
        lambda row: _minus(row.accuracy, row.serials(_accuracy)),
        "Accuracy − serial, points",
        of_means=_minus_serial,
    )
    test_loss = Quantity(
        formats.short,
        lambda row: row.result.ranks[0].test_loss if row.result.ranks else None,
        by_seed=True,
        possible=(0, inf),
    )
    bits_per_token = Quantity(
        formats.short, _bits_per_token, "Bits per token", by_seed=True, possible=(0, inf)
    )
    local_accuracy_min = Quantity(
        formats.percent, lambda row: min(row.local_accuracies, default=None), by_seed=True, possible=(0, 1)
    )
    local_accuracy_mean = Quantity(
        formats.percent, _mean_of_local, "Accuracy of local models", by_seed=True, possible=(0, 1)
    )
    local_accuracy_max = Quantity(
        formats.percent, lambda row: max(row.local_accuracies, default=None), by_seed=True, possible=(0, 1)
    )
    averaging_gain = Quantity(
        formats.points,
        lambda row: _minus(row.accuracy, _mean_of_local(row)),
        lower_is_better=False,
        resolution=_one_image,
        within=lambda reference: (-1, 1),
        by_seed=True,
        possible=(-1, 1),
    )
