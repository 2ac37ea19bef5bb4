"""`make soak ARGS=warm`: many short runs in a row on warm nodes, with injected faults among them.

A run passes when its status is the declared one and its weights are those of the first run with its spec.
In the end no rank, descriptor or shared-memory segment may be left, and the warm parent may have grown by
less than 5 %.
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

from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.local.runtime import LocalRuntime
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


def main(times: int, seed: int) -> int:
    """Execute the runs; returns the exit code."""
    draws, runtime, wrong = random.Random(seed), LocalRuntime(), []
    weights: dict[str, list[str | None]] = {}
    seconds: list[float] = []
    segments = {*SHARED_MEMORY.iterdir()}
    first = last = (0.0, 0)
    with TemporaryDirectory() as directory:
        runner = SweepRunner(
            runtime, "local", SweepPaths(Path(directory)), Path(directory), RecordingDisplay()
        )
        for number in range(1, times + 1):
            run, status = draw(draws)
            began = time.monotonic()
            result = runner.run(run)
            seconds.append(time.monotonic() - began)
            digests = [rank.weights_digest for rank in result.ranks]
            problems = judge(result, status, weights.setdefault(run.key, digests) == digests)
            if number == WARM_UP:
                first = footprint(run)
            if problems or number % 50 == 0:
                print(f"{number}/{times} {run.key}: {'; '.join(problems) or 'ok'}", flush=True)
            wrong += problems
        last = footprint(run)
        runtime.close()
        wrong += [f"process {process.pid} is left" for process in node_processes(Path(directory))]
    wrong += [f"{path} is left" for path in {*SHARED_MEMORY.iterdir()} - segments]
    if last[0] > GROWTH * first[0] or last[1] > first[1]:
        wrong.append("the warm parent has grown")
    print(f"{times} runs, median {statistics.median(seconds):.2f} s; {len(wrong)} problems")
    print(
        f"warm parent: {first[0]:.1f} MiB and {first[1]} descriptors after {WARM_UP} runs, "
        f"{last[0]:.1f} MiB and {last[1]} after {times}"
    )
    return 1 if wrong else 0


def draw(draws: random.Random) -> tuple[RunSpec, str]:
    """A run and its declared status; every fifth run has a fault."""
    if draws.random() < 0.8:
        return RunSpec.model_validate({**SMALL, **draws.choice(TRAINING)}), "ok"
    fault, transport, status = draws.choice(FAULTS)
    strategy = {"name": "fault_injection", "fault": fault, "rank": 1}
    limit = 2.0 if fault == "stall" else 60.0
    fields = {"strategy": strategy, "transport": transport, "nodes": 2, "timeout_s": limit}
    return RunSpec.model_validate({**SMALL, **fields}), status


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


def footprint(run: RunSpec) -> tuple[float, int]:
    """Resident memory in MiB and descriptors of the warm parent, without ranks."""
    children = psutil.Process().children()
    (parent,) = [child for child in children if "trainer.warm" in child.cmdline()]
    if parent.children():
        sys.exit(f"ranks of {run.key} are left: {parent.children()}")
    return parent.memory_info().rss / 2**20, parent.num_fds()
