"""Mistakes in statistics: n or n − 1, degrees of freedom, p-values that fall, errors that means share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from orchestrator.report.findings.decide import FALSE_SHOWN, Ask, decide, time_interval
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS, MAX_ERROR
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.chances import Tolerance, against_rivals, draw_means, for_speed
from orchestrator.report.statistics.common_seeds import PAIRING_LEVEL, SeedFit
from orchestrator.report.statistics.contrasts import Contrast, critical_t, decided_with
from orchestrator.report.statistics.drift import time_drift
from orchestrator.report.statistics.families import Decision, benjamini_hochberg, dunnett, holm, is_extreme
from orchestrator.report.statistics.moderated import PRIOR_DOF, Estimate, equal_variances, moderated
from orchestrator.report.statistics.spread import accuracy_interval
from orchestrator.report.topics import asked_by
from tests.unit.report_support import a_comparison, around, in_cluster_time, on_360_images, repeated

LEVEL = 0.05
FEW = settings(max_examples=40, deadline=None)
P_VALUES = st.lists(st.floats(1e-6, 1) | st.floats(LEVEL / 10, 2 * LEVEL), min_size=1, max_size=6)


def estimate(mean: float, between: float = 0.0, variance: float = 1.0, seeds: int = 5) -> Estimate:
    return Estimate(mean, variance, seeds, prior_dof=PRIOR_DOF, between=between)


def of_p(p: float) -> Contrast:
    """A difference that has this p-value."""
    one = Contrast(estimate(1.0), estimate(0.0))
    return Contrast(estimate(critical_t(p, one.dof) * one.standard_error), estimate(0.0))


# Intervals


@pytest.mark.parametrize("clock", ["wall", "cluster"])
def test_the_interval_of_a_time_has_the_errors_that_seeds_do_not_show(clock: str) -> None:
    """Those of sessions and of cluster time, of which a difference of two times has both."""
    runs = [*repeated("serial", [8.0] * 3, cores=2), *repeated("ddp", [4.0] * 3, nodes=4, cores=2)]
    clusters = [in_cluster_time(run, run.train_s or 0.0) for run in runs] if clock == "cluster" else []
    comparison = a_comparison(*runs, clusters=clusters)
    of_clock = MAX_ERROR if clock == "cluster" else 0.0
    half = stats.norm.ppf(0.975) * np.hypot(BETWEEN_SESSIONS, of_clock / sqrt(2))
    for group in comparison.groups:
        found = time_interval(Q.train_s, group, asked_by(comparison).decided())
        mean = Q.train_s.mean_of(group)
        assert found == pytest.approx((mean * np.exp(-half), mean * np.exp(half)), rel=1e-4)
    (short, *_) = a_comparison(*repeated("serial", [8.0] * 2)).groups
    assert time_interval(Q.train_s, short, asked_by(comparison).decided()) is None


@FEW
@given(st.lists(st.floats(0, 1), min_size=3, max_size=6), st.none() | st.integers(1, 500))
def test_the_interval_of_an_accuracy_adds_the_squares_of_two_errors(
    values: list[float], images: int | None
) -> None:
    mean, below, above = float(np.mean(values)), 0.0, 0.0
    of_seeds = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    if images:
        wilson = stats.binomtest(round(mean * images), images).proportion_ci(method="wilson")
        below, above = mean - wilson.low, wilson.high - mean
    expected = max(0.0, mean - np.hypot(of_seeds, below)), min(1.0, mean + np.hypot(of_seeds, above))
    assert accuracy_interval(values, images) == pytest.approx(expected, abs=1e-9)
    assert accuracy_interval(values[:2], images) is None


# Variances


def prior_of(own: np.ndarray, dofs: np.ndarray) -> tuple[float, float]:
    """Smyth's prior of variances, by a search over a grid."""
    own, dofs = own[own > 0], dofs[own > 0]
    logs = np.log(own) - special.psi(dofs / 2) + np.log(dofs / 2)
    grid = np.linspace(0.5, PRIOR_DOF, 20_000)
    left = np.var(logs, ddof=1) - special.polygamma(1, dofs / 2).mean()
    return float(np.exp(logs.mean())), float(grid[np.abs(special.polygamma(1, grid / 2) - left).argmin()])


