"""Verdicts on simulated sweeps: of equals, at most 5 % decide; of others, none contradicts the claims."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orchestrator.report.findings import find
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.claims import FALSE_CLAIMS
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.verdict import Verdict, verdicts
from orchestrator.results.records import RunResult
from tests.unit.report_support import a_comparison, a_run

SIMULATED = 200
SEEDS = 5
IMAGES = 360
STRATEGIES = ("all_reduce", "ddp", "gossip", "local_sgd")


def simulated(rng: np.random.Generator, effect: float) -> Comparison:
    """Serial and four strategies, whose true times and accuracies differ by about `effect`."""
    results: list[RunResult] = []
    for strategy, nodes in (("serial", 1), *((name, 2) for name in STRATEGIES)):
        time, accuracy = 4 * np.exp(effect * rng.normal()), 0.9 + effect / 10 * rng.normal()
        spread = np.exp(rng.normal(0, 0.5))
        for seed in range(SEEDS):
            right = rng.binomial(IMAGES, np.clip(accuracy + 0.01 * rng.normal(), 0, 1))
            run = a_run(
                strategy,
                nodes=nodes,
                seed=seed,
                train_s=time * np.exp(0.03 * spread * rng.normal()),
                accuracy=float(right / IMAGES),
            )
            ranks = [rank.model_copy(update={"test_samples": IMAGES}) for rank in run.ranks]
            results.append(run.model_copy(update={"ranks": ranks}))
    return a_comparison(*results)


def judged(rng: np.random.Generator, effect: float) -> tuple[Sequence[Finding], Verdict]:
    comparison = simulated(rng, effect)
    findings = find(comparison)
    (verdict,) = verdicts(comparison, findings)
    return findings, verdict


def decisions(findings: Sequence[Finding], quantity: str) -> set[tuple[str, str]]:
    """The pairs of strategies (better, worse) that findings decide."""
    better = set()
    for finding in findings:
        for name in ("compared", "compared_with_serial"):
            for each in finding.data.get(name, ()):
                if each["quantity"] != quantity or each["decision"] not in ("more", "less"):
                    continue
                pair = tuple(side[0].split("-")[0] for side in (each["left"], each["right"]))
                left_is_better = (each["decision"] == "less") is (quantity == "train_s")
                better.add(pair if left_is_better else pair[::-1])
    return better


def test_of_equals_at_most_one_in_twenty_verdicts_decides() -> None:
    rng = np.random.default_rng(3)
    decided = sum(judged(rng, 0.0)[1].decided for _ in range(SIMULATED))
    error = (FALSE_CLAIMS * (1 - FALSE_CLAIMS) / SIMULATED) ** 0.5
    print(f"{decided} of {SIMULATED} verdicts on equals decided")
    assert decided <= (FALSE_CLAIMS + 2 * error) * SIMULATED


def test_no_verdict_goes_beyond_the_claims() -> None:
    rng, decided = np.random.default_rng(4), 0
    for at in range(SIMULATED // 5):
        findings, verdict = judged(rng, 0.05 * (at % 5))
        faster, more_accurate = decisions(findings, "train_s"), decisions(findings, "accuracy")
        decided += verdict.decided
        assert not verdict.decided or faster or more_accurate
        others = {"serial", *STRATEGIES}
        for option in verdict.options:
            name = option.name.split()[0]
            for best, better in ((option.best_time, faster), (option.best_accuracy, more_accurate)):
                if best:
                    assert {(name, other) for other in others - {name}} <= better
        if verdict.decided and verdict.headline.startswith("Choose"):
            name = verdict.headline.split()[1]
            beaten = {worse for better, worse in faster | more_accurate if better == name}
            lossy = {worse for _, worse in more_accurate}
            assert others - {name, "serial"} <= beaten | lossy
            assert (name, "serial") in faster
    assert decided
