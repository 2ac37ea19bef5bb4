"""Mistakes in the model of how far simulated times are off: its prior, its fit and its intervals."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from orchestrator.prediction.error_model import ErrorModel, Observation

MODEL = ErrorModel(np.array([0.0, 0.0, 0.0]), np.diag([0.2, 0.05, 0.2]) ** 2, 0.02)
SEEN = [Observation(2, 0.1, 1.3), Observation(4, 0.2, 1.35)]


def drawn(rng: np.random.Generator, model: ErrorModel, *places: tuple[int, float]) -> list[Observation]:
    """Observations of one configuration as the model has them."""
    own = rng.multivariate_normal(model.mean, model.covariance)
    return [
        Observation(nodes, share, exp(own @ [1, np.log2(nodes), share] + rng.normal(0, model.noise)))
        for nodes, share in places
    ]


def test_without_observations_an_interval_is_that_of_the_prior() -> None:
    for nodes, spread in ((1, 0.2**2), (8, 0.2**2 + (3 * 0.05) ** 2)):  # three doublings of the nodes
        found = MODEL.interval([], nodes, 0.0)
        half = 1.645 * (spread + 0.02**2) ** 0.5
        assert [log(each) for each in found] == pytest.approx([0.0, -half, half])


def test_an_interval_widens_with_the_distance_from_observations_in_nodes_and_in_communication() -> None:
    found = MODEL.interval(SEEN, 2, 0.1)
    assert found.middle == pytest.approx(1.3, rel=0.02)
    assert found.width < 1.1
    near = MODEL.interval(SEEN, 4, 0.2)
    assert MODEL.interval(SEEN, 256, 0.2).width > 1.3 * near.width
    assert MODEL.interval(SEEN, 4, 0.9).width > 1.3 * near.width


def test_a_fit_finds_the_prior_that_made_the_observations() -> None:
    """Few and noisy observations of each configuration do not determine its weights."""
    rng, spread = np.random.default_rng(0), np.array([0.15, 0.04, 0.3])
    true = ErrorModel(np.array([0.1, -0.03, 0.2]), np.diag(spread) ** 2, 0.1)
    found = MODEL.fitted(
        [drawn(rng, true, *((nodes, rng.uniform(0, 1)) for nodes in (2, 4, 8, 64))) for _ in range(60)]
    )
    np.testing.assert_allclose(found.mean, true.mean, atol=0.1)
    np.testing.assert_allclose(np.diag(found.covariance) ** 0.5, spread, rtol=0.3)
    assert found.noise == pytest.approx(0.1, rel=0.15)


def test_few_configurations_change_a_prior_little_and_many_much() -> None:
    rng = np.random.default_rng(2)
    group = [Observation(2, 0.5, exp(0.3 + rng.normal(0, 0.2))) for _ in range(10)]
    none, one, many = (MODEL.fitted([group] * number, strength=10) for number in (0, 1, 20))
    assert none.noise == pytest.approx(MODEL.noise)
    # Ten configurations with five runs each, beside the ten runs of one.
    assert one.noise == pytest.approx(((50 * MODEL.noise**2 + 10 * 0.2**2) / 60) ** 0.5, rel=0.3)
    assert one.noise < many.noise == pytest.approx(0.2, rel=0.3)
    assert 1 < one.interval([], 2, 0.5).middle < many.interval([], 2, 0.5).middle < exp(0.4)


def test_intervals_of_a_fitted_prior_hold_nine_of_ten() -> None:
    rng, inside = np.random.default_rng(1), []
    for _ in range(1000):
        *observed, truth = drawn(rng, MODEL, (2, 0.1), (4, 0.3), (64, 0.7))
        found = MODEL.interval(observed, 64, 0.7)
        inside.append(found.low <= truth.ratio <= found.high)
    assert 0.87 < np.mean(inside) < 0.93
