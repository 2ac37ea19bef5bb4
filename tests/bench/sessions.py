"""Sessions: by how much the time of a configuration differs if the same runs are repeated later.

Each session runs every configuration with the same seeds, in turn; the machine rests between sessions. The
variance of the session means, less what the noise of single runs explains, is that between sessions
(two-way analysis of variance: seeds are blocks). A report takes it into the error of every mean of times.
"""

from __future__ import annotations

import time
from math import log, sqrt
from statistics import fmean

import numpy as np

from orchestrator.report.metrics.estimates import BETWEEN_SESSIONS
from tests.bench.runs import runs_on
from trainer.spec.run_spec import RunSpec

SESSIONS, SEEDS = 6, 3
REST_S = 60.0
COMMON = {"dataset": "digits", "model": "lenet", "optimizer": "momentum", "lr": 0.02, "epochs": 4}
CONFIGURATIONS = {
    "serial": {"strategy": "serial"},
    "all_reduce, gloo, 2 nodes": {"strategy": "all_reduce", "transport": "gloo", "nodes": 2},
    "one_shot, mpi, 2 nodes": {"strategy": "one_shot", "transport": "mpi", "nodes": 2},
    "ddp, gloo, 2 nodes": {"strategy": "ddp", "transport": "gloo", "nodes": 2},
}


def main() -> None:
    found: dict[str, list[list[float]]] = {name: [] for name in CONFIGURATIONS}
    with runs_on("local") as execute:
        execute(a_run("serial", 0))  # caches are cold in the first run
        for session in range(SESSIONS):
            if session:
                time.sleep(REST_S)
            logs: dict[str, list[float]] = {name: [] for name in CONFIGURATIONS}
            for seed in range(SEEDS):
                for name in CONFIGURATIONS:
                    logs[name].append(log(execute(a_run(name, seed)).train_s or 0.0))
            for name, values in logs.items():
                found[name].append(values)
    print(f"{SESSIONS} sessions of {SEEDS} seeds, {REST_S:.0f} s apart: standard deviations of wall times")
    print(f"{'configuration':26} {'of a run':>10} {'between sessions':>17}")
    squares = []
    for name, sessions in found.items():
        noise, between = variances(np.array(sessions))
        squares.append(between)
        print(f"{name:26} {sqrt(noise):10.1%} {sqrt(max(0.0, between)):17.1%}")
    print(f"{'all':26} {'':10} {sqrt(max(0.0, fmean(squares))):17.1%}")
    print(f"reports take {BETWEEN_SESSIONS:.1%}")


def variances(values: np.ndarray) -> tuple[float, float]:
    """Of a run within a session and seed, and between sessions. values: sessions × seeds."""
    sessions, seeds = values.shape
    means = values.mean(axis=1)
    residuals = values - means[:, None] - values.mean(axis=0) + values.mean()
    noise = float((residuals**2).sum()) / ((sessions - 1) * (seeds - 1))
    return noise, float(np.var(means, ddof=1)) - noise / seeds


def a_run(name: str, seed: int) -> RunSpec:
    return RunSpec.model_validate({**COMMON, **CONFIGURATIONS[name], "seed": seed})
