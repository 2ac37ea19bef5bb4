"""Mistakes of probabilities: at most 5 % of reports on equals show a difference, or call one likely.

Each simulation draws new values for the shape of a shipped sweep, and decides the comparisons that the
report of this sweep makes. Variances differ between configurations, seeds share drift, and accuracies are
those on 360 images. The tests print the share of false claims, and power beside that of a single t test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import nctdtr

from orchestrator.report.findings.claims import Claims
from orchestrator.report.findings.decide import FALSE_SHOWN
from orchestrator.report.metrics.estimates import Sampling
from orchestrator.report.model.comparison import Comparison, compare
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.statistics.contrasts import Contrast, critical_t
from orchestrator.report.statistics.families import dunnett
from orchestrator.report.statistics.moderated import Sample, moderated
from orchestrator.report.statistics.power import MOST_SEEDS, seeds_to_decide
from orchestrator.report.topics import asked_by
from orchestrator.results.records import RunResult
from orchestrator.sweeps.load import load_sweep
from tests.bench.claims import NEW, REPORTS, choices
from tests.unit.report_support import a_record, a_run
from trainer.spec.run_spec import RunSpec

pytestmark = pytest.mark.nightly

SWEEPS = Path(__file__).parents[2] / "sweeps"
SIMULATED = 500
IMAGES = 360
ERROR = 0.01  # standard error of a share of 5 % in so many simulations
DRIFT = 0.5  # standard deviation of what the runs of a seed block share, in that of a time
SHAPES = ["synchronisation.yml", "partitioning.yml", "labs/hogwild.yml"]

Draw = Callable[[np.random.Generator, int], np.ndarray]
SEEDS = (5, 12)
DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda rng, seeds: rng.normal(size=seeds),
    "skewed": lambda rng, seeds: (rng.gamma(2.0, size=seeds) - 2) / np.sqrt(2),
    "heavy-tailed": lambda rng, seeds: rng.standard_t(4, size=seeds) / np.sqrt(2),
}


def a_sweep(name: str, seeds: int) -> Comparison:
    """A finished sweep in the shape of a shipped one, with some values in every run."""
    sweep, rng = load_sweep(SWEEPS / name, repeat=seeds), np.random.default_rng(0)
    results = [a_result(run, 1 + 0.01 * rng.normal()) for run in sweep.runs]
    record = a_record(results, lab=sweep.spec.lab, blocks=sweep.blocks)
    return compare(record, [(result.key, result) for result in results])


def a_result(run: RunSpec, value: float) -> RunResult:
    fields: dict[str, Any] = {**run.canonical(), "epochs": run.epochs}
    own = [0.9] * run.world_size if run.name_of("strategy") == "one_shot" else ()
    result = a_run(own=own, train_s=value, accuracy=0.9 * value, communicate_s=0.5 * value, **fields)
    ranks = [rank.model_copy(update={"test_samples": IMAGES}) for rank in result.ranks]
    return result.model_copy(update={"ranks": ranks, "key": run.key})


def sampling(rng: np.random.Generator, draw: Draw) -> Sampling:
    """Values of one simulated sweep, in which all configurations have one mean."""
    drift: dict[int, float] = {}
    scales: dict[int, float] = {}
    samples: dict[tuple[str, int], Sample] = {}

    def sample(quantity: Quantity, group: Group) -> Sample:
        key = (quantity.name, id(group))
        if key not in samples:
            seeds = [row.seed for row in group.ok_rows]
            scale = scales.setdefault(id(group), float(np.exp(rng.normal(0, 0.5))))
            values = scale * draw(rng, len(seeds))
            if quantity.ratio:
                values = 0.03 * (values + [DRIFT * drift.setdefault(seed, rng.normal()) for seed in seeds])
            else:
                values = np.round(0.01 * values * IMAGES) / IMAGES
            samples[key] = dict(zip(seeds, values.tolist(), strict=True))
        return samples[key]

    return sample


def false_claims(asked: Claims, sample: Sampling) -> Counter[str]:
    """Whether a report on equals has a claim that is called shown, and one that is called likely."""
    claims = asked.decided(sample)
    claimed = Counter({each.level: 1 for each in claims.all if each.decided})
    assert claims.answers is not None
    if claims.answers.lowest or claims.answers.highest:
        claimed["shown"] = 1
    return claimed


@pytest.mark.parametrize("name", SHAPES)
def test_reports_on_equals_rarely_claim_a_difference(name: str) -> None:
    rng = np.random.default_rng(1)
    asked = {seeds: asked_by(a_sweep(name, seeds)) for seeds in SEEDS}
    claimed = {each: Counter[str]() for each in product(SEEDS, DISTRIBUTIONS)}
    each = SIMULATED // len(claimed)
    for seeds, distribution in claimed:
        for _ in range(each):
            sample = sampling(rng, DISTRIBUTIONS[distribution])
            claimed[seeds, distribution] += false_claims(asked[seeds], sample)
    print(f"{name}: {len(asked[SEEDS[0]].asked.questions)} comparisons of equals")
    for (seeds, distribution), found in claimed.items():
        print(f"  {seeds} seeds, {distribution}: {dict(found)} of {each}")
    for level in ("shown", "likely"):
        wrong = sum(counts[level] for counts in claimed.values())
        assert wrong <= (FALSE_SHOWN + 2 * ERROR) * each * len(claimed)


@pytest.mark.parametrize("seeds", [5, 8])
def test_seeds_that_are_proposed_decide(seeds: int) -> None:
    """Of the proposals for pairs that are undecided, at least three of four come true."""
    rng, level, came_true = np.random.default_rng(2), FALSE_SHOWN / 14, list[bool]()
    for _ in range(SIMULATED):
        values = rng.normal(size=(2, MOST_SEEDS)) + rng.normal(0, 1, size=(2, 1))

        def measured(count: int, values: np.ndarray = values) -> Contrast:
            return Contrast(*moderated([dict(enumerate(side[:count].tolist())) for side in values]))

        contrast = measured(seeds)
        needed = None if contrast.p < level else seeds_to_decide(contrast, level)
        if needed:
            came_true.append(measured(needed).p < level)
    share = sum(came_true) / len(came_true)
    print(f"{seeds} seeds: {len(came_true)} of {SIMULATED} got a proposal, {share:.2f} came true")
    assert len(came_true) > SIMULATED / 10
    assert share >= 0.75 - 2 * (0.75 * 0.25 / len(came_true)) ** 0.5


@pytest.mark.parametrize("seeds", [5, 10])
def test_power_is_that_of_the_textbook(seeds: int) -> None:
    """A difference of two standard deviations in one of 14 comparisons with serial, corrected for all."""
    rng, decided = np.random.default_rng(2), 0
    for _ in range(SIMULATED):
        groups = [dict(enumerate(rng.normal(size=seeds).tolist())) for _ in range(15)]
        groups[1] = {seed: value + 2 for seed, value in groups[1].items()}
        serial, *others = moderated(groups)
        decided += dunnett([Contrast(each, serial) for each in others], FALSE_SHOWN)[0].decided
    shift, dof = 2 / (2 / seeds) ** 0.5, 2 * (seeds - 1)
    textbook = 1 - float(nctdtr(dof, shift, critical_t(FALSE_SHOWN / 14, dof)))
    print(f"{seeds} seeds: power {decided / SIMULATED:.2f}; one t test at 5 % / 14: {textbook:.2f}")
    assert decided / SIMULATED >= textbook


@pytest.mark.parametrize("seeds", [5, 8])
def test_choices_are_as_often_right_as_they_say(seeds: int) -> None:
    for (kind, right), wrong in zip(choices(NEW, seeds).items(), (0.05, 0.2), strict=True):
        print(f"{seeds} seeds: {kind} {len(right)} of {REPORTS}, {right.count(False)} wrong")
        error = (wrong * (1 - wrong) / max(1, len(right))) ** 0.5
        assert right.count(False) <= (wrong + 2 * error) * len(right)
