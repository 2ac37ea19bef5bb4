"""Moderated variances, and the chance of a configuration to be the right choice."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from orchestrator.report.statistics.chances import Tolerance, draw_means, for_accuracy, for_speed
from orchestrator.report.statistics.moderated import MIN_FITTED, PRIOR_DOF, moderated

TOLERANCE = Tolerance(accuracy=0.01, time=0.05)


def samples(rng: np.random.Generator, deviations: list[float], seeds: int) -> list[dict[int, float]]:
    return [dict(enumerate(deviation * rng.standard_normal(seeds))) for deviation in deviations]


def test_a_variance_is_shrunk_towards_that_of_all_configurations() -> None:
    own = [{0: 0.0, 1: 0.1, 2: -0.1}, {0: 0.0, 1: 1.0, 2: -1.0}]  # variances of 0.01 and 1
    small, large = moderated(own)
    assert 0.01 < small.variance < large.variance < 1
    assert small.dof == large.dof == 2 + PRIOR_DOF


def test_variances_that_differ_much_are_shrunk_less() -> None:
    rng = np.random.default_rng(1)
    alike = moderated(samples(rng, [1.0] * MIN_FITTED, 5))
    apart = moderated(samples(rng, [10.0**power for power in range(MIN_FITTED)], 5))
    assert apart[0].dof < alike[0].dof == 4 + PRIOR_DOF


def test_rounding_is_a_part_of_a_variance() -> None:
    equal = {0: 0.5, 1: 0.5, 2: 0.5}
    assert [each.variance for each in moderated([equal, equal])] == [0.0, 0.0]
    assert moderated([equal, equal], resolution=0.1)[0].variance > 0


@pytest.mark.parametrize("seeds", [5, 8])
def test_equals_rarely_differ(seeds: int) -> None:
    """At 5 %, among eight configurations whose standard deviations differ up to threefold."""
    rng, found = np.random.default_rng(2), list[bool]()
    for _ in range(200):
        draws = draw_means(moderated(samples(rng, [1, 1, 1.5, 2, 2, 2.5, 3, 3], seeds)), rng)
        above = [(left > right).mean() for left, right in combinations(draws.T, 2)]
        found += [2 * min(share, 1 - share) < 0.05 for share in above]
    assert found.count(True) / len(found) < 0.065


def test_the_right_choice_is_the_fastest_of_those_that_are_accurate() -> None:
    """Draws of three: the second is fastest but loses accuracy in one draw of two."""
    times = np.log([[2.0, 1.0, 2.05], [2.0, 1.0, 2.05]])
    accuracies = np.array([[0.9, 0.9, 0.9], [0.9, 0.8, 0.895]])
    found = for_speed(times, accuracies, TOLERANCE)
    assert [each.probability for each in found] == [0.5, 0.5, 0.5]
    # Twice as long as the fast one, if that is accurate.
    assert found[0].longer == pytest.approx(1.0, abs=0.1)
    assert found[1].loses == pytest.approx(0.1, abs=0.01)
    assert for_accuracy(accuracies, TOLERANCE) == [1.0, 0.5, 1.0]


def test_draws_have_the_error_of_the_mean_and_of_sessions() -> None:
    (estimate,) = moderated([dict(enumerate(np.random.default_rng(3).standard_normal(400)))])
    rng = np.random.default_rng(4)
    assert draw_means([estimate], rng).std() == pytest.approx(0.05, rel=0.15)
    between = replace(estimate, between=0.04)
    assert draw_means([between], rng).std() == pytest.approx(0.206, rel=0.1)
