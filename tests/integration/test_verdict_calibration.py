"""Verdicts on simulated sweeps, whose true times and accuracies are known: how often a choice is right."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from orchestrator.report.findings.claims import Claims
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.statistics.chances import Tolerance
from orchestrator.report.verdict import Verdict, verdicts
from orchestrator.results.records import RunResult
from tests.unit.report_support import a_comparison, a_run

pytestmark = pytest.mark.nightly

SIMULATED = 200
IMAGES = 360
TOLERANCE = Tolerance()
STRATEGIES = ("all_reduce", "ddp", "gossip", "local_sgd")
Truth = Mapping[str, tuple[float, float]]  # time and accuracy


def simulated(rng: np.random.Generator, effect: float, seeds: int) -> tuple[Comparison, Truth]:
    """Serial and four strategies, whose true times and accuracies differ by about `effect`."""
    results: list[RunResult] = []
    truth: dict[str, tuple[float, float]] = {}
    for strategy in ("serial", *STRATEGIES):
        time = 4 * np.exp(effect * rng.normal())
        accuracy = min(0.99, 0.9 + effect / 10 * rng.normal())
        truth[strategy] = time, accuracy
        spread, session = np.exp(rng.normal(0, 0.5)), np.exp(BETWEEN_SESSIONS * rng.normal())
        for seed in range(seeds):
            run = a_run(
                strategy,
                nodes=1 if strategy == "serial" else 2,
                seed=seed,
                train_s=float(time * session * np.exp(0.03 * spread * rng.normal())),
                accuracy=round(IMAGES * min(1.0, accuracy + 0.01 * rng.normal())) / IMAGES,
            )
            ranks = [rank.model_copy(update={"test_samples": IMAGES}) for rank in run.ranks]
            results.append(run.model_copy(update={"ranks": ranks}))
    return a_comparison(*results), truth


def is_right(name: str, truth: Truth) -> bool:
    """Whether a choice is within the tolerance of the best."""
    best = max(accuracy for _, accuracy in truth.values())
    accurate = {each for each, (_, accuracy) in truth.items() if best - accuracy <= TOLERANCE.accuracy}
    fastest = min(truth[each][0] for each in accurate)
    return name in accurate and truth[name][0] <= fastest * (1 + TOLERANCE.time)


def chosen(verdict: Verdict) -> str:
    return verdict.options[0].name.split()[0]


@pytest.mark.parametrize(
    ("seeds", "begins", "wrong"), [(5, "Probably", 0.2), (8, ("Choose", "Stay"), 0.05)]
)
def test_choices_are_as_often_right_as_they_say(
    seeds: int, begins: str | tuple[str, ...], wrong: float
) -> None:
    rng, right = np.random.default_rng(3), list[bool]()
    for at in range(SIMULATED):
        comparison, truth = simulated(rng, 0.05 * (at % 5), seeds)
        (verdict,) = verdicts(comparison, Claims())
        if verdict.headline.startswith(begins):
            right.append(is_right(chosen(verdict), truth))
    print(f"{seeds} seeds: {len(right)} of {SIMULATED} chosen, {right.count(False)} wrong")
    assert len(right) > SIMULATED / 10
    error = (wrong * (1 - wrong) / len(right)) ** 0.5
    assert right.count(False) <= (wrong + 2 * error) * len(right)
