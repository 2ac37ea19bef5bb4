"""Claims: how often real runs that differ in nothing are said to differ.

40 serial runs, each with its own seed, are split at random into pairs of groups. Beside the test of the
report stands the rule that it replaced: a difference is claimed if the ranges over seeds do not overlap.
"""

from __future__ import annotations

from math import log
from random import Random

from orchestrator.report.statistics.contrasts import Contrast, Sample, welch
from orchestrator.report.statistics.power import least_difference
from orchestrator.results.records import RunResult
from tests.bench.runs import runs_on
from trainer.spec.run_spec import RunSpec

SEEDS = 40
SPLITS = 2000
LEVEL = 0.05
RUN = {"strategy": "serial", "dataset": "digits", "model": "lenet", "optimizer": "momentum", "lr": 0.02}


def main() -> None:
    with runs_on("local") as execute:
        execute(a_run(SEEDS))  # caches are cold in the first run
        results = [execute(a_run(seed)) for seed in range(SEEDS)]
    print(f"{SEEDS} serial runs, split at random into {SPLITS} pairs of groups")
    print(f"{'quantity':10} {'seeds':>6} {'claimed':>8} {'ranges apart':>13} {'least difference':>17}")
    for name, values in (("accuracy", accuracies(results)), ("wall time", log_times(results))):
        for size in (2, 3, 5, 10):
            report(name, values, size)


def a_run(seed: int) -> RunSpec:
    return RunSpec.model_validate({**RUN, "epochs": 2, "seed": seed})


def accuracies(results: list[RunResult]) -> list[float]:
    return [result.accuracy for result in results if result.accuracy is not None]


def log_times(results: list[RunResult]) -> list[float]:
    return [log(result.train_s) for result in results if result.train_s]


def report(name: str, values: list[float], size: int) -> None:
    """Print a line about groups of `size` seeds."""
    draws, claimed, apart = Random(size), 0, 0
    contrasts: list[Contrast] = []
    for _ in range(SPLITS):
        drawn = draws.sample(values, 2 * size)
        left, right = drawn[:size], drawn[size:]
        apart += max(left) < min(right) or max(right) < min(left)
        if contrast := welch(sample(left), sample(right)):
            contrasts.append(contrast)
            claimed += contrast.p < LEVEL
    share = f"{claimed / SPLITS:.1%}" if contrasts else "none"
    least = ""
    if contrasts:
        variance = sum(contrast.variances[0] for contrast in contrasts) / len(contrasts)
        least = f"{least_difference((variance, variance), size, LEVEL):.2%}"
    print(f"{name:10} {size:6} {share:>8} {apart / SPLITS:13.1%} {least:>17}")


def sample(values: list[float]) -> Sample:
    return dict(enumerate(values))
