"""Cluster time as a prediction: from recorded runs, written and hashed before the runs that it predicts.

Runs are recorded on one core. From their traces follows how long runs with a core for each rank will take:
the SHA-256 of these predictions is printed, then the runs are executed and their wall time is compared with
the predictions. So does the report, except that its runs predict their own time. What exchanges cost is
learned from runs of other seeds with a core for each rank.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

from orchestrator.replay.described import Costs, fits_cores, has_cores
from orchestrator.replay.run import NoClusterTime, replay_run
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from tests.bench.measuring import errors
from tests.bench.runs import runs_on
from tests.unit.training import fields_for
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.spec.traces import untraced_reason

RUN: dict[str, Any] = {"dataset": "digits", "model": "lenet", "lr": 0.02, "batch_size": 32, "epochs": 5}
SEEDS, CALIBRATING_SEEDS = (0, 1, 2), (3, 4)
Recorded = Mapping[str, RunResult]  # by key


def main() -> None:
    print("two nodes with a core each, predicted from runs on one core; targets: median 5 %, worst 15 %")
    with tempfile.TemporaryDirectory() as directory:
        on_cores, on_one, again = (Path(directory) / name for name in ("cores", "one", "again"))
        calibrating = executed(on_cores, CALIBRATING_SEEDS)
        with on_one_core():
            recorded = executed(on_one, SEEDS)
        costs = Costs.of([*of_directory(on_cores, calibrating), *of_directory(on_one, recorded)])
        predicted = {key: predict(on_one, result, costs) for key, result in recorded.items()}
        written = json.dumps([*predicted.items()]).encode()
        print(f"  {len(predicted)} predictions, SHA-256 {hashlib.sha256(written).hexdigest()}", flush=True)
        measured = executed(again, SEEDS)
    compare(recorded, predicted, measured)
    repeatability(calibrating.values(), measured.values())


def executed(directory: Path, seeds: Iterable[int]) -> Recorded:
    """Every strategy with every seed, in local processes."""
    with runs_on("local", results=directory) as execute:
        execute(next(strategies(99)))  # with cold caches; it does not count
        return {run.key: execute(run) for seed in seeds for run in strategies(seed)}


def of_directory(directory: Path, recorded: Recorded) -> list[tuple[Path, RunResult]]:
    """The runs, each with its own directory."""
    return [(SweepPaths(directory).run(key).directory, result) for key, result in recorded.items()]


def strategies(seed: int) -> Iterator[RunSpec]:
    """A run of each strategy over each transport that connects processes, on as few nodes as it needs."""
    for name in STRATEGIES.entries:
        strategy = STRATEGIES.load(name)
        for transport in strategy.transports:
            nodes = max(2, strategy.min_nodes)
            fields = {"strategy": name, "transport": transport, "nodes": nodes, "seed": seed}
            if name == "serial" or transport not in ("gloo", "mpi", "rpc") or nodes > (os.cpu_count() or 1):
                continue
            run = RunSpec.model_validate({**RUN, **fields_for(name), **fields})
            if not untraced_reason(run):
                yield run


def label(run: RunSpec) -> str:
    return f"{run.name_of('strategy')} {run.transport} {run.nodes}"


@contextmanager
def on_one_core() -> Iterator[None]:
    """All processes that start meanwhile use one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def predict(directory: Path, recorded: RunResult, costs: Costs) -> float:
    """Seconds that the run will take with a core for each rank."""
    key = recorded.key
    time = replay_run(SweepPaths(directory).run(key).directory, recorded.run, costs.cluster(recorded, key))
    if isinstance(time, NoClusterTime):
        raise SystemExit(f"{key}: {time.reason}")
    return time.cluster_s


def compare(recorded: Recorded, predicted: Mapping[str, float], measured: Recorded) -> None:
    """Print predictions beside wall times: medians over the runs of a name, and the errors of all runs.

    The CPU time of a recorded run beside that of the measured one shows what sharing cores adds to it.
    """
    rows: dict[str, list[tuple[float, float, float, float]]] = {}
    for key, result in measured.items():
        if has_cores(result) or not fits_cores(result):
            wall_s = result.train_s or 0.0
            cpu = (recorded[key].work_cpu_s or 0.0) / (result.work_cpu_s or 1.0) - 1
            row = predicted[key], wall_s, predicted[key] / wall_s - 1, cpu
            rows.setdefault(label(result.run), []).append(row)
    for name, times in rows.items():
        seconds, wall_s, error, cpu = (median(column) for column in zip(*times, strict=True))
        print(
            f"  {name:42} predicted {seconds:7.3f} s  wall {wall_s:7.3f} s  "
            f"error {error:+7.1%}  CPU {cpu:+6.1%}"
        )
    off = [error for times in rows.values() for _, _, error, _ in times]
    if off:
        print("  " + errors(f"error of {len(off)} runs", off))
    print(f"  {len(measured) - len(off)} runs left out: other processes used the cores", flush=True)


def repeatability(before: Iterable[RunResult], measured: Iterable[RunResult]) -> None:
    """Print how far wall times differ from those of the same strategy with other seeds, a while before.

    No prediction can be better than the truth repeats.
    """
    known: dict[str, list[float]] = {}
    for result in filter(has_cores, before):
        known.setdefault(label(result.run), []).append(result.train_s or 0.0)
    off = [
        (result.train_s or 0.0) / fmean(known[label(result.run)]) - 1
        for result in filter(has_cores, measured)
        if label(result.run) in known
    ]
    if off:
        print(
            "  " + errors(f"wall time of {len(off)} runs against that of other seeds before", off),
            flush=True,
        )
