"""Whether a run learned anything."""

from __future__ import annotations

from collections.abc import Callable

from scipy.special import bdtrc

from orchestrator.report.model.rows import Row
from orchestrator.report.statistics.spread import Spread
from orchestrator.results.records import EpochPoint

CHANCE_LEVEL = 0.01  # of the test that an accuracy is above chance


def learned(row: Row) -> bool | None:
    """Whether a run learned anything; None if that cannot be told.

    Its accuracy is above that of a constant answer, by a one-sided binomial test at 1 %, and its loss is
    not above that of the first epoch, on the test split or in training. (The test loss alone also rises
    when a model overfits.) Losses of local models say nothing about their average.
    """
    images, chance = row.test_samples, row.chance_accuracy
    if not row.trains or row.accuracy is None or images is None or chance is None:
        return None
    right = round(row.accuracy * images)
    p_value = bdtrc(right - 1, images, chance) if right else 1.0
    above_chance = p_value < CHANCE_LEVEL
    fell = _fell(row, lambda point: point.test_loss) or _fell(row, lambda point: point.loss)
    return bool(above_chance) and (fell or bool(row.local_accuracies))


def _fell(row: Row, loss: Callable[[EpochPoint], float | None]) -> bool:
    """Whether a loss, mean over ranks, is not above that of the first epoch, or is unknown."""
    first, last = (
        Spread.of(loss(point) for point in row.result.epochs if point.epoch == epoch)
        for epoch in (1, row.result.last_epoch)
    )
    return first is None or last is None or last.mean <= first.mean
