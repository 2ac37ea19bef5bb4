"""Rules of aggregation against short references in numpy, and what they promise."""

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


def repeated(rows: Matrix, weights: Matrix) -> Matrix:
    return np.repeat(rows, weights.astype(int), axis=0)


def mean(rows: Matrix, weights: Matrix) -> Matrix:
    found: Matrix = repeated(rows, weights).mean(axis=0)
    return found


def median(rows: Matrix, weights: Matrix) -> Matrix:
    found: Matrix = np.median(repeated(rows, weights), axis=0)
    return found


def trimmed_mean(rows: Matrix, weights: Matrix, f: int = 1) -> Matrix:
    found = []
    for column in rows.T:
        order = sorted(range(len(rows)), key=lambda row: column[row])[f : len(rows) - f]
        found.append(np.average(column[order], weights=weights[order]))
    return np.array(found)


def scores(rows: Matrix, f: int) -> list[float]:
    found = []
    for own in range(len(rows)):
        distances = sorted(
            ((rows[own] - rows[other]) ** 2).sum() for other in range(len(rows)) if other != own
        )
        found.append(sum(distances[: max(len(rows) - f - 2, 1)]))
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


REFERENCES: list[tuple[dict[str, Any], Callable[..., Matrix]]] = [
    ({"name": "mean"}, mean),
    ({"name": "median"}, median),
    ({"name": "trimmed_mean"}, trimmed_mean),
    ({"name": "trimmed_mean", "f": 2}, trimmed_mean),
    ({"name": "krum"}, krum),
    ({"name": "krum", "f": 2}, krum),
    ({"name": "multi_krum"}, multi_krum),
    ({"name": "multi_krum", "f": 2, "m": 2}, multi_krum),
    ({"name": "bulyan"}, bulyan),
    ({"name": "bulyan", "f": 2}, bulyan),
]
IDS = ["-".join(map(str, form.values())) for form, _ in REFERENCES]
KRUM = ("krum", "multi_krum", "bulyan")


def combined(rule: Aggregation, rows: Matrix, weights: Matrix) -> Matrix:
    found = rule.combine(torch.tensor(rows).float(), torch.tensor(weights).float())
    assert found.shape == (rows.shape[1],)
    return found.double().numpy()


@st.composite
def cases(draw: st.DrawFn, least: int) -> tuple[Matrix, Matrix]:
    """Vectors with ties, and whole weights."""
    n = draw(st.integers(least, 11))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = rng.normal(size=(n, M)).round(draw(st.integers(0, 3)))
    equal = draw(st.booleans())
    return rows, np.ones(n) if equal else rng.integers(1, 6, size=n).astype(float)


@pytest.mark.parametrize(("form", "reference"), REFERENCES, ids=IDS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_rule_is_its_formula(
    form: dict[str, Any], reference: Callable[..., Matrix], data: st.DataObject
) -> None:
    rule = AGGREGATIONS.parse(form)
    rows, weights = data.draw(cases(max(rule.least, 3)))
    parameters = {name: value for name, value in form.items() if name != "name"}
    # Of vectors whose decimals tie, the rounding of their numbers to float32 would decide.
    if form["name"] in KRUM:
        rows = rows + np.random.default_rng(0).normal(size=rows.shape)
    expected = reference(rows.astype(np.float32).astype(float), weights, **parameters)
    np.testing.assert_allclose(combined(rule, rows, weights), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "reference"),
    [each for each in REFERENCES if each[0]["name"] in KRUM],
    ids=[name for name, each in zip(IDS, REFERENCES, strict=True) if each[0]["name"] in KRUM],
)
def test_ranks_decide_between_vectors_that_tie(
    form: dict[str, Any], reference: Callable[..., Matrix]
) -> None:
    """On a coarse grid most scores tie, and a reference in float64 computes all of them exactly."""
    rule = AGGREGATIONS.parse(form)
    parameters = {name: value for name, value in form.items() if name != "name"}
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = rng.integers(-2, 3, size=(11, M)) / 4
        expected = reference(rows, np.ones(11), **parameters)
        np.testing.assert_allclose(combined(rule, rows, np.ones(11)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 0.1, 3e-4])
def test_equal_distances_are_equal_in_every_bit(scale: float) -> None:
    """Each other vector differs from the first one by the same numbers, in another order."""
    steps = np.random.default_rng(0).normal(scale=scale, size=40).astype(np.float32)
    rows = [np.zeros(40), *(np.random.default_rng(seed).permutation(steps) for seed in range(20))]
    distances = squared_distances(torch.tensor(np.array(rows)).float(), whole)
    assert len({*distances[0, 1:].tolist()}) == 1


