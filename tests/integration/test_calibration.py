"""Sweeps of configurations that do not differ: at most 5 % of their reports may claim a difference.

Each simulation draws new values for the shape of a shipped sweep, and decides the comparisons that the
report of this sweep makes. Variances differ between configurations, seeds share drift, and accuracies are
those on 360 images. The tests print the share of false claims, and power beside that of a single t test.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.report.findings import count_claims
from orchestrator.report.findings.claims import FALSE_CLAIMS, Family, Sampling
from orchestrator.report.metrics.quantities import Quantity
from orchestrator.report.model.comparison import Comparison, compare
from orchestrator.report.model.groups import Group
from orchestrator.report.statistics.contrasts import Sample, welch
from orchestrator.report.statistics.families import dunnett
from orchestrator.report.statistics.power import power
from orchestrator.results.records import RunResult
from orchestrator.sweeps.load import load_sweep
from tests.unit.report_support import a_record, a_run
from trainer.spec.run_spec import RunSpec

SWEEPS = Path(__file__).parents[2] / "sweeps"
SIMULATED = 2000
IMAGES = 360
ERROR = 0.005  # standard error of a share of 5 % in so many simulations
DRIFT = 0.5  # standard deviation of what the runs of a seed block share, in that of a time
SHAPES = ["synchronisation.yml", "partitioning.yml", "labs/hogwild.yml"]

Draw = Callable[[np.random.Generator, int], np.ndarray]
SEEDS = (3, 5, 10)
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


def false_claim(families: list[Family], sample: Sampling) -> bool:
    level = FALSE_CLAIMS / len(families)
    return any(each.decided for family in families for each in family.decide(level, sample))


@pytest.mark.parametrize("name", SHAPES)
def test_reports_on_equals_rarely_claim_a_difference(name: str) -> None:
    rng = np.random.default_rng(1)
    families = {seeds: count_claims(a_sweep(name, seeds)).families for seeds in SEEDS}
    claimed = dict.fromkeys(product(SEEDS, DISTRIBUTIONS), 0)
    each = SIMULATED // len(claimed)
    for seeds, distribution in claimed:
        for _ in range(each):
            sample = sampling(rng, DISTRIBUTIONS[distribution])
            claimed[seeds, distribution] += false_claim(families[seeds], sample)
    comparisons = sum(len(family.pairs) for family in families[SEEDS[0]])
    print(f"{name}: false claims in reports on {comparisons} comparisons of equals")
    for (seeds, distribution), count in claimed.items():
        print(f"  {seeds} seeds, {distribution}: {count} of {each}")
    assert sum(claimed.values()) <= (FALSE_CLAIMS + 2 * ERROR) * each * len(claimed)


@pytest.mark.parametrize("seeds", [5, 10])
def test_power_is_that_of_the_textbook(seeds: int) -> None:
    """A difference of two standard deviations in one of 14 comparisons with serial, corrected for all."""
    rng, decided, uncorrected = np.random.default_rng(2), 0, 0
    level = FALSE_CLAIMS / 14
    for _ in range(SIMULATED):
        groups = [dict(enumerate(rng.normal(size=seeds).tolist())) for _ in range(15)]
        groups[1] = {seed: value + 2 for seed, value in groups[1].items()}
        contrasts = [contrast for group in groups[1:] if (contrast := welch(group, groups[0]))]
        decided += dunnett(contrasts, FALSE_CLAIMS)[0].decided
        uncorrected += contrasts[0].p < level
    share, textbook = decided / SIMULATED, power(2.0, (1.0, 1.0), seeds, level)
    print(f"{seeds} seeds: power {share:.2f}; one t test at 5 % / 14: {textbook:.2f}")
    # Welch's test estimates its degrees of freedom, and has a little less power than one that knows them.
    assert uncorrected / SIMULATED == pytest.approx(textbook, abs=0.1)
    assert share >= textbook - 0.1
