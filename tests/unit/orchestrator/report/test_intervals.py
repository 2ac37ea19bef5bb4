"""Intervals of one configuration's numbers contain the truth as often as they say."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from orchestrator.report.statistics.intervals import accuracy_interval, ratio_interval


def test_ratio_interval_is_students_t_of_the_logarithms() -> None:
    # Logarithms −1, 0, 1: mean 0, standard error 1/√3, t(0.975; 2) = 4.302653.
    interval = ratio_interval([exp(-1), 1.0, exp(1)])
    assert interval is not None
    assert [log(bound) for bound in interval] == pytest.approx([-2.484138, 2.484138])


def test_ratio_interval_has_its_coverage() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        interval = ratio_interval([*np.exp(log(1.8) + 0.2 * rng.standard_normal(5))])
        assert interval
        hits += interval[0] <= 1.8 <= interval[1]
    assert 0.935 < hits / 2000 < 0.965


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0]])
def test_fewer_than_three_values_have_no_interval(values: list[float]) -> None:
    assert ratio_interval(values) is None
    assert accuracy_interval([min(value, 1.0) for value in values], 100) is None


def test_accuracy_interval_has_the_error_of_the_test_set() -> None:
    # Equal in every seed: only the test set's error is left, Wilson's interval of 90 of 100.
    assert accuracy_interval([0.9, 0.9, 0.9], 100) == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert accuracy_interval([0.9, 0.9, 0.9], None) == pytest.approx((0.9, 0.9))
