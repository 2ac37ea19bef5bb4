"""Mistakes in the model of how far simulated times are off: units, bounds, and what counts how much."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from orchestrator.prediction.error_model import ErrorModel, Observation

MODEL = ErrorModel(np.array([0.0, 0.0, 0.0]), np.diag([0.2, 0.05, 0.2]) ** 2, 0.02)
SEEN = [Observation(2, 0.1, 1.3), Observation(4, 0.2, 1.35)]


def test_without_observations_an_interval_is_that_of_the_prior() -> None:
    found = MODEL.interval([], 1, 0.0)
    assert found.middle == 1.0
    assert log(found.high) == pytest.approx(1.645 * (0.2**2 + 0.02**2) ** 0.5)
    assert log(found.low) == pytest.approx(-log(found.high))
    doubled = MODEL.interval([], 8, 0.0)  # three doublings of the nodes
    spread = 1.645 * (0.2**2 + (3 * 0.05) ** 2 + 0.02**2) ** 0.5
    assert log(doubled.high) == pytest.approx(spread)


def test_near_observations_the_factor_is_theirs() -> None:
    found = MODEL.interval(SEEN, 2, 0.1)
    assert found.middle == pytest.approx(1.3, rel=0.02)
    assert found.width < 1.1


def test_an_interval_widens_with_the_distance_in_nodes_and_in_communication() -> None:
    near, far = MODEL.interval(SEEN, 4, 0.2), MODEL.interval(SEEN, 256, 0.2)
    assert far.width > 1.3 * near.width
    assert MODEL.interval(SEEN, 4, 0.9).width > 1.3 * near.width


def test_the_posterior_is_that_of_observations_one_at_a_time() -> None:
    mean, covariance = MODEL._posterior(SEEN)
    first = ErrorModel(*MODEL._posterior(SEEN[:1]), MODEL.noise)
    again, same = first._posterior(SEEN[1:])
    np.testing.assert_allclose(mean, again)
    np.testing.assert_allclose(covariance, same, atol=1e-12)


def test_a_fit_finds_the_prior_that_made_the_observations() -> None:
    rng = np.random.default_rng(0)
    mean, spread, noise = np.array([0.1, -0.03, 0.2]), np.array([0.15, 0.04, 0.3]), 0.1
    groups = []
    for _ in range(80):  # few and noisy observations of each do not determine its weights
        own = rng.normal(mean, spread)
        places = [(nodes, rng.uniform(0, 1)) for nodes in (2, 4, 8, 64)]
        groups.append(
            [
                Observation(nodes, share, exp(own @ [1, np.log2(nodes), share] + rng.normal(0, noise)))
                for nodes, share in places
            ]
        )
    found = MODEL.fitted(groups)
    np.testing.assert_allclose(found.mean, mean, atol=0.1)
    np.testing.assert_allclose(np.diag(found.covariance) ** 0.5, spread, rtol=0.3)
    assert found.noise == pytest.approx(noise, rel=0.15)


def test_few_configurations_change_a_prior_little_and_many_much() -> None:
    rng = np.random.default_rng(2)
    group = [Observation(2, 0.5, exp(0.3 + rng.normal(0, 0.2))) for _ in range(10)]
    noises = [MODEL.fitted([group] * number, strength=10).noise for number in (0, 1, 20)]
    assert noises[0] == pytest.approx(MODEL.noise)
    # Ten configurations with five runs each, beside the ten runs of one.
    assert noises[1] == pytest.approx(((50 * MODEL.noise**2 + 10 * 0.2**2) / 60) ** 0.5, rel=0.3)
    assert noises[0] < noises[1] < noises[2]
    assert noises[2] == pytest.approx(0.2, rel=0.3)
    middles = [
        MODEL.fitted([group] * number, strength=10).interval([], 2, 0.5).middle for number in (1, 20)
    ]
    assert 1 < middles[0] < middles[1] < exp(0.4)


def test_intervals_of_a_fitted_prior_hold_nine_of_ten() -> None:
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(1000):
        own = rng.multivariate_normal(MODEL.mean, MODEL.covariance)
        observed = [
            Observation(n, s, exp(own @ [1, np.log2(n), s] + rng.normal(0, MODEL.noise)))
            for n, s in ((2, 0.1), (4, 0.3))
        ]
        truth = exp(own @ [1, 6, 0.7] + rng.normal(0, MODEL.noise))
        found = MODEL.interval(observed, 64, 0.7)
        inside.append(found.low <= truth <= found.high)
    assert 0.87 < np.mean(inside) < 0.93