@pytest.mark.parametrize("resolution", [0.0, 1.5])
@pytest.mark.parametrize("largest", [1, 2])
@pytest.mark.parametrize("count", [3, 7, 12])
def test_variances_are_shrunk_to_that_of_all_configurations(
    count: int, largest: float, resolution: float
) -> None:
    rng, seeds = np.random.default_rng(count), range(3, 3 + count)  # numbers of seeds differ
    deviations = np.geomspace(1, largest, count)
    samples = [
        dict(enumerate(scale * rng.standard_normal(n))) for scale, n in zip(deviations, seeds, strict=True)
    ]
    samples.append({0: 0.5, 1: 0.5, 2: 0.5})
    values = [[*sample.values()] for sample in samples]
    own = np.array([max(statistics.variance(each), resolution**2 / 12) for each in values])
    dofs = np.array([0.75 * (len(each) - 1) for each in values])
    prior, prior_dof = prior_of(own, dofs)
    found = moderated(samples, resolution, [0.75] * len(samples))
    assert [each.dof for each in found] == pytest.approx(prior_dof + dofs, abs=1e-3)
    expected = (prior_dof * prior + dofs * own) / (prior_dof + dofs)
    assert [each.variance for each in found] == pytest.approx(expected, rel=1e-3)
    assert [each.squared_error for each in found] == pytest.approx(
        [each.variance / len(sample) for each, sample in zip(found, samples, strict=True)]
    )


def test_variances_of_which_one_is_much_larger_stay_as_they_are() -> None:
    rng = np.random.default_rng(0)
    samples = [dict(enumerate(scale * rng.standard_normal(5))) for scale in (1, 1, 1, 30)]
    found = moderated(samples)
    assert [each.variance for each in found] == pytest.approx(
        [statistics.variance(sample.values()) for sample in samples]
    )
    assert [each.dof for each in found] == [4, 4, 4, 4]


@pytest.mark.parametrize(
    ("dofs", "largest"), [((4,) * 5, 25.2), ((10,) * 3, 4.85), ((4, 4), 9.60), ((60,) * 12, 2.36)]
)
def test_the_probability_of_a_largest_ratio_is_that_of_hartleys_table(
    dofs: tuple[int, ...], largest: float
) -> None:
    assert equal_variances([largest, *[1.0] * (len(dofs) - 1)], dofs) == pytest.approx(0.05, abs=0.003)


def test_the_probability_of_a_largest_ratio_holds_for_unequal_degrees_of_freedom() -> None:
    dofs = np.array([2, 4, 7])
    drawn = np.random.default_rng(0).chisquare(dofs, (50_000, 3)) / dofs
    largest = float(np.quantile(drawn.max(axis=1) / drawn.min(axis=1), 0.95))
    assert equal_variances([1.0, 1.0, largest], [*dofs]) == pytest.approx(0.05, abs=0.005)


# Differences


@FEW
@given(*[st.floats(-5, 5)] * 2, *[st.floats(0.1, 10)] * 2, *[st.integers(2, 20)] * 2)
def test_a_difference_without_a_prior_is_welchs(
    one: float, other: float, var: float, other_var: float, seeds: int, other_seeds: int
) -> None:
    contrast = Contrast(
        Estimate(one, var, seeds, prior_dof=0.0), Estimate(other, other_var, other_seeds, prior_dof=0.0)
    )
    welch = stats.ttest_ind_from_stats(
        one, sqrt(var), seeds, other, sqrt(other_var), other_seeds, equal_var=False
    )
    assert (contrast.t, contrast.p) == pytest.approx((welch.statistic, welch.pvalue), abs=1e-9)
    assert contrast.swapped.p == contrast.p