def test_krum_takes_the_first_of_equal_vectors_near_others() -> None:
    rows = np.array([[9.0], [1.0], [1.0], [1.0], [-7.0]])
    assert combined(AGGREGATIONS.parse("krum"), rows, np.ones(5)) == [1.0]


@given(case=cases(3))
@settings(max_examples=40, deadline=None)
def test_no_point_near_the_geometric_median_is_closer_to_all(case: tuple[Matrix, Matrix]) -> None:
    rows, weights = case
    rows = rows.astype(np.float32).astype(float)
    rule = AGGREGATIONS.parse({"name": "geometric_median", "iterations": 300})
    found = combined(rule, rows, weights)

    def cost(point: Matrix) -> float:
        return float(weights @ np.linalg.norm(rows - point, axis=1))

    nearby = found + 0.05 * np.random.default_rng(0).normal(size=(50, M))
    others = [*rows, *nearby]
    assert cost(found) <= min(map(cost, others)) * (1 + 1e-3)


# Slices


@pytest.mark.parametrize("name", AGGREGATIONS.entries)
@pytest.mark.parametrize("slices", [1, 2, 5, M])
def test_slices_give_what_whole_vectors_give(name: str, slices: int) -> None:
    rule = AGGREGATIONS.parse(name)
    rng = np.random.default_rng(slices)
    rows = torch.tensor(rng.normal(size=(9, M))).float()
    weights = torch.tensor(rng.integers(1, 5, size=9)).float()
    expected = rule.combine(rows, weights)
    parts = rows.tensor_split(slices, dim=1)

    def body(comm: MemoryCommunicator) -> Tensor:
        def total(tensor: Tensor) -> Tensor:
            flat = tensor.flatten()
            comm.all_reduce(flat, "sum")
            return flat.view(tensor.shape)

        return rule.combine(parts[comm.rank], weights, total)

    torch.testing.assert_close(torch.cat(together(slices, body)), expected, rtol=1e-5, atol=1e-6)


# Promises

ROBUST = [name for name in AGGREGATIONS.entries if AGGREGATIONS.parse(name).tolerated(11) is not None]


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("far", [1e3, -1e4])
def test_as_many_far_vectors_as_it_tolerates_do_not_move_it_away(name: str, far: float) -> None:
    forms = {"trimmed_mean": 3, "krum": 2, "multi_krum": 2, "bulyan": 1}
    rule = AGGREGATIONS.parse({"name": name, **({"f": forms[name]} if name in forms else {})})
    n = 7
    tolerated = rule.tolerated(n)
    assert tolerated
    for byzantine in combinations(range(n), tolerated):
        rows = np.random.default_rng(0).normal(size=(n, M))
        honest = np.delete(rows, byzantine, axis=0)
        rows[list(byzantine)] = far + np.arange(tolerated)[:, None]
        found = combined(rule, rows, np.ones(n))
        slack = 1.0 if name == "geometric_median" else 1e-6
        assert (found >= honest.min(axis=0) - slack).all()
        assert (found <= honest.max(axis=0) + slack).all()


def test_a_single_far_vector_moves_the_mean_anywhere() -> None:
    rows = np.zeros((7, M))
    rows[3] = 7e3
    assert AGGREGATIONS.parse("mean").tolerated(7) is None
    np.testing.assert_allclose(combined(AGGREGATIONS.parse("mean"), rows, np.ones(7)), 1e3)


def test_bulyan_limits_a_single_coordinate_which_krum_does_not() -> None:
    """The vector of El Mhamdi et al.: near the others, but for one of many coordinates."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(7, 1000))
    rows[6] = rows[:6].mean(axis=0)
    rows[6, 0] += 20  # nearer than honest ones to each other, which differ by about √2000
    np.testing.assert_allclose(combined(AGGREGATIONS.parse("krum"), rows, np.ones(7)), rows[6], rtol=1e-6)
    found = combined(AGGREGATIONS.parse("bulyan"), rows, np.ones(7))
    assert found[0] <= rows[:6, 0].max()


@pytest.mark.parametrize(
    ("form", "least"),
    [
        ("mean", 1),
        ("median", 1),
        ("geometric_median", 1),
        ({"name": "trimmed_mean", "f": 2}, 5),
        ({"name": "krum", "f": 2}, 7),
        ({"name": "multi_krum", "f": 2}, 7),
        ({"name": "multi_krum", "f": 2, "m": 6}, 10),
        ({"name": "bulyan", "f": 2}, 11),
    ],
)
def test_the_fewest_vectors(form: Any, least: int) -> None:
    assert AGGREGATIONS.parse(form).least == least
