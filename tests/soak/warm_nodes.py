"""`make soak ARGS=warm`: many short runs in a row on warm nodes, with injected faults among them.

A run passes when its status is the declared one and its weights are those of the first run with its spec.
In the end no rank, container, descriptor or shared-memory segment may be left, and the nodes may have grown
by less than 5 %.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.identity import identity
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.docker.engine import reach
from orchestrator.runtimes.docker.reaper import LABEL
from tests.support.containers import leftovers
from tests.support.processes import node_processes
from tests.support.runs import SMALL, RecordingDisplay
from trainer.spec.run_spec import RunSpec

TIMES = 500
WARM_UP = 20  # runs before the parent is measured for the first time
GROWTH = 1.05
SHARED_MEMORY = Path("/dev/shm")
TRAINING: list[dict[str, Any]] = [
    {"strategy": "serial"},
    {"strategy": "all_reduce", "transport": "memory", "nodes": 3},
    {"strategy": "all_reduce", "transport": "gloo", "nodes": 2},
    {"strategy": "all_reduce", "transport": "rpc", "nodes": 2},
    {"strategy": "one_shot", "transport": "mpi", "nodes": 3},
    {"strategy": "ddp", "nodes": 2},
    {"strategy": "fsdp", "nodes": 2},
    {"strategy": "pipeline_torch", "nodes": 2},
    {"strategy": "rpc_split", "nodes": 3},
    {"strategy": "hogwild", "nodes": 2},
]
# Fault, transport and the declared status.
FAULTS = [
    ("crash", "gloo", "failed"),
    ("crash", "memory", "failed"),
    ("kill", "mpi", "failed"),
    ("kill", "gloo", "failed"),
    ("stall", "rpc", "timeout"),
    ("stall", "mpi", "timeout"),
    ("flood", "gloo", "ok"),
    ("flood", "mpi", "ok"),
]


def main(times: int, seed: int, name: str) -> int:
    """Execute the runs on the runtime of this name; returns the exit code."""
    draws, runtime, wrong = random.Random(seed), RUNTIMES.load(name)(), []
    weights: dict[str, list[str | None]] = {}
    seconds: list[float] = []
    segments = {*SHARED_MEMORY.iterdir()}
    first = last = (0.0, 0)
    with TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        clusters = Clusters(runtime)
        runner = SweepRunner(clusters, name, SweepPaths(Path(directory)), data, RecordingDisplay())
        if missing := runtime.unavailable_reason() or runtime.unsupported_reason(run_of(TRAINING[0])):
            sys.exit(missing)
        clusters.expect([run_of(fields) for fields in TRAINING])
        for number in range(1, times + 1):
            run, status = draw(draws)
            began = time.monotonic()
            result = runner.run(run)
            seconds.append(time.monotonic() - began)
            digests = [rank.weights_digest for rank in result.ranks]
            problems = judge(result, status, weights.setdefault(run.key, digests) == digests)
            if number == WARM_UP:
                first = footprint(name, run)
            if problems or number % 50 == 0:
                print(f"{number}/{times} {run.key}: {'; '.join(problems) or 'ok'}", flush=True)
            wrong += problems
        last = footprint(name, run)
        clusters.close()
        if name == "docker":
            wrong += [f"{each} is left" for each in leftovers(f"{LABEL}={identity()}")]
        wrong += [f"process {process.pid} is left" for process in node_processes(Path(directory))]
    wrong += [f"{path} is left" for path in {*SHARED_MEMORY.iterdir()} - segments]
    if last[0] > GROWTH * first[0] or last[1] > first[1]:
        wrong.append("the nodes have grown")
    print(f"{times} runs, median {statistics.median(seconds):.2f} s; {len(wrong)} problems")
    print(
        f"nodes: {first[0]:.1f} MiB and {first[1]} descriptors after {WARM_UP} runs, "
        f"{last[0]:.1f} MiB and {last[1]} after {times}"
    )
    return 1 if wrong else 0


def draw(draws: random.Random) -> tuple[RunSpec, str]:
    """A run and its declared status; every fifth run has a fault."""
    if draws.random() < 0.8:
        return run_of(draws.choice(TRAINING)), "ok"
    fault, transport, status = draws.choice(FAULTS)
    strategy = {"name": "fault_injection", "fault": fault, "rank": 1}
    limit = 2.0 if fault == "stall" else 60.0
    fields = {"strategy": strategy, "transport": transport, "nodes": 2, "timeout_s": limit}
    return run_of(fields), status


def run_of(fields: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate({**SMALL, **fields})


def judge(result: RunResult, status: str, same_weights: bool) -> list[str]:
    """The problems of a run. Hogwild's updates have no fixed order, so its weights may differ."""
    problems = []
    if result.status != status:
        problems.append(f"{result.status}, not {status}: {result.cause}")
    if not same_weights and result.run.name_of("strategy") != "hogwild":
        problems.append("other weights")
    if result.nodes_replaced or not result.warm:
        problems.append(f"warm nodes were replaced: {result.nodes_replaced}")
    return problems


def footprint(name: str, run: RunSpec) -> tuple[float, int]:
    """Resident memory in MiB and descriptors of all warm nodes, without ranks."""
    processes = warm_parents(run) if name == "local" else in_containers()
    return sum(each.memory_info().rss for each in processes) / 2**20, sum(
        each.num_fds() for each in processes
    )


def warm_parents(run: RunSpec) -> list[psutil.Process]:
    children = psutil.Process().children()
    parents = [child for child in children if "trainer.warm" in child.cmdline()]
    if left := [rank for parent in parents for rank in parent.children()]:
        sys.exit(f"ranks of {run.key} are left: {left}")
    return parents


def in_containers() -> list[psutil.Process]:
    """All processes in this process's containers, but for health checks."""
    api = reach().client.api
    rows = [
        dict(zip(listed["Titles"], row, strict=True))
        for container in api.containers(filters={"label": f"{LABEL}={identity()}"})
        for listed in [api.top(container["Id"])]
        for row in listed["Processes"]
    ]
    return [psutil.Process(int(row["PID"])) for row in rows if "python" in row["CMD"]]