def test_a_difference_counts_what_others_say_and_what_seeds_do_not_show() -> None:
    plain = Contrast(estimate(1.5), estimate(0.0))
    assert plain.dof == pytest.approx(2 * (4 + PRIOR_DOF))
    noisy = Contrast(estimate(1.5, between=0.3), estimate(0.0, variance=2.0, between=0.1))
    assert noisy.standard_error == pytest.approx(sqrt(1 / 5 + 2 / 5 + 0.3 + 0.1))
    other = Contrast(estimate(9.0, variance=3.0, seeds=7), noisy.right)
    correlation = (2 / 5 + 0.1) / (noisy.standard_error * other.standard_error)
    assert noisy.shared * other.shared == pytest.approx(correlation)


# Corrections


@FEW
@given(P_VALUES)
def test_holm_is_the_closed_test_of_bonferroni(values: list[float]) -> None:
    expected = [
        max(
            min(1.0, len(chosen) * min(values[at] for at in chosen))
            for size in range(1, len(values) + 1)
            for chosen in combinations(range(len(values)), size)
            if own in chosen
        )
        for own in range(len(values))
    ]
    assert [each.p for each in holm([*map(of_p, values)], LEVEL)] == pytest.approx(expected)


@FEW
@given(P_VALUES, st.data())
def test_likely_claims_are_those_of_the_false_discovery_rate(values: list[float], data: Any) -> None:
    factors = data.draw(st.lists(st.integers(1, 4), min_size=len(values), max_size=len(values)))
    expected = stats.false_discovery_control(np.minimum(1, np.array(values) * factors))
    found = benjamini_hochberg([*map(of_p, values)], LEVEL, factors)
    assert [each.p for each in found] == pytest.approx(expected)
    excludes_0_exactly_if_decided(found)


def excludes_0_exactly_if_decided(found: Sequence[Decision]) -> None:
    for each in found:
        if abs(each.p - LEVEL) > 1e-6:  # where rounding decides nothing
            assert (each.low > 0 or each.high < 0) is each.decided is (each.p < LEVEL)


@pytest.mark.parametrize("correct", [holm, dunnett], ids=lambda correct: correct.__name__)
def test_an_interval_excludes_0_exactly_if_the_difference_is_decided(correct: Any) -> None:
    means = (0.1, 1.4, 1.7, 2.1, 3.0, -2.4)  # the second has a p-value below the level
    found = correct([Contrast(estimate(mean), estimate(0.0)) for mean in means], LEVEL)
    assert {each.decided for each in found} == {True, False}
    excludes_0_exactly_if_decided(found)


def test_comparisons_with_one_reference_have_the_probability_of_a_multivariate_t() -> None:
    """All with as many degrees of freedom: of Dunnett on both sides, and of the best on one."""
    reference = estimate(0.0, variance=1.5)
    contrasts = [
        Contrast(estimate(mean, variance=var), reference)
        for mean, var in ((1.4, 1.5), (1.9, 1.5), (1.6, 1.5))
    ]
    errors = np.array([each.standard_error for each in contrasts])
    shape = reference.squared_error / np.outer(errors, errors)
    np.fill_diagonal(shape, 1)
    joint = stats.multivariate_t(shape=shape, df=contrasts[0].dof, seed=0)
    for decision in dunnett(contrasts, LEVEL):
        bound = np.full(len(contrasts), abs(decision.contrast.t))
        assert decision.p == pytest.approx(1 - joint.cdf(bound, lower_limit=-bound), abs=1e-3)
    least = np.full(len(contrasts), contrasts[0].t)
    p = float(1 - joint.cdf(least))
    mirrored = [each.swapped for each in contrasts]
    for level, shown in ((1.05 * p, True), (0.95 * p, False)):
        assert is_extreme(contrasts, level, smallest=True) is shown
        assert not is_extreme(contrasts, level, smallest=False)
        negative = [Contrast(replace(each.left, mean=-each.left.mean), reference) for each in contrasts]
        assert is_extreme(negative, level, smallest=False) is shown
    assert not is_extreme([*contrasts[1:], mirrored[0]], LEVEL, smallest=True)


# Seeds


