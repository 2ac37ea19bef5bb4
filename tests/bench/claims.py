"""Claims: what reports on simulated sweeps claim and choose, whose true times and accuracies are known.

Each simulation draws the runs of serial and four strategies on two nodes, and passes them through the whole
pipeline of a report. Times differ between sessions, spreads over seeds differ between configurations, and
accuracies are those on 360 images. The noise is that of the quickstart with 5 epochs, as it was, and with
10 epochs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from orchestrator.report.findings.decide import Claims, Compared
from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities import Q
from orchestrator.report.statistics.chances import Tolerance
from orchestrator.report.topics import asked_by
from orchestrator.report.verdict import verdicts
from orchestrator.results.records import RunResult
from tests.unit.report_support import a_comparison, a_run

REPORTS = 300  # of each line
IMAGES = 360
TOLERANCE = Tolerance()
STRATEGIES = ("serial", "all_reduce", "local_sgd", "gossip", "one_shot")
SEEDS = (5, 8, 12, 20)


@dataclass(frozen=True)
class Noise:
    """Standard deviations over seeds: of accuracies, and of logarithms of times."""

    name: str
    accuracy: float
    time: float


OLD, NEW = Noise("5 epochs", 0.03, 0.05), Noise("10 epochs", 0.008, 0.04)
Effects = Mapping[str, tuple[float, float]]  # by strategy: the factor of its time, what its accuracy gains


def main() -> None:
    print(f"{REPORTS} reports a line; shares of reports, or of claims or pairs where stated")
    print("reports on equals with a false claim: shown, likely")
    for noise in (OLD, NEW):
        for seeds in SEEDS:
            of_equals(noise, seeds)
    print("reports on differences:  found against serial")
    of_differences(OLD, 8, {"all_reduce": (0.8, 0.0), "one_shot": (1.0, -0.05)})
    of_differences(NEW, 6, {"all_reduce": (0.9, 0.0), "one_shot": (1.0, -0.02)})
    print("reports on random times and accuracies: choices, and those that are wrong")
    for seeds in SEEDS:
        of_choices(NEW, seeds)


def of_equals(noise: Noise, seeds: int) -> None:
    found = false_claims(noise, seeds)
    shares = [f"{found[level] / REPORTS:8.1%}" for level in ("shown", "likely")]
    print(f"  {noise.name:10} {seeds:2} seeds {''.join(shares)}", flush=True)


def false_claims(noise: Noise, seeds: int) -> Counter[str]:
    """How many reports on equals have a claim that is called shown, and one that is called likely."""
    found = Counter[str]()
    for comparison in reports(np.random.default_rng(seeds), noise, seeds, {}):
        claims = asked_by(comparison).decided()
        levels = {each.level for each in claims.all if each.decided}
        ranked = any(map(any, claims.extremes.values()))
        found["shown"] += "shown" in levels or ranked
        found["likely"] += "likely" in levels
    return found


def of_differences(noise: Noise, seeds: int, effects: Effects) -> None:
    found = Counter[str]()
    for comparison in reports(np.random.default_rng(seeds), noise, seeds, effects):
        claims = asked_by(comparison).decided()
        for strategy, (_, gain) in effects.items():
            quantity = Q.accuracy.name if gain else "train_s"
            found[strategy] += any(is_found(each, strategy, quantity) for each in claims.all)
    for strategy, (factor, gain) in effects.items():
        what = f"{gain * 100:+.0f} points" if gain else f"{1 - factor:.0%} of time"
        print(f"  {noise.name:10} {seeds:2} seeds, {what}: {found[strategy] / REPORTS:.1%}", flush=True)


def is_found(each: Compared, strategy: str, quantity: str) -> bool:
    """Whether this is the comparison with serial, and the difference is claimed."""
    sides = {each.left.strategy, each.right.strategy}
    return each.quantity.name == quantity and sides == {strategy, "serial"} and each.verdict == "less"


def of_choices(noise: Noise, seeds: int) -> None:
    parts = [
        f"{kind.lower()} {len(right) / REPORTS:.0%}, wrong {right.count(False) / max(1, len(right)):.1%}"
        for kind, right in choices(noise, seeds).items()
    ]
    print(f"  {noise.name:10} {seeds:2} seeds: {'; '.join(parts)}", flush=True)


def choices(noise: Noise, seeds: int) -> dict[str, list[bool]]:
    """By how a verdict begins, whether its choices are right, in reports on random times and accuracies."""
    rng, chosen = np.random.default_rng(seeds), {"Choose": list[bool](), "Probably": list[bool]()}
    for _ in range(REPORTS):
        effects = {name: (np.exp(rng.normal(0, 0.15)), rng.normal(0, 0.015)) for name in STRATEGIES}
        (verdict,) = verdicts(a_report(rng, noise, seeds, effects), Claims())
        kind = verdict.headline.split()[0].replace("Stay", "Choose")
        if kind in chosen:
            chosen[kind].append(is_right(verdict.options[0].name.split()[0], effects))
    return chosen


def is_right(name: str, effects: Effects) -> bool:
    """Whether a choice is within the tolerance of the best."""
    best = max(gain for _, gain in effects.values())
    accurate = {each: time for each, (time, gain) in effects.items() if best - gain <= TOLERANCE.accuracy}
    return name in accurate and accurate[name] <= min(accurate.values()) * (1 + TOLERANCE.time)


def reports(rng: np.random.Generator, noise: Noise, seeds: int, effects: Effects) -> Iterator[Comparison]:
    for _ in range(REPORTS):
        yield a_report(rng, noise, seeds, effects)


def a_report(rng: np.random.Generator, noise: Noise, seeds: int, effects: Effects) -> Comparison:
    """A sweep with these differences from 4 s and 93 %."""
    results: list[RunResult] = []
    for strategy in STRATEGIES:
        factor, gain = effects.get(strategy, (1.0, 0.0))
        spread, session = np.exp(rng.normal(0, 0.3)), np.exp(BETWEEN_SESSIONS * rng.normal())
        for seed in range(seeds):
            accuracy = 0.93 + gain + noise.accuracy * spread * rng.normal()
            run = a_run(
                strategy,
                nodes=1 if strategy == "serial" else 2,
                seed=seed,
                train_s=float(4 * factor * session * np.exp(noise.time * spread * rng.normal())),
                accuracy=round(IMAGES * float(np.clip(accuracy, 0, 1))) / IMAGES,
            )
            ranks = [rank.model_copy(update={"test_samples": IMAGES}) for rank in run.ranks]
            results.append(run.model_copy(update={"ranks": ranks}))
    return a_comparison(*results)
