"""How good predicted times are: their errors, their intervals, and what choosing by them costs.

An error is the predicted time / the measured time − 1. It does not say whether a prediction chooses well:
times that are all 20 % too short still find the fastest alternative, and times that are 2 % off may not.
Therefore outcomes are also compared within a case, a set of alternatives:

- The rank correlation is that of Spearman (1904): the linear correlation of ranks, where equal values share
  the mean of their ranks. It is the mean over the cases with three choices or more.
- The regret of a case is the measured time of the choice with the smallest predicted time / the smallest
  measured time − 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Outcome:
    """A predicted time beside the measured one.

    Attributes:
        case: what is chosen between. Equal for alternatives, such as the strategies of one workload.
        choice: the alternative.
        predicted_s: in s.
        low_s: the lower end of the interval of the prediction, in s; None without an interval.
        high_s: its upper end.
        measured_s: in s.

    Raises:
        ValueError: a time is not positive and finite, or the interval has one end or ends before it starts.
    """

    case: str
    choice: str
    predicted_s: float
    low_s: float | None
    high_s: float | None
    measured_s: float

    def __post_init__(self) -> None:
        for name in ("predicted_s", "measured_s"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive and finite")
        low, high = self.low_s, self.high_s
        if (low is None) != (high is None) or (low is not None and high is not None and not low <= high):
            raise ValueError(f"low_s, high_s are {low}, {high}; give both, the smaller first, or neither")

    @property
    def error(self) -> float:
        """Predicted / measured − 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def covered(self) -> bool | None:
        """Whether the measured time is in the interval; None without an interval."""
        if self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True)
class Accuracy:
    """What a set of outcomes says about the predictions. All but `runs` are ratios.

    Attributes:
        runs: the number of outcomes.
        median: of the absolute errors, as are the next three.
        mean: see above.
        p90: the 90th percentile.
        worst: the largest.
        too_fast: the share of outcomes whose predicted time is below the measured one.
        coverage: the share of intervals that contain the measured time; None if no outcome has one.
        rank_correlation: from −1 to 1; None without a case with three choices of different measured times.
        regret_median: over the cases with two choices or more; None without one.
        regret_p90: the 90th percentile.
    """

    runs: int
    median: float
    mean: float
    p90: float
    worst: float
    too_fast: float
    coverage: float | None
    rank_correlation: float | None
    regret_median: float | None
    regret_p90: float | None


def accuracy(outcomes: Iterable[Outcome]) -> Accuracy:
    """Compare predictions with measurements.

    Args:
        outcomes: at least one; each choice once in its case.

    Returns:
        the errors, the coverage, and the cost of choosing by the predictions.

    Raises:
        ValueError: there is no outcome, or a case has a choice twice.
    """
    given = list(outcomes)
    if not given:
        raise ValueError("there are no outcomes")
    cases: dict[str, dict[str, Outcome]] = defaultdict(dict)
    for each in given:
        if each.choice in cases[each.case]:
            raise ValueError(f"case {each.case!r} has choice {each.choice!r} twice")
        cases[each.case][each.choice] = each
    alternatives = [list(case.values()) for case in cases.values()]
    absolute = np.abs([each.error for each in given])
    covered = [each.covered for each in given if each.covered is not None]
    regrets = [regret(case) for case in alternatives if len(case) >= 2]
    correlations = [
        rank_correlation([each.predicted_s for each in case], [each.measured_s for each in case])
        for case in alternatives
        if len({each.measured_s for each in case}) > 1 and len(case) >= 3
    ]
    return Accuracy(
        runs=len(given),
        median=float(np.median(absolute)),
        mean=float(np.mean(absolute)),
        p90=float(np.quantile(absolute, 0.9)),
        worst=float(np.max(absolute)),
        too_fast=float(np.mean([each.error < 0 for each in given])),
        coverage=float(np.mean(covered)) if covered else None,
        rank_correlation=float(np.mean(correlations)) if correlations else None,
        regret_median=float(np.median(regrets)) if regrets else None,
        regret_p90=float(np.quantile(regrets, 0.9)) if regrets else None,
    )


def regret(case: Sequence[Outcome]) -> float:
    """The time lost by taking the choice with the smallest predicted time, as a share of the best time.

    Args:
        case: the alternatives. If several have the smallest predicted time, their mean counts, as if one
            of them were drawn.

    Returns:
        the measured time of the predicted best / the smallest measured time − 1; 0 if they are the same.
    """
    smallest = min(each.predicted_s for each in case)
    taken = [each.measured_s for each in case if each.predicted_s == smallest]
    return float(np.mean(taken)) / min(each.measured_s for each in case) - 1


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation.

    Args:
        first: values.
        second: as many values, in the same order.

    Returns:
        from −1 to 1; 0 if all values of a sequence are equal, since they order nothing.
    """
    one, other = _centred_ranks(first), _centred_ranks(second)
    scale = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other) / scale if scale else 0.0


def _centred_ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """The rank of each value minus the mean rank: (values below it − values above it) / 2."""
    column = np.asarray(values, dtype=np.float64)
    return np.asarray(np.sign(column[:, None] - column[None, :]).sum(axis=1) / 2, dtype=np.float64)


def lines(named: Mapping[str, Accuracy]) -> list[str]:
    """A Markdown table that is aligned for reading as text, with a row per accuracy.

    Args:
        named: accuracies by the label of their row.

    Returns:
        the lines of the table, without line ends.
    """
    rows = [["", *COLUMNS]]
    rows += [[name, *(show(each) for show in COLUMNS.values())] for name, each in named.items()]
    widths = [max(4, *map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    texts = [
        [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        for row in rows
    ]
    return [f"| {' | '.join(row)} |" for row in (texts[0], rule, *texts[1:])]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}".replace("%", " %")


COLUMNS: dict[str, Callable[[Accuracy], str]] = {
    "runs": lambda each: f"{each.runs}",
    "median error": lambda each: _percent(each.median),
    "mean": lambda each: _percent(each.mean),
    "90th percentile": lambda each: _percent(each.p90),
    "worst": lambda each: _percent(each.worst),
    "too fast": lambda each: _percent(each.too_fast),
    "coverage": lambda each: _percent(each.coverage),
    "rank correlation": lambda each: (
        "–" if each.rank_correlation is None else f"{each.rank_correlation:.2f}"
    ),
    "median regret": lambda each: _percent(each.regret_median),
    "regret, 90th percentile": lambda each: _percent(each.regret_p90),
}
