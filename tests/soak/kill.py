"""`make soak ARGS=kill`: a reference run, then rounds that each kill one rank.

The ranks are killed in turn, at times drawn uniformly from the duration of the reference run. A round
passes when the run is ok with the weights of the reference run, a flag names the killed rank, and no
process or container is left.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.identity import identity
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from orchestrator.sweeps.yaml import read_yaml
from tests.support.containers import leftovers
from tests.support.processes import node_processes
from tests.support.rank_killer import RankKiller, kill_in_container, kill_process
from tests.support.runs import RecordingDisplay
from trainer.spec.run_spec import RunSpec

TIMES = 20
TRIES = 5  # attempts to kill a rank before the run ends


@dataclass(frozen=True)
class Round:
    """One run in which `rank` was killed `after_s` seconds after its start. wrong: its failures."""

    rank: int
    after_s: float
    seconds: float
    flags: list[str]
    wrong: list[str]


def run_of(strategy: str, nodes: int, cpus: float, checkpoint_epochs: int | None) -> RunSpec:
    """A run of a few seconds, so that kills hit start, rendezvous, epochs, evaluation and teardown."""
    return RunSpec.model_validate(
        {
            "strategy": strategy,
            "transport": "gloo",
            "nodes": nodes,
            "cpus": cpus,
            "dataset": "digits",
            "model": "mlp",
            "epochs": 100,
            "restarts": 3,
            "checkpoint_epochs": checkpoint_epochs,
            "timeout_s": 240,
        }
    )


def run_in(file: Path) -> RunSpec:
    """The run described by a YAML file."""
    return RunSpec.model_validate(read_yaml(file)[0])


def soak(run: RunSpec, runtime: str, times: int, seed: int) -> list[Round]:
    """Execute the reference run and `times` rounds."""
    rng = random.Random(seed)
    with TemporaryDirectory(prefix="shardyard-kill-") as name:
        directory = Path(name)
        reference = run_sweep(run, runtime, directory / "reference", RecordingDisplay())
        if reference.status != "ok":
            sys.exit(f"reference run: {reference.cause}")
        print(f"reference run: {reference.wall_s:.1f} s, weights {weights(reference)}", flush=True)
        rounds = []
        for number in range(times):
            rank = number % run.world_size
            done = one(run, runtime, directory / str(number), rank, rng, reference)
            rounds.append(done)
            when = f"rank {rank} at {done.after_s:5.1f} s, ended at {done.seconds:5.1f} s"
            what = "; ".join(done.wrong) or "ok"
            print(f"{number + 1:3d}/{times} {when}: {what} ({'; '.join(done.flags)})", flush=True)
    return rounds


def one(
    run: RunSpec, runtime: str, directory: Path, rank: int, rng: random.Random, reference: RunResult
) -> Round:
    """Execute a run and kill the rank before it ends."""
    for number in range(TRIES):
        after_s = rng.uniform(0, reference.wall_s)
        results = directory / str(number)
        kill = kill_process(results) if runtime == "local" else kill_in_container(run.processes_per_node)
        began = time.monotonic()
        with RankKiller(kill, rank, after_s) as killer:
            result = run_sweep(run, runtime, results, killer)
        if killer.killed:
            break
    else:
        return Round(rank, after_s, 0.0, [], [f"the run ended before the kill, {TRIES} times"])
    flags = [flag for flag in result.flags if "killed" in flag or "restart" in flag]
    wrong = judge(result, reference, runtime, results)
    return Round(rank, after_s, time.monotonic() - began, flags, wrong)


def run_sweep(run: RunSpec, runtime: str, directory: Path, display: RecordingDisplay) -> RunResult:
    paths = SweepPaths(directory)
    nodes = RUNTIMES.load(runtime)()
    if missing := nodes.unavailable_reason() or nodes.unsupported_reason(run):
        sys.exit(missing)
    data = Path(os.environ.get("SHARDYARD_DATA", Path(__file__).resolve().parents[2] / "data"))
    with Clusters(nodes) as clusters:
        return SweepRunner(clusters, runtime, paths, data, display).run(run)


def judge(result: RunResult, reference: RunResult, runtime: str, results: Path) -> list[str]:
    """The failures of a run in which a rank was killed."""
    wrong = []
    if result.status != "ok":
        wrong.append(f"{result.status}: {result.cause}")
    elif weights(result) != weights(reference):
        wrong.append(f"other weights: {weights(result)}")
    elif not any("was killed" in flag or "was gone" in flag for flag in result.flags):
        wrong.append("no flag names the killed rank")
    left = [str(process.pid) for process in node_processes(results)]
    left += leftovers(f"shardyard.orchestrator={identity()}") if runtime == "docker" else []
    return wrong + [f"left behind: {each}" for each in left]


def weights(result: RunResult) -> str:
    return " ".join(sorted({rank.weights_digest or "none" for rank in result.ranks}))


def main(runs: list[RunSpec], runtime: str, times: int, seed: int) -> int:
    """Returns the exit code: 1 if a round failed."""
    lines, bad = [], 0
    for run in runs:
        what = f"{run.name_of('strategy')} on {run.size_label} ({runtime})"
        print(what, flush=True)
        rounds = soak(run, runtime, times, seed)
        good = [each for each in rounds if not each.wrong]
        bad += len(rounds) - len(good)
        longest = max(each.seconds for each in rounds)
        middle = statistics.median(each.seconds for each in rounds)
        kept = f"{len(good)} of {len(rounds)} ended with the same weights"
        lines.append(f"{what}: {kept}; median {middle:.1f} s, longest {longest:.1f} s")
    print("\n".join(lines))
    return 1 if bad else 0
