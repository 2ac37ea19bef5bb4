"""Mistakes in how far predictions are off, as a benchmark measures it: units, bounds, ties."""

from __future__ import annotations

from math import inf, nan

import pytest

from tests.bench.prediction_accuracy import Outcome, accuracy, rank_correlation


def outcomes(*times: tuple[float, float], case: str = "case") -> list[Outcome]:
    """From predicted and measured times."""
    return [Outcome(case, f"{index}", each[0], None, None, each[1]) for index, each in enumerate(times)]


def test_errors_are_relative_to_the_measured_time() -> None:
    found = accuracy(outcomes((1.0, 2.0), (3.0, 2.0), (2.2, 2.0), (2.02, 2.0), (2, 2)))
    errors = (found.median, found.mean, found.p90, found.worst, found.too_fast)
    assert errors == pytest.approx((0.1, (0.5 + 0.5 + 0.1 + 0.01) / 5, 0.5, 0.5, 1 / 5))
    assert found.runs == 5


def test_coverage_counts_the_ends_and_ignores_predictions_without_an_interval() -> None:
    intervals = [(2.0, 3.0), (0.5, 2.0), (0.5, 1.9), (2.1, 3.0), (0.5, 1.5), (None, None)]
    found = [Outcome("case", str(each), 1.0, *each, 2.0) for each in intervals]
    assert accuracy(found).coverage == pytest.approx(2 / 5)
    assert accuracy(found[-1:]).coverage is None


def test_regret_is_the_measured_time_lost_by_the_predicted_best() -> None:
    wrong, right = outcomes((1, 3), (2, 2), case="wrong"), outcomes((1, 5), (2, 6), case="right")
    alone = outcomes((9, 1), case="no choice")
    found = accuracy([*wrong, *right, *alone])
    assert (found.regret_median, found.regret_p90) == (pytest.approx(0.25), pytest.approx(0.45))
    assert accuracy(alone).regret_median is None
    assert accuracy(outcomes((1, 2), (1, 4))).regret_median == pytest.approx(0.5)  # the mean of equal ones


def test_rank_correlation_is_a_mean_over_cases_with_three_choices() -> None:
    ordered = outcomes((1, 1), (2, 8), (3, 27), case="ordered")
    reversed_ = outcomes((1, 9), (2, 4), (3, 3), case="reversed")
    pair, equal = outcomes((1, 9), (2, 4), case="pair"), outcomes((1, 1), (2, 1), (3, 1), case="equal")
    assert accuracy([*ordered, *pair, *equal]).rank_correlation == pytest.approx(1)
    assert accuracy([*ordered, *reversed_]).rank_correlation == pytest.approx(0)
    assert accuracy([*pair, *equal]).rank_correlation is None
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9**0.5)  # equal: their mean rank
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0


def test_an_impossible_outcome_is_refused_and_a_choice_counts_once() -> None:
    wrong = [(0, None, None, 1), (1, None, None, 0), (inf, None, None, 1), (1, None, None, nan)]
    for times in (*wrong, (1, 2, 1, 1), (1, 1, None, 1)):
        with pytest.raises(ValueError, match=r"_s (is|are) .*; (it must be positive and finite|give both)"):
            Outcome("case", "choice", *times)
    with pytest.raises(ValueError, match="case 'case' has choice '0' twice"):
        accuracy(2 * outcomes((1, 1)))
    with pytest.raises(ValueError, match="no outcomes"):
        accuracy([])
