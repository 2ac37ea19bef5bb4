"""How probable it is that a configuration is the right choice, and what it may cost if it is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import expm1, log1p

import numpy as np

from orchestrator.report.statistics.moderated import Estimate

DRAWS = 4000
BOUND = 0.95
LEAST_VARIANCE = 1e-30  # of what does not vary
NODES = 40  # of the quadrature over the deviation of rivals
APART = 3.0  # standard errors from the largest mean, beyond which another is not one of its equals

Draws = np.ndarray  # of the means of configurations: shape (draws, configurations)


@dataclass(frozen=True)
class Tolerance:
    """Differences that do not matter."""

    accuracy: float = 0.01  # a share: one point
    time: float = 0.05  # a share of the shorter time

    @property
    def better(self) -> str:
        """What matters, as text: `over 1 point more accurate, or as accurate and over 5% faster`."""
        return f"{self.more_accurate}, or as accurate and over {self.time * 100:.3g}% faster"

    @property
    def more_accurate(self) -> str:
        """What matters where times do not compare: `over 1 point more accurate`."""
        plural = "" if self.accuracy == 0.01 else "s"
        return f"over {self.accuracy * 100:.3g} point{plural} more accurate"


@dataclass(frozen=True)
class Chance:
    """What a choice is worth, by the draws."""

    probability: float  # that it is within the tolerance of the best
    accurate: float  # the probability that it is as accurate as the best, within the tolerance
    longer: float  # the 95 % bound of the share by which it takes longer than the best
    loses: float  # the 95 % bound of the accuracy that it lacks to the most accurate one


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


def against_rivals(
    estimates: Sequence[Estimate], draws: Draws, own: int, rng: np.random.Generator
) -> Draws:
    """Draws in which the means but one are shrunk towards the mean of these others.

    The largest of several equals was measured larger than it is, so that others seem worse beside it than
    they are. The mean in question stays as measured: shrunk with its rivals, it would seem as good as they
    are. The largest mean is held against the others as measured, because it was measured too large, too.

    Args:
        draws: of all means, as they were measured.
        own: the mean in question.
    """
    means = np.array([each.mean for each in estimates])
    variances = np.array([each.squared_error + each.between for each in estimates])
    largest = int(means.argmax())
    errors = np.sqrt(variances[largest] + variances + LEAST_VARIANCE)
    near = means[largest] - means <= APART * errors
    rivals = np.flatnonzero(near & (np.arange(len(means)) != own))
    held = draws.copy()
    if own != largest and len(rivals) > 1:
        held[:, rivals] = _shrunk(means[rivals], variances[rivals], draws[:, rivals], rng)
    return held


def _shrunk(means: np.ndarray, variances: np.ndarray, draws: Draws, rng: np.random.Generator) -> Draws:
    """Draws of means that vary normally around their own mean, by an unknown standard deviation.

    Source:
        Gelman et al. (2013), Bayesian Data Analysis, Sec. 5.4: the prior distribution of that deviation is
        uniform.
    """
    variances = np.maximum(variances, LEAST_VARIANCE)
    differ = np.linspace(0, 3 * max(float(np.ptp(means)), float(variances.max()) ** 0.5), NODES)[:, None]
    weights = 1 / (differ**2 + variances)
    total = weights.sum(axis=1)
    centre = weights @ means / total
    logs = np.log(weights) - weights * (means - centre[:, None]) ** 2
    posterior = (logs.sum(axis=1) - np.log(total)) / 2
    densities = np.exp(posterior - posterior.max())
    node = rng.choice(NODES, len(draws), p=densities / densities.sum())
    common = centre[node] + rng.standard_normal(len(draws)) / np.sqrt(total[node])
    kept = (differ**2 * weights)[node]
    shrunk: Draws = (1 - kept) * common[:, None] + kept * means + np.sqrt(kept) * (draws - means)
    return shrunk


def for_speed(log_times: Draws, accuracies: Iterable[Draws], tolerance: Tolerance) -> list[Chance]:
    """The chances to be the fastest of those that are as accurate as the best, within the tolerance.

    Args:
        accuracies: for each configuration, those that it is held against, with its own.
    """
    found = []
    for at, drawn in enumerate(accuracies):
        lost = drawn.max(axis=1, keepdims=True) - drawn
        accurate = lost <= tolerance.accuracy
        longer = log_times[:, at] - np.where(accurate, log_times, np.inf).min(axis=1)
        right = accurate[:, at] & (longer <= log1p(tolerance.time))
        most = [max(0.0, float(np.quantile(each, BOUND))) for each in (longer, lost[:, at])]
        found.append(Chance(float(right.mean()), float(accurate[:, at].mean()), expm1(most[0]), most[1]))
    return found
