"""Mistakes in means over different seeds: of seeds that some lack, and two values for one number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isclose
from statistics import fmean, geometric_mean, median
from typing import Any

import numpy as np
import pytest

from orchestrator.report import formats
from orchestrator.report.findings.speedups import speedup_intervals
from orchestrator.report.metrics.curves import curve
from orchestrator.report.metrics.estimates import estimates
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.plots import draw
from orchestrator.report.quantities import QUANTITIES, Q
from orchestrator.report.render.columns import columns_of
from orchestrator.report.render.csv_tables import summary_lines
from orchestrator.report.statistics.common_seeds import SeedFit
from orchestrator.report.statistics.contrasts import Contrast
from orchestrator.report.topics import asked_by, concluded, find
from orchestrator.report.verdict import verdicts
from orchestrator.results.records import RunResult
from orchestrator.sweeps.stages import DECIDED, Stages
from tests.unit.report_support import a_comparison, a_run, on_360_images, repeated, text_of, with_epochs

EASY, HARD = 0.02, -0.06  # what a seed adds
EFFECTS = [EASY] * 3 + [0.0] * 5 + [HARD]  # their mean is 0


def a_sweep(noise: float = 0.0, ddp: float = 0.89) -> list[RunResult]:
    """ddp has the three easy seeds, `all_reduce` all but the hard one, serial all.

    noise: of accuracies. ddp: its accuracy.
    """
    rng = np.random.default_rng(2)
    runs = []
    for strategy, nodes, seeds, accuracy, train_s in (
        ("serial", 1, 9, 0.80, 8.0),
        ("all_reduce", 2, 8, 0.90, 4.0),
        ("ddp", 2, 3, ddp, 5.0),
        ("one_shot", 2, 8, 0.85, 3.5),
    ):
        for seed in range(seeds):
            reached, took = accuracy + EFFECTS[seed] + noise * rng.normal(), train_s * (1 + seed / 50)
            run = a_run(strategy, nodes=nodes, seed=seed, accuracy=reached, train_s=took, cores=8)
            runs.append(with_epochs(run, lambda at, reached=reached: {"accuracy": reached * at.epoch / 2}))
    return runs


def by_strategy(comparison: Comparison) -> dict[str, Group]:
    return {group.strategy: group for group in comparison.groups}


def test_the_means_are_those_of_the_same_seeds() -> None:
    """By hand: own means are 91.0 and 90.75 %, and on the same seeds ddp loses 1 point."""
    groups = by_strategy(a_comparison(*a_sweep()))
    assert fmean(Q.accuracy.values(groups["ddp"]).values()) == pytest.approx(0.91)
    assert fmean(Q.accuracy.values(groups["all_reduce"]).values()) == pytest.approx(0.9075)
    expected = {"serial": 0.80, "all_reduce": 0.90, "ddp": 0.89, "one_shot": 0.85}
    assert {name: Q.accuracy.mean_of(group) for name, group in groups.items()} == pytest.approx(expected)
    spread = Q.accuracy.over(groups["ddp"])
    assert spread is not None
    assert (spread.mean, spread.low, spread.high, spread.seeds) == pytest.approx((0.89, 0.89, 0.89, 3))
    assert groups["ddp"].accuracy == spread
    assert Q.accuracy_difference.mean_of(groups["ddp"]) == pytest.approx(0.09)
    assert [point.accuracy.mean for point in curve(groups["ddp"])] == pytest.approx([0.445, 0.89])


def test_no_mean_is_one_that_no_run_can_have() -> None:
    runs = [
        *repeated("serial", [0.5, 0.5, 0.5, 0.9, 0.9], "accuracy"),
        *repeated("ddp", [0.9] * 3, "accuracy", nodes=2),
    ]
    _, ddp = a_comparison(*runs).groups
    assert Q.accuracy.mean_of(ddp) == 1


def test_what_did_not_learn_says_nothing_about_seeds() -> None:
    runs = [
        *repeated("serial", [0.9, 0.9, 0.9, 0.5], "accuracy"),
        *repeated("gossip", [0.1, 0.1, 0.1, 0.1], "accuracy", nodes=2),
        *repeated("ddp", [0.9, 0.9, 0.9], "accuracy", nodes=2),
    ]
    _, gossip, ddp = a_comparison(*map(on_360_images, runs)).groups
    assert not gossip.learned
    assert Q.accuracy.mean_of(gossip) == pytest.approx(0.1)
    assert Q.accuracy.mean_of(ddp) == pytest.approx(0.8)


def test_a_few_runs_have_their_own_mean_and_say_nothing_about_seeds() -> None:
    runs = [
        *repeated("serial", [0.5, 0.5, 0.5], "accuracy"),
        *repeated("gossip", [0.5, 0.9], "accuracy", nodes=2),
        *repeated("ddp", [0.6], "accuracy", nodes=2),
    ]
    assert [Q.accuracy.mean_of(group) for group in a_comparison(*runs).groups] == [0.5, 0.7, 0.6]


def test_means_are_plain_with_equal_seeds_and_with_none_in_common() -> None:
    """To the last bit: what they print does not depend on the fit."""
    rng = np.random.default_rng(3)
    runs = [
        a_run(name, nodes=nodes, seed=seed, accuracy=rng.uniform(0.5, 0.9), train_s=rng.uniform(3, 8))
        for name, nodes in (("serial", 1), ("ddp", 2), ("gossip", 2))
        for seed in range(6)
    ]
    apart = [a_run("one_shot", nodes=2, seed=seed, accuracy=0.3 + seed / 100) for seed in (20, 21, 22)]
    for group in a_comparison(*runs, *apart).groups:
        for quantity in (Q.accuracy, Q.test_loss, Q.train_s, Q.speedup, Q.accuracy_difference):
            if group.strategy != "one_shot" or quantity.of_means is None:
                assert quantity.sample(group) == quantity.values(group)
                assert quantity.over(group) == group.over(quantity.of, quantity.ratio)


COUNTS = ((5, 5, 3, 2), (9, 8, 3), (6, 6, 6, 4, 1))


@pytest.mark.parametrize("counts", COUNTS)
def test_the_fit_is_weighted_least_squares(counts: Sequence[int]) -> None:
    """By dummy variables: means, residuals, degrees of freedom, and errors as H diag(σ²) H'."""
    rng, most = np.random.default_rng(len(counts)), max(counts)
    table = rng.standard_normal((len(counts), most)) * np.geomspace(1, 5, len(counts))[:, None]
    table += rng.standard_normal(most)
    samples = {at: {seed: table[at, seed] for seed in range(count)} for at, count in enumerate(counts)}
    of, seeds, values = np.array(
        [(at, seed, value) for at, sample in samples.items() for seed, value in sample.items()]
    ).T
    own = np.equal.outer(of, range(len(counts))).astype(float)
    design = np.hstack([own, np.equal.outer(seeds, range(most))])

    def solved(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What gives coefficients, what gives residuals, and variances of configurations."""
        root = np.sqrt(weights)[:, None]
        coefficients = np.linalg.pinv(root * design) * root.T
        residual = np.eye(len(values)) - design @ coefficients
        dofs = np.array([np.trace(residual * np.outer(each, each)) for each in own.T])
        found = own.T @ (residual @ values) ** 2 / np.maximum(dofs, 1e-9)
        for at, count in enumerate(counts):
            if count == 1 or dofs[at] < (count - 1) / 3 - 1e-9:
                found[at] = np.var([*samples[at].values()], ddof=int(count > 1))
        return coefficients, residual, found

    _, _, variances = solved(np.ones(len(values)))
    known = variances > 0
    weights = np.where(known, np.minimum(1, median(variances[known]) / np.where(known, variances, 1)), 1)
    coefficients, residual, variances = solved(own @ weights)
    wanted = np.hstack([np.eye(len(counts)), np.full((len(counts), most), 1 / most)]) @ coefficients

    fit = SeedFit(samples)
    means = [fmean(sample.values()) + fit.shift(at) for at, sample in samples.items()]
    assert means == pytest.approx(wanted @ values)
    for at, count in enumerate(counts):
        left, own_dof = fit.residuals(at)
        if count > 1:
            assert np.var([*left.values()], ddof=1) == pytest.approx(variances[at])
            dof = np.trace(residual * np.outer(own[:, at], own[:, at]))
            assert own_dof == pytest.approx(dof / (count - 1) if dof >= (count - 1) / 3 - 1e-9 else 1)
    for at, other in ((0, -1), (1, 2), (-2, -1)):
        one, two = range(len(counts))[at], range(len(counts))[other]
        shifted = fit.shift_errors(one) - fit.shift_errors(two)
        found = variances[one] / counts[one] + variances[two] / counts[two] + shifted @ shifted
        assert found == pytest.approx((wanted[one] - wanted[two]) ** 2 @ (own @ variances))


def test_a_comparison_has_the_error_of_the_seeds_that_a_side_lacks() -> None:
    groups = by_strategy(a_comparison(*a_sweep(0.005)))
    several = [groups[name] for name in ("all_reduce", "ddp", "serial")]
    fit = Q.accuracy.fit(groups["ddp"])
    assert fit is not None
    left, right, serial = estimates(Q.accuracy, several, {})
    errors = [fit[0].shift_errors(group.first.key) for group in several]
    assert not errors[2].any()
    for one, two, shifted in ((left, right, errors[0] - errors[1]), (right, serial, errors[1])):
        own = one.variance / one.seeds + two.variance / two.seeds
        contrast = Contrast(one, two)
        assert contrast.standard_error**2 == pytest.approx(own + shifted @ shifted)
        assert contrast.estimate == pytest.approx(contrast.left.mean - contrast.right.mean)
    assert right.squared_error == pytest.approx(right.variance / 3 + errors[1] @ errors[1])


# One value on a page


DROPPED = "0.2% probable to be the choice"


def a_staged_comparison(ddp: float = 0.89) -> Comparison:
    runs = [*map(on_360_images, a_sweep(0.002, ddp))]
    dropped = next(run.key for run in runs if run.run.name_of("strategy") == "ddp")
    return a_comparison(*runs, stages=Stages(ended=DECIDED, dropped={dropped: DROPPED}))


def numbers_in(data: Any) -> Iterator[float]:
    """All numbers of nested data, such as a specification of a figure."""
    if isinstance(data, dict | list | tuple):
        for each in data.values() if isinstance(data, dict) else data:
            yield from numbers_in(each)
    elif isinstance(data, float):
        yield data


def printed(comparison: Comparison) -> Iterator[tuple[str, str, float]]:
    """Quantity, key of the first run, and value, wherever a report has it with all its digits."""
    for finding in find(comparison):
        for each in finding.data.get("compared", ()):
            for side, value in zip(("left", "right"), each["values"], strict=True):
                if each[side]:
                    yield each["quantity"], each[side][0], value
    claims = asked_by(comparison).decided()
    for group, line in zip(comparison.groups, summary_lines(comparison, claims)[1], strict=True):
        for name, quantity in (("accuracy", "accuracy"), ("time_s", "train_s"), ("speedup", "speedup")):
            if isinstance(value := line[name], float):
                yield quantity, group.first.key, value
    for column in columns_of("results", speedup_intervals(comparison, claims)):
        for group in comparison.groups:
            if column.key in QUANTITIES and (value := column.cell(group).value) is not None:
                yield column.key, group.first.key, value


def test_a_quantity_of_a_configuration_has_one_value_on_a_page() -> None:
    comparison = a_staged_comparison()
    found: dict[tuple[str, str], list[float]] = {}
    for quantity, key, value in printed(comparison):
        found.setdefault((quantity, key), []).append(value)
    several = {place: values for place, values in found.items() if len(values) > 1}
    assert {name for name, _ in several} >= {"accuracy", "train_s", "speedup"}
    assert {place: max(values) - min(values) for place, values in several.items()} == pytest.approx(
        dict.fromkeys(several, 0.0), abs=1e-12
    )

    groups = by_strategy(comparison)
    serial, key = groups["serial"], {name: group.first.key for name, group in groups.items()}
    for name, group in groups.items():
        if name != "serial":
            speedup = Q.train_s.mean_of(serial) / Q.train_s.mean_of(group)
            assert found["speedup", key[name]] == pytest.approx(
                [speedup] * len(found["speedup", key[name]])
            )
            gain = Q.accuracy.mean_of(group) - Q.accuracy.mean_of(serial)
            assert found["accuracy_difference", key[name]] == pytest.approx([gain])
            assert found["efficiency", key[name]] == pytest.approx([speedup / 2])


def test_the_means_over_other_seeds_are_in_no_figure_and_in_one_finding() -> None:
    """It says by how much they differ. Runs and their epochs have values of their own."""
    comparison = a_staged_comparison()
    ddp, serial = (by_strategy(comparison)[name] for name in ("ddp", "serial"))
    own = fmean(Q.accuracy.values(ddp).values())
    of_runs = geometric_mean([row.speedup or 0.0 for row in ddp.ok_rows])
    claims, findings = concluded(comparison)
    (stated,) = [finding for finding in findings if finding.kind == "common_seeds"]
    assert own in stated.data["own_accuracy"]
    assert Q.accuracy.mean_of(ddp) in stated.data["accuracy"]
    others = [finding.data for finding in findings if finding is not stated]
    numbers = [*numbers_in(others), *numbers_in([plot.spec for plot in draw(comparison, claims)])]
    assert not [each for each in numbers if isclose(each, own) or isclose(each, of_runs)]
    assert any(isclose(each, Q.accuracy.mean_of(ddp)) for each in numbers)
    page = text_of(comparison, findings)
    assert page.count(formats.percent(own)) == 1
    assert page.count(formats.percent(Q.accuracy.mean_of(ddp))) > 2
    assert Q.accuracy.mean_of(serial) == fmean(Q.accuracy.values(serial).values())


def test_the_first_table_says_what_was_dropped_and_which_seeds_and_accuracy_count() -> None:
    comparison = a_staged_comparison(ddp=0.9)
    assert [group.strategy for group in comparison.groups if group.dropped == DROPPED] == ["ddp"]
    (verdict,) = verdicts(comparison, asked_by(comparison).decided())
    found = {option.name.split()[0]: option for option in verdict.options}
    assert found["ddp"].note == "counts as all_reduce over mpi: same gradient"
    states = {name: (each.seeds, each.state) for name, each in found.items()}
    assert (states["ddp"], states["all_reduce"]) == ((3, "dropped"), (8, ""))
    assert states["serial"] == (9, "reference")


def test_what_is_decided_or_has_as_many_seeds_as_others_was_not_dropped() -> None:
    runs = [*repeated("serial", [8.0] * 3), *repeated("ddp", [5.0] * 3, nodes=2)]
    dropped = Stages(dropped={runs[-3].key: DROPPED})
    assert not any(group.dropped for group in a_comparison(*runs, stages=dropped).groups)
