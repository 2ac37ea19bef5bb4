"""How far simulated times are off, learned from measured ones: Bayesian linear regression.

With T the measured time of a run on P nodes, M the simulated one, and s the share of M in which ranks
communicate or wait:

    log(T / M) = w · (1, log₂ P, s) + ε,    w ~ N(mean, covariance),    ε ~ N(0, noise²)

w is that of a configuration. Its prior is what the configurations of published runs have; the measured runs
of the configuration itself turn it into a posterior. So an interval is narrow near measured runs, and
widens with the distance: in nodes, and in the share of communication, as over other links.

Sources: Bishop 2006, Pattern Recognition and Machine Learning, section 3.3; the prior is fitted by
expectation maximisation, as in Laird and Ware 1982, "Random-effects models for longitudinal data".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, log2
from typing import NamedTuple

import numpy as np

Z_90 = 1.645  # standard normal: 90 % are within ± this
ITERATIONS = 200
RUNS_OF_ONE = 5  # of a configuration: as many as the published prior has of each


class Observation(NamedTuple):
    """A measured run. nodes: their number. communication: s. ratio: T / M."""

    nodes: int
    communication: float
    ratio: float


class Interval(NamedTuple):
    """A factor for the simulated time: its median, and bounds that hold 90 %."""

    middle: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """The upper bound over the lower one."""
        return self.high / self.low


@dataclass(frozen=True)
class ErrorModel:
    """The prior of w, and the noise.

    Attributes:
        mean: shape (3,). covariance: shape (3, 3).
        noise: the standard deviation of log(T / M) beside w, of a single run.
    """

    mean: np.ndarray
    covariance: np.ndarray
    noise: float

    def interval(
        self, observed: Sequence[Observation], nodes: int, communication: float, drift: float = 0.0
    ) -> Interval:
        """The factor for a simulated time on `nodes` nodes, after the observations of its configuration.

        drift: the standard deviation of the logarithm of the machine's speed between two runs.
        """
        mean, covariance = self._posterior(observed)
        features = _features(nodes, communication)
        middle = float(features @ mean)
        spread = Z_90 * float(features @ covariance @ features + self.noise**2 + drift**2) ** 0.5
        return Interval(exp(middle), exp(middle - spread), exp(middle + spread))

    def _posterior(self, observed: Sequence[Observation]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of w (Bishop, equations 3.50 and 3.51)."""
        precision = np.linalg.inv(self.covariance)
        if not observed:
            return self.mean, self.covariance
        design = np.array([_features(each.nodes, each.communication) for each in observed])
        logs = np.array([log(each.ratio) for each in observed])
        covariance = np.linalg.inv(precision + design.T @ design / self.noise**2)
        return covariance @ (precision @ self.mean + design.T @ logs / self.noise**2), covariance

    def fitted(self, groups: Sequence[Sequence[Observation]], strength: float = 0.0) -> ErrorModel:
        """The prior that makes the observations most likely, by expectation maximisation.

        Args:
            groups: the observations of each configuration. At least one, unless this prior counts.
            strength: the number of configurations that this prior counts as, each with RUNS_OF_ONE runs.
                With 0, it is the first guess alone.
        """
        model, number = self, strength + len(groups)
        runs = strength * RUNS_OF_ONE
        for _ in range(ITERATIONS):
            found = [model._posterior(group) for group in groups]
            centre = (strength * self.mean + sum(mean for mean, _ in found)) / number
            scatter = strength * (self.covariance + np.outer(self.mean - centre, self.mean - centre))
            for mean, own in found:
                scatter = scatter + np.outer(mean - centre, mean - centre) + own
            squares = runs * self.noise**2
            for group, (mean, own) in zip(groups, found, strict=True):
                design = np.array([_features(each.nodes, each.communication) for each in group])
                rest = np.array([log(each.ratio) for each in group]) - design @ mean
                squares += float(rest @ rest + np.trace(design @ own @ design.T))
            count = runs + sum(map(len, groups))
            model = ErrorModel(centre, scatter / number, (squares / count) ** 0.5)
        return model


def _features(nodes: int, communication: float) -> np.ndarray:
    return np.array([1.0, log2(nodes), communication])


# The covariance is 0.3 times that of 312 runs of 56 configurations, whose simulation left out what calls of
# exchanges and servers cost. With this factor and noise, 92 % of 208 times are in their intervals; see
# docs/prediction.md.
PRIOR = ErrorModel(
    mean=np.zeros(3),
    covariance=np.array(
        [[0.008082, -0.004583, -0.010266], [-0.004583, 0.002626, 0.004979], [-0.010266, 0.004979, 0.041355]]
    ),
    noise=0.09,
)
PRIOR_RUNS = 208  # whose times chose it
