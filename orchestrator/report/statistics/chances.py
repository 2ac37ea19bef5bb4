"""How probable it is that a configuration is the right choice, and what it may cost if it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log1p

import numpy as np

from orchestrator.report.statistics.moderated import Estimate

DRAWS = 4000
BOUND = 0.95

Draws = np.ndarray  # of the means of configurations: shape (draws, configurations)


@dataclass(frozen=True)
class Tolerance:
    """Differences that do not matter.

    Attributes:
        accuracy: a share; 0.01 is one point.
        time: a share of the shorter time.
    """

    accuracy: float = 0.01
    time: float = 0.05

    @property
    def better(self) -> str:
        """What matters, as text: `over 1 point more accurate, or as accurate and over 5% faster`."""
        plural = "" if self.accuracy == 0.01 else "s"
        return (
            f"over {self.accuracy * 100:.3g} point{plural} more accurate, or as accurate and over "
            f"{self.time * 100:.3g}% faster"
        )


@dataclass(frozen=True)
class Chance:
    """What a choice is worth, by the draws.

    Attributes:
        probability: the probability that it is within the tolerance of the best.
        longer: the 95 % bound of the share by which it takes longer than the best.
        loses: the 95 % bound of the accuracy that it lacks to the most accurate one.
    """

    probability: float
    longer: float
    loses: float


def draw_means(estimates: Sequence[Estimate], rng: np.random.Generator) -> Draws:
    """Draws of the true means, given what was measured: independent, each of Student's t around its mean,
    and of the normal distribution for what no number of seeds makes smaller.
    """
    means = np.array([each.mean for each in estimates])
    errors = np.sqrt([each.squared_error for each in estimates])
    dofs = np.array([each.dof for each in estimates])
    shape = DRAWS, len(estimates)
    draws = means + errors * rng.standard_t(np.maximum(dofs, 1.0), shape)
    between = np.sqrt([each.between for each in estimates])
    return draws + between * rng.standard_normal(shape)


def for_speed(log_times: Draws, accuracies: Draws, tolerance: Tolerance) -> list[Chance]:
    """The chances to be the fastest of those that are as accurate as the best, within the tolerance."""
    lost = _lost(accuracies)
    accurate = lost <= tolerance.accuracy
    longer = log_times - np.where(accurate, log_times, np.inf).min(axis=1, keepdims=True)
    right = (accurate & (longer <= log1p(tolerance.time))).mean(axis=0)
    most_longer, most_lost = (np.maximum(0.0, np.quantile(each, BOUND, axis=0)) for each in (longer, lost))
    return [Chance(*map(float, each)) for each in zip(right, np.expm1(most_longer), most_lost, strict=True)]


def for_accuracy(accuracies: Draws, tolerance: Tolerance) -> list[float]:
    """The probabilities to be as accurate as the best, within the tolerance."""
    return [float(share) for share in (_lost(accuracies) <= tolerance.accuracy).mean(axis=0)]


def _lost(accuracies: Draws) -> Draws:
    """The accuracy that each lacks to the most accurate one."""
    lost: Draws = accuracies.max(axis=1, keepdims=True) - accuracies
    return lost
