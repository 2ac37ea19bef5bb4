"""Mistakes in rules of aggregation: a vector too many, wrong ties and weights, what few may move."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.threads import together
from trainer.aggregation.base import Aggregation, whole
from trainer.aggregation.krum import squared_distances
from trainer.comm.memory import MemoryCommunicator
from trainer.spec.registries import AGGREGATIONS

Matrix = npt.NDArray[np.float64]
M = 7  # coordinates

# References. Weighted ones repeat a vector as often as its weight says.


def mean(rows: Matrix, weights: Matrix) -> Matrix:
    found: Matrix = np.repeat(rows, weights.astype(int), axis=0).mean(axis=0)
    return found


def median(rows: Matrix, weights: Matrix) -> Matrix:
    found: Matrix = np.median(np.repeat(rows, weights.astype(int), axis=0), axis=0)
    return found


def trimmed_mean(rows: Matrix, weights: Matrix, f: int = 1) -> Matrix:
    found = []
    for column in rows.T:
        order = sorted(range(len(rows)), key=lambda row: column[row])[f : len(rows) - f]
        found.append(np.average(column[order], weights=weights[order]))
    return np.array(found)


def scores(rows: Matrix, f: int) -> Matrix:
    distances = np.sort(((rows[:, None] - rows) ** 2).sum(axis=2), axis=1)  # the first is its own, 0
    found: Matrix = distances[:, 1 : 1 + max(len(rows) - f - 2, 1)].sum(axis=1)
    return found


def krum(rows: Matrix, weights: Matrix, f: int = 1) -> Matrix:
    return rows[int(np.argmin(scores(rows, f)))]


def multi_krum(rows: Matrix, weights: Matrix, f: int = 1, m: int | None = None) -> Matrix:
    best = np.argsort(scores(rows, f), kind="stable")[: m or len(rows) - f - 2]
    found: Matrix = np.average(rows[best], axis=0, weights=weights[best])
    return found


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


# The reference of each rule, and the fewest vectors that it combines.
RULES: list[tuple[dict[str, Any], Callable[..., Matrix], int]] = [
    ({"name": "mean"}, mean, 1),
    ({"name": "median"}, median, 1),
    ({"name": "trimmed_mean"}, trimmed_mean, 3),
    ({"name": "trimmed_mean", "f": 2}, trimmed_mean, 5),
    ({"name": "krum"}, krum, 5),
    ({"name": "krum", "f": 2}, krum, 7),
    ({"name": "multi_krum"}, multi_krum, 5),
    ({"name": "multi_krum", "f": 2, "m": 2}, multi_krum, 7),
    ({"name": "multi_krum", "f": 2, "m": 6}, multi_krum, 10),
    ({"name": "bulyan"}, bulyan, 7),
    ({"name": "bulyan", "f": 2}, bulyan, 11),
]
IDS = ["-".join(map(str, form.values())) for form, *_ in RULES]


def combined(rule: Aggregation, rows: Matrix, weights: Matrix) -> Matrix:
    found = rule.combine(torch.tensor(rows).float(), torch.tensor(weights).float())
    assert found.shape == (rows.shape[1],)
    return found.double().numpy()


@pytest.mark.parametrize(("form", "reference", "least"), RULES, ids=IDS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_rule_is_its_formula(
    form: dict[str, Any], reference: Callable[..., Matrix], least: int, data: st.DataObject
) -> None:
    """On a coarse grid values and scores tie, and a reference in float64 computes all of them exactly."""
    rule = AGGREGATIONS.parse(form)
    assert rule.least == least
    n = data.draw(st.integers(max(least, 2), 12), "vectors")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    rows = rng.integers(-2, 3, size=(n, M)) / 4
    if data.draw(st.booleans(), "fine"):
        rows = (rows + rng.normal(size=(n, M))).astype(np.float32).astype(float)
    weights = rng.integers(1, data.draw(st.sampled_from([2, 6]), "largest weight"), size=n).astype(float)
    expected = reference(rows, weights, **{name: value for name, value in form.items() if name != "name"})
    np.testing.assert_allclose(combined(rule, rows, weights), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 3e-4])
def test_equal_distances_are_equal_in_every_bit(scale: float) -> None:
    """Each other vector differs from the first one by the same numbers, in another order."""
    steps = np.random.default_rng(0).normal(scale=scale, size=40).astype(np.float32)
    rows = [np.zeros(40), *(np.random.default_rng(seed).permutation(steps) for seed in range(20))]
    distances = squared_distances(torch.tensor(np.array(rows)).float(), whole)
    assert len({*distances[0, 1:].tolist()}) == 1
    assert torch.equal(distances, distances.T)


def weiszfeld(rows: Matrix, weights: Matrix, iterations: int, nu: float) -> Matrix:
    point = median(rows, weights)
    for _ in range(iterations):
        beta = weights / np.maximum(nu, np.linalg.norm(rows - point, axis=1))
        point = beta @ rows / beta.sum()
    return point


@pytest.mark.parametrize(("iterations", "nu"), [(1, 1e-6), (3, 1.0), (300, 1e-6)])
def test_the_geometric_median_is_that_of_weiszfeld(iterations: int, nu: float) -> None:
    rule = AGGREGATIONS.parse({"name": "geometric_median", "iterations": iterations, "nu": nu})
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(3 + seed, M)).astype(np.float32).astype(float)
        weights = rng.integers(1, 6, size=len(rows)).astype(float)
        found = combined(rule, rows, weights)
        np.testing.assert_allclose(found, weiszfeld(rows, weights, iterations, nu), rtol=1e-3, atol=1e-4)

    def cost(point: Matrix) -> float:
        return float(weights @ np.linalg.norm(rows - point, axis=1))

    if iterations == 300:  # no point is closer to all
        nearby = found + 0.05 * rng.normal(size=(50, M))
        assert cost(found) <= min(map(cost, [*rows, *nearby])) * (1 + 1e-3)


@pytest.mark.parametrize("name", AGGREGATIONS.entries)
def test_slices_give_what_whole_vectors_give(name: str) -> None:
    rule = AGGREGATIONS.parse(name)
    rng = np.random.default_rng(0)
    rows = torch.tensor(rng.normal(size=(9, M))).float()
    weights = torch.tensor(rng.integers(1, 5, size=9)).float()
    parts = rows.tensor_split(3, dim=1)

    def body(comm: MemoryCommunicator) -> Tensor:
        def total(tensor: Tensor) -> Tensor:
            flat = tensor.flatten()
            comm.all_reduce(flat, "sum")
            return flat.view(tensor.shape)

        return rule.combine(parts[comm.rank], weights, total)

    found = torch.cat(together(3, body))
    torch.testing.assert_close(found, rule.combine(rows, weights), rtol=1e-5, atol=1e-6)


# How many of 7 and of 8 vectors may be Byzantine; None: the rule promises nothing.
TOLERATED: dict[str, tuple[dict[str, int], int | None, int | None]] = {
    "mean": ({}, None, None),
    "median": ({}, 3, 3),
    "geometric_median": ({}, 3, 3),
    "trimmed_mean": ({"f": 3}, 3, 3),
    "krum": ({"f": 2}, 2, 2),
    "multi_krum": ({"f": 2}, 2, 2),
    "bulyan": ({"f": 1}, 1, 1),
}


def test_as_many_far_vectors_as_a_rule_tolerates_do_not_move_it_away() -> None:
    assert TOLERATED.keys() == AGGREGATIONS.entries.keys()
    for name, (parameters, of_7, of_8) in TOLERATED.items():
        rule = AGGREGATIONS.parse({"name": name, **parameters})
        assert (rule.tolerated(7), rule.tolerated(8)) == (of_7, of_8)
        for byzantine in [*combinations(range(7), of_7 or 1)][::3]:
            rows = np.random.default_rng(0).normal(size=(7, M))
            honest = np.delete(rows, byzantine, axis=0)
            rows[list(byzantine)] = 1e3 * (-1) ** byzantine[0] + np.arange(len(byzantine))[:, None]
            found = combined(rule, rows, np.ones(7))
            slack = 1.0 if name == "geometric_median" else 1e-6
            near = (found >= honest.min(axis=0) - slack) & (found <= honest.max(axis=0) + slack)
            assert near.all() == (of_7 is not None), name


def test_bulyan_limits_a_single_coordinate_which_krum_does_not() -> None:
    """The vector of El Mhamdi et al.: near the others, but for one of many coordinates."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(7, 1000))
    rows[6] = rows[:6].mean(axis=0)
    rows[6, 0] += 20  # nearer than honest ones to each other, which differ by about √2000
    np.testing.assert_allclose(combined(AGGREGATIONS.parse("krum"), rows, np.ones(7)), rows[6], rtol=1e-6)
    assert combined(AGGREGATIONS.parse("bulyan"), rows, np.ones(7))[0] <= rows[:6, 0].max()
