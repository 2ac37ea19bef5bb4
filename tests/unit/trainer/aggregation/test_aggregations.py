"""Mistakes in rules of aggregation: a vector too many, wrong ties and weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.aggregation.base import Aggregation
from trainer.spec.registries import AGGREGATIONS

Matrix = npt.NDArray[np.float64]
M = 7  # coordinates

# References. Weighted ones repeat a vector as often as its weight says.


def mean(rows: Matrix, weights: Matrix) -> Matrix:
    return np.asarray(np.repeat(rows, weights.astype(int), axis=0).mean(axis=0))


def median(rows: Matrix, weights: Matrix) -> Matrix:
    return np.asarray(np.median(np.repeat(rows, weights.astype(int), axis=0), axis=0))


def trimmed_mean(rows: Matrix, weights: Matrix, f: int = 1) -> Matrix:
    found = []
    for column in rows.T:
        order = sorted(range(len(rows)), key=lambda row: column[row])[f : len(rows) - f]
        found.append(np.average(column[order], weights=weights[order]))
    return np.array(found)


def scores(rows: Matrix, f: int) -> Matrix:
    distances = np.sort(((rows[:, None] - rows) ** 2).sum(axis=2), axis=1)  # the first is its own, 0
    return np.asarray(distances[:, 1 : 1 + max(len(rows) - f - 2, 1)].sum(axis=1))


def krum(rows: Matrix, weights: Matrix, f: int = 1) -> Matrix:
    return rows[int(np.argmin(scores(rows, f)))]


def multi_krum(rows: Matrix, weights: Matrix, f: int = 1, m: int | None = None) -> Matrix:
    best = np.argsort(scores(rows, f), kind="stable")[: m or len(rows) - f - 2]
    return np.asarray(np.average(rows[best], axis=0, weights=weights[best]))


def bulyan(rows: Matrix, weights: Matrix, f: int = 1) -> Matrix:
    left, selected = [*range(len(rows))], []
    while len(selected) < len(rows) - 2 * f:
        selected.append(left.pop(int(np.argmin(scores(rows[left], f)))))
    found = []
    for column in rows[sorted(selected)].T:
        middle = sorted(column)[(len(column) - 1) // 2]
        closest = sorted(column, key=lambda value: abs(value - middle))[: len(rows) - 4 * f]
        found.append(np.mean(closest))
    return np.array(found)


# The reference of each rule, the fewest vectors that it combines, and how many of 8 may be Byzantine.
RULES: list[tuple[dict[str, Any], Callable[..., Matrix], int, int | None]] = [
    ({"name": "mean"}, mean, 1, None),
    ({"name": "median"}, median, 1, 3),
    ({"name": "trimmed_mean"}, trimmed_mean, 3, 1),
    ({"name": "trimmed_mean", "f": 2}, trimmed_mean, 5, 2),
    ({"name": "krum"}, krum, 5, 1),
    ({"name": "krum", "f": 2}, krum, 7, 2),
    ({"name": "multi_krum"}, multi_krum, 5, 1),
    ({"name": "multi_krum", "f": 2, "m": 2}, multi_krum, 7, 2),
    ({"name": "multi_krum", "f": 2, "m": 6}, multi_krum, 10, 2),
    ({"name": "bulyan"}, bulyan, 7, 1),
    ({"name": "bulyan", "f": 2}, bulyan, 11, 2),
]
IDS = ["-".join(map(str, form.values())) for form, *_ in RULES]


def combined(rule: Aggregation, rows: Matrix, weights: Matrix) -> Matrix:
    found = rule.combine(torch.tensor(rows).float(), torch.tensor(weights).float())
    assert found.shape == (rows.shape[1],)
    return found.double().numpy()


@pytest.mark.parametrize("case", RULES, ids=IDS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_rule_is_its_formula(case: tuple[Any, ...], data: st.DataObject) -> None:
    """On a coarse grid values and scores tie, and a reference in float64 computes all of them exactly."""
    form, reference, least, of_8 = case
    rule = AGGREGATIONS.parse(form)
    assert (rule.least, rule.tolerated(8)) == (least, of_8)
    n = data.draw(st.integers(max(least, 2), 12), "vectors")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    rows = rng.integers(-2, 3, size=(n, M)) / 4
    if data.draw(st.booleans(), "fine"):
        rows = (rows + rng.normal(size=(n, M))).astype(np.float32).astype(float)
    if data.draw(st.booleans(), "far"):
        rows[rng.integers(n)] *= 1e30  # its square is beyond float32
    weights = rng.integers(1, data.draw(st.sampled_from([2, 6]), "largest weight"), size=n).astype(float)
    expected = reference(rows, weights, **{name: value for name, value in form.items() if name != "name"})
    np.testing.assert_allclose(combined(rule, rows, weights), expected, rtol=1e-5, atol=1e-5)


def weiszfeld(rows: Matrix, weights: Matrix, iterations: int, nu: float) -> Matrix:
    point = median(rows, weights)
    for _ in range(iterations):
        beta = weights / np.maximum(nu, np.linalg.norm(rows - point, axis=1))
        point = beta @ rows / beta.sum()
    return point


@pytest.mark.parametrize(("iterations", "nu"), [(1, 1e-6), (3, 1.0), (300, 1e-6)])
def test_the_geometric_median_is_that_of_weiszfeld(iterations: int, nu: float) -> None:
    rule = AGGREGATIONS.parse({"name": "geometric_median", "iterations": iterations, "nu": nu})
    assert rule.tolerated(8) == 3
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(3 + seed, M)).astype(np.float32).astype(float)
        rows[0] *= 1e6 if seed > 2 else 1
        weights = rng.integers(1, 6, size=len(rows)).astype(float)
        expected = weiszfeld(rows, weights, iterations, nu)
        np.testing.assert_allclose(combined(rule, rows, weights), expected, rtol=1e-3, atol=1e-4)