def test_the_chance_to_decide_is_that_of_seeds_which_are_added() -> None:
    rng, added, draws = np.random.default_rng(1), 15, 200_000
    left, right = estimate(2.0, between=0.02), estimate(0.0, variance=2.0, between=0.02)
    contrast = Contrast(left, right)
    later = 0.0
    for each in (left, right):
        true = each.mean + sqrt(each.squared_error) * rng.standard_normal(draws)
        new = true + sqrt(each.variance / added) * rng.standard_normal(draws)
        later = (each.seeds * each.mean + added * new) / (each.seeds + added) - later
    with_all = Contrast(*(replace(each, seeds=each.seeds + added) for each in (left, right)))
    decided = np.abs(later) > critical_t(LEVEL, with_all.dof) * with_all.standard_error
    assert decided_with(contrast, 5 + added, LEVEL) == pytest.approx(decided.mean(), abs=0.005)


@pytest.mark.parametrize("effect", [0.0, 1.0, 1.5, 2.0, 4.0])
def test_seeds_are_paired_if_regression_shows_their_effect(effect: float) -> None:
    rng = np.random.default_rng(5)
    for groups, seeds in ((2, 3), (3, 5), (4, 4)):
        table = rng.standard_normal((groups, seeds)) + effect * rng.standard_normal(seeds)
        of_group = np.repeat(np.eye(groups), seeds, axis=0)
        of_seed = np.tile(np.eye(seeds), (groups, 1))
        alone, both = (
            float(((table.ravel() - design @ np.linalg.pinv(design) @ table.ravel()) ** 2).sum())
            for design in (of_group, np.hstack([of_group, of_seed]))
        )
        dof = (groups - 1) * (seeds - 1)
        p = stats.f.sf((alone - both) / (seeds - 1) / (both / dof), seeds - 1, dof)
        samples = [dict(enumerate(row)) for row in table]
        assert SeedFit(dict(enumerate(samples))).pairing_helps is bool(p < PAIRING_LEVEL)


def test_a_drift_is_the_slope_of_a_regression_within_configurations() -> None:
    rng = np.random.default_rng(7)
    runs = [
        (float(at), "ab"[at % 2], 2.0 * (1 + at % 2) * 1.01**at * rng.uniform(0.9, 1.1)) for at in range(9)
    ]
    lone = [(2.0, "c", 50.0), (30.0, "c", 1.0)]  # too few seeds
    design = np.array([[name == "a", name == "b", at] for at, name, _ in runs], dtype=float)
    solution, squares, *_ = np.linalg.lstsq(design, np.log([seconds for *_, seconds in runs]))
    dof, span = len(runs) - 3, 8.0
    error = sqrt(squares[0] / dof * np.linalg.inv(design.T @ design)[2, 2])
    half = stats.t.ppf(0.975, dof) * error
    found = time_drift([*runs, *lone])
    assert found is not None
    expected = np.exp(span * (solution[2] + np.array([0.0, -half, half])))
    assert (found.factor, found.low, found.high) == pytest.approx(expected)
    assert found.shown is not (found.low <= 1 <= found.high)
    assert time_drift(lone) is time_drift([(0.0, "a", 1.0)] * 3) is None


# Choices


def test_the_right_choice_is_the_fastest_of_those_that_are_accurate() -> None:
    """Draws of three: the second is fastest but loses accuracy in one draw of two."""
    times = np.log([[2.0, 1.0, 2.05], [2.0, 1.0, 2.05]])
    accuracies = [np.array([[0.9, 0.9, 0.9], [0.9, 0.8, 0.895]])] * 3
    tolerance = Tolerance(accuracy=0.01, time=0.05)
    found = for_speed(times, accuracies, tolerance)
    assert [each.probability for each in found] == [0.5, 0.5, 0.5]
    # Twice as long as the fast one, if that is accurate.
    assert found[0].longer == pytest.approx(1.0, abs=0.1)
    assert found[1].loses == pytest.approx(0.1, abs=0.01)
    assert [each.accurate for each in found] == [1.0, 0.5, 1.0]


