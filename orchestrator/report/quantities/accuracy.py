"""Accuracy and loss of the final weights, and of the local models before they are averaged."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log
from statistics import fmean

from orchestrator.report.formats import JOIN, percent, points, short
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.intervals import accuracy_interval


def _minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


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


def _of_local(reduce: Callable[[list[float]], float], title: str = "") -> Quantity:
    """Of the accuracies of the nodes' models before the final average."""

    def read(row: Row) -> float | None:
        return reduce(row.local_accuracies) if row.local_accuracies else None

    return Quantity(percent, read, title, by_seed=True, possible=(0, 1))


def _test_loss(row: Row) -> float | None:
    return row.result.ranks[0].test_loss if row.result.ranks else None


def _bits_per_token(row: Row) -> float | None:
    loss = _test_loss(row)
    return loss / log(2) if loss is not None and row.run.dataset.target_shape else None


class Accuracies:
    """Accuracies and losses."""

    accuracy = Quantity(
        percent,
        lambda row: row.accuracy,
        "Test accuracy",
        lower_is_better=False,
        resolution=_one_image,
        within=_within_accuracies,
        interval=_interval,
        by_seed=True,
        possible=(0, 1),
    )
    accuracy_difference = Quantity(
        lambda value: points(value).partition(JOIN)[0],
        lambda row: _minus(row.accuracy, row.serials(lambda each: each.accuracy)),
        "Accuracy − serial, points",
        of_means=lambda group, serial: (
            Accuracies.accuracy.mean_of(group) - Accuracies.accuracy.mean_of(serial)
        ),
    )
    test_loss = Quantity(short, _test_loss, by_seed=True, possible=(0, inf))
    bits_per_token = Quantity(short, _bits_per_token, "Bits per token", by_seed=True, possible=(0, inf))
    local_accuracy_min = _of_local(min)
    local_accuracy_mean = _of_local(fmean, "Accuracy of local models")
    local_accuracy_max = _of_local(max)
    averaging_gain = Quantity(
        points,
        lambda row: _minus(row.accuracy, Accuracies.local_accuracy_mean.of(row)),
        lower_is_better=False,
        resolution=_one_image,
        within=lambda reference: (-1, 1),
        by_seed=True,
        possible=(-1, 1),
    )
