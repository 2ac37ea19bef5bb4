"""A reference run, then rounds that each kill one rank.

The ranks are killed in turn, at times drawn uniformly from the duration of the reference run. A round
passes when the run is ok with the weights of the reference run, a flag names the killed rank, and no
process or container is left.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.identity import identity
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from orchestrator.shipped import ROOT
from orchestrator.sweeps.yaml import read_yaml
from tests.support.containers import leftovers
from tests.support.processes import node_processes
from tests.support.rank_killer import RankKiller, kill_in_container, kill_process
from tests.support.runs import RecordingDisplay
from trainer.spec.run_spec import RunSpec

TRIES = 5  # attempts to kill a rank before the run ends
# A few seconds, so that kills hit start, rendezvous, epochs, evaluation and teardown.
FIELDS = {"transport": "gloo", "nodes": 3, "cpus": 0.4, "dataset": "digits", "model": "mlp", "epochs": 100}
RUNS: list[dict[str, Any]] = [{"strategy": "all_reduce"}, {"strategy": "ddp", "checkpoint_epochs": 10}]


def main(spec: Path | None, runtime: str, times: int, seed: int) -> int:
    """Execute the run of a file, or the usual ones. Returns the exit code."""
    fields = [read_yaml(spec)[0]] if spec else [{**FIELDS, "restarts": 3, **each} for each in RUNS]
    return max(
        soak(RunSpec.model_validate({"timeout_s": 240, **each}), runtime, times, seed) for each in fields
    )


def soak(run: RunSpec, runtime: str, times: int, seed: int) -> int:
    """Execute the reference run and `times` rounds. Returns the exit code."""
    draws, bad, seconds = random.Random(seed), 0, list[float]()
    what = f"{run.name_of('strategy')} on {run.size_label} ({runtime})"
    with TemporaryDirectory(prefix="shardyard-kill-") as name:
        directory = Path(name)
        reference = execute(run, runtime, directory / "reference", RecordingDisplay())
        if reference.status != "ok":
            sys.exit(f"reference run: {reference.cause}")
        print(f"{what}: {reference.wall_s:.1f} s, weights {weights(reference)}", flush=True)
        for number in range(times):
            rank, began = number % run.world_size, time.monotonic()
            result, results, after_s = disturbed(
                run, runtime, directory / str(number), rank, draws, reference
            )
            wrong = judge(result, reference, runtime, results)
            seconds.append(time.monotonic() - began)
            bad += bool(wrong)
            flags = [flag for flag in result.flags if "killed" in flag or "restart" in flag]
            told = f"rank {rank} at {after_s:5.1f} s: {'; '.join(wrong) or 'ok'} ({'; '.join(flags)})"
            print(f"{number + 1:3d}/{times} {told}", flush=True)
    spans = f"median {median(seconds):.1f} s, longest {max(seconds):.1f} s"
    print(f"{what}: {times - bad} of {times} ended with the same weights; {spans}")
    return 1 if bad else 0


def disturbed(
    run: RunSpec, runtime: str, directory: Path, rank: int, draws: random.Random, reference: RunResult
) -> tuple[RunResult, Path, float]:
    """Execute a run and kill the rank before it ends: its result, its directory and the moment."""
    for number in range(TRIES):
        after_s, results = draws.uniform(0, reference.wall_s), directory / str(number)
        kill = kill_process(results) if runtime == "local" else kill_in_container(run.processes_per_node)
        with RankKiller(kill, rank, after_s) as killer:
            result = execute(run, runtime, results, killer)
        if killer.killed:
            return result, results, after_s
    sys.exit(f"the run ended before rank {rank} could be killed, {TRIES} times")


def execute(run: RunSpec, runtime: str, directory: Path, display: RecordingDisplay) -> RunResult:
    nodes = RUNTIMES.load(runtime)()
    if missing := nodes.unavailable_reason() or nodes.unsupported_reason(run):
        sys.exit(missing)
    data = Path(os.environ.get("SHARDYARD_DATA", ROOT / "data"))
    with Clusters(nodes) as clusters:
        return SweepRunner(clusters, runtime, SweepPaths(directory), data, display).run(run)


def judge(result: RunResult, reference: RunResult, runtime: str, results: Path) -> list[str]:
    """The failures of a run in which a rank was killed."""
    wrong = [f"process {process.pid} is left" for process in node_processes(results)]
    wrong += leftovers(f"shardyard.orchestrator={identity()}") if runtime == "docker" else []
    if result.status != "ok":
        wrong.append(f"{result.status}: {result.cause}")
    elif weights(result) != weights(reference):
        wrong.append(f"other weights: {weights(result)}")
    elif not any("was killed" in flag or "was gone" in flag for flag in result.flags):
        wrong.append("no flag names the killed rank")
    return wrong


def weights(result: RunResult) -> str:
    return " ".join(sorted({rank.weights_digest or "none" for rank in result.ranks}))