def test_draws_have_the_means_and_the_errors_of_their_estimates() -> None:
    """Of Student's t and what seeds do not show, each with its own numbers."""
    found = [estimate(5.0, between=0.5, variance=40.0, seeds=8), estimate(-2.0, between=3.0, seeds=20)]
    draws = draw_means(found, np.random.default_rng(3))
    assert draws.mean(axis=0) == pytest.approx([5.0, -2.0], abs=0.15)
    variances = [each.squared_error * each.dof / (each.dof - 2) + each.between for each in found]
    assert draws.var(axis=0) == pytest.approx(variances, rel=0.1)
    assert np.corrcoef(draws.T)[0, 1] == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("differ", [0.1, 0.2])
def test_rivals_are_shrunk_towards_their_mean_by_what_their_errors_explain(differ: float) -> None:
    """By quadrature. What is far from the largest stays as measured, and so do all for the largest."""
    rivals, error = differ * np.array([-0.8, 0.4, 1.0]), 0.1
    found = [estimate(each, seeds=100) for each in (-0.1, *rivals, -9.0)]
    rng = np.random.default_rng(4)
    draws = draw_means(found, rng)
    held = against_rivals(found, draws, 0, rng)
    assert (held[:, [0, 4]] == draws[:, [0, 4]]).all()
    assert (against_rivals(found, draws, 3, rng) == draws).all()

    deviations = np.linspace(0, 3 * max(error, 1.8 * differ), 2000)[:, None]
    variances = deviations**2 + error**2
    logs = stats.norm.logpdf(rivals, rivals.mean(), np.sqrt(variances)).sum(axis=1, keepdims=True)
    weights = np.exp(logs) * np.sqrt(variances)
    kept = float((weights * deviations**2 / variances).sum() / weights.sum())
    expected = kept * rivals + (1 - kept) * rivals.mean()
    assert held[:, 1:4].mean(axis=0) == pytest.approx(expected, abs=0.01)


def test_a_single_rival_is_as_it_was_measured() -> None:
    found, rng = [estimate(0.0), estimate(0.1)], np.random.default_rng(5)
    draws = draw_means(found, rng)
    assert all((against_rivals(found, draws, own, rng) == draws).all() for own in (0, 1))


# Comparisons


def test_bounds_of_a_difference_lead_to_accuracies_that_are_possible_from_the_reference() -> None:
    runs = [
        *repeated("gossip", [0.0, 0.0, 0.0, 0.0, 0.5], "accuracy", nodes=2),
        *repeated("ddp", around(0.5, 0.002), "accuracy", nodes=2),
    ]
    left, right = a_comparison(*map(on_360_images, runs)).groups
    (found,) = decide([Ask.of(Q.accuracy, [(left, right)])], {}, Tolerance()).all
    reference = Q.accuracy.interval(right)
    assert found.decision is not None
    assert reference is not None
    assert found.decision.low < -reference[1]
    assert found.interval == pytest.approx((-reference[1], min(found.decision.high, 1 - reference[0])))


def test_families_and_rankings_share_the_probability_of_a_false_claim() -> None:
    groups = a_comparison(
        *repeated("all_reduce", around(0.9, 0.01), "accuracy", nodes=2),
        *repeated("gossip", around(0.8, 0.01), "accuracy", nodes=2),
    ).groups
    best, pairs = Ask.best(Q.accuracy, groups), Ask.of(Q.accuracy, [(groups[0], groups[1])], of_sweep=True)
    claims = decide([best], {}, Tolerance())
    ranking = claims.answer(best)
    assert (ranking.best, ranking.worst) == (groups[0], groups[1])
    assert [each.level for each in ranking.compared] == ["likely"]
    with pytest.raises(KeyError):
        claims.answer(Ask.among(Q.train_s, groups)).between(*groups)
    (asked,) = decide([best, pairs], {}, Tolerance()).all
    assert asked.level == "shown"
    assert asked.decision is not None
    assert asked.decision.level == pytest.approx(FALSE_SHOWN / 2)
