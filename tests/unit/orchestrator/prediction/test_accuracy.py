"""Mistakes in the accuracy of predictions: relative to what, ends of intervals, ties, cases too small."""

from __future__ import annotations

import pytest

from orchestrator.prediction.accuracy import Outcome, accuracy, lines, rank_correlation


def outcome(
    predicted_s: float,
    measured_s: float = 1.0,
    interval: tuple[float | None, float | None] = (None, None),
    *,
    case: str = "case",
    choice: str = "",
) -> Outcome:
    return Outcome(case, choice or f"{predicted_s}", predicted_s, *interval, measured_s)


def test_errors_are_relative_to_the_measured_time() -> None:
    found = accuracy(
        [outcome(1.0, 2.0), outcome(3.0, 2.0), outcome(2.2, 2.0), outcome(2.02, 2.0), outcome(2, 2)]
    )
    assert found.runs == 5
    assert found.median == pytest.approx(0.1)
    assert found.mean == pytest.approx((0.5 + 0.5 + 0.1 + 0.01) / 5)
    assert found.p90 == pytest.approx(0.5)
    assert found.worst == pytest.approx(0.5)
    assert found.too_fast == pytest.approx(1 / 5)


def test_coverage_counts_the_ends_and_ignores_predictions_without_an_interval() -> None:
    intervals = [(2.0, 3.0), (0.5, 2.0), (0.5, 1.9), (2.1, 3.0), (0.5, 1.5), (None, None)]
    outcomes = [outcome(1.0, 2.0, each, choice=str(each)) for each in intervals]
    assert accuracy(outcomes).coverage == pytest.approx(2 / 5)
    assert accuracy(outcomes[-1:]).coverage is None


def test_regret_is_the_measured_time_lost_by_the_predicted_best() -> None:
    outcomes = [
        *(outcome(1.0, 3.0, case="wrong"), outcome(2.0, 2.0, case="wrong")),
        *(outcome(1.0, 5.0, case="right"), outcome(2.0, 6.0, case="right")),
        outcome(9.0, 1.0, case="no choice"),
    ]
    found = accuracy(outcomes)
    assert found.regret_median == pytest.approx(0.25)
    assert found.regret_p90 == pytest.approx(0.45)
    assert accuracy(outcomes[-1:]).regret_median is None


def test_regret_of_equal_predictions_is_their_mean() -> None:
    tied = [outcome(1.0, seconds, choice=f"{seconds}") for seconds in (2.0, 4.0)]
    assert accuracy(tied).regret_median == pytest.approx(0.5)


def test_rank_correlation_is_a_mean_over_cases_with_three_choices() -> None:
    ordered = [outcome(value, value**3, case="ordered") for value in (1.0, 2.0, 3.0)]
    reversed_ = [outcome(value, 1 / value, case="reversed") for value in (1.0, 2.0, 3.0)]
    pair = [outcome(value, 1 / value, case="pair") for value in (1.0, 2.0)]
    equal = [outcome(value, 1.0, case="equal") for value in (1.0, 2.0, 3.0)]
    assert accuracy([*ordered, *pair, *equal]).rank_correlation == pytest.approx(1)
    assert accuracy([*ordered, *reversed_]).rank_correlation == pytest.approx(0)
    assert accuracy([*pair, *equal]).rank_correlation is None


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        ([1, 2, 2, 3], [1, 2, 3, 4], 0.9**0.5),  # equal values share their mean rank
        ([1, 1, 1], [1, 2, 3], 0.0),
    ],
)
def test_rank_correlation(first: list[float], second: list[float], expected: float) -> None:
    assert rank_correlation(first, second) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("predicted_s", "measured_s", "interval"),
    [
        (0.0, 1.0, (None, None)),
        (1.0, 0.0, (None, None)),
        (float("inf"), 1.0, (None, None)),
        (1.0, float("nan"), (None, None)),
        (1.0, 1.0, (2.0, 1.0)),
        (1.0, 1.0, (1.0, None)),
    ],
)
def test_an_impossible_outcome_is_refused(
    predicted_s: float, measured_s: float, interval: tuple[float | None, float | None]
) -> None:
    with pytest.raises(ValueError, match="_s"):
        outcome(predicted_s, measured_s, interval)


def test_a_choice_counts_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        accuracy([outcome(1.0), outcome(1.0)])
    with pytest.raises(ValueError, match="no outcomes"):
        accuracy([])


def test_the_table_has_aligned_columns_and_a_row_for_each_accuracy() -> None:
    table = lines(
        {"model": accuracy([outcome(1.0, 2.0, (1, 3))]), "a longer label": accuracy([outcome(3.0)])}
    )
    assert len(table) == 4
    assert len({len(line) for line in table}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert cells[2] == ["model", "1", *["50.0 %"] * 4, "100.0 %", "100.0 %", "–", "–", "–"]
    assert cells[3][-4] == "–"
