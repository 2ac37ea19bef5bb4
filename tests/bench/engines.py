"""Time of a run on every runtime until its first training step, and from its last one to its row."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import Any

from orchestrator.results.records import RunResult
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.slurm.options import SlurmOptions
from tests.bench.measuring import spread
from tests.bench.runs import runs_on
from trainer.spec.run_spec import RunSpec

REPEATS = 3
ROWS = [("serial", "memory", 1), *(("all_reduce", transport, 2) for transport in ("gloo", "rpc", "mpi"))]
ALLOCATION = SlurmOptions(allocation="sweep")
# The runtime, whether it starts nodes for every run, and its options.
WAYS = {
    "local, cold": ("local", True, None),
    "local, warm": ("local", False, None),
    "docker, cold": ("docker", True, None),
    "docker, warm": ("docker", False, None),
    "slurm, job per run": ("slurm", False, None),
    "slurm, allocation, cold": ("slurm", True, ALLOCATION),
    "slurm, allocation, warm": ("slurm", False, ALLOCATION),
}


def spec(strategy: str, transport: str, nodes: int, seed: int = 0) -> RunSpec:
    fields: dict[str, Any] = {
        "dataset": {"name": "synthetic", "samples": 512, "test_samples": 64},
        "model": {"name": "mlp", "hidden": [32]},
        "epochs": 2,
    }
    named = {"strategy": strategy, "transport": transport, "nodes": nodes, "seed": seed}
    return RunSpec.model_validate(fields | named)


def main() -> None:
    """Measure every row once per round in each way, and print medians."""
    runs = [spec(*row) for row in ROWS]
    found: dict[tuple[str, str], list[RunResult]] = defaultdict(list)
    with ExitStack() as stack:
        execute = {}
        for name, (runtime, cold, options) in WAYS.items():
            if is_available(name, runtime):
                way = runs_on(runtime, cold=cold, options=options, expected=runs)
                execute[name] = stack.enter_context(way)
                first_s = execute[name](runs[0]).startup_s or 0.0  # starts the warm nodes
                print(f"first run, {name}: {first_s:.1f} s until the first step")
        for _ in range(REPEATS):
            for run in runs:
                for name in execute:
                    found[run.key, name].append(execute[name](run))
    print(f"until the first step, and from the last step to the row, s: median (min to max) of {REPEATS}")
    for (key, name), results in found.items():
        starts, ends = zip(
            *((each.startup_s or 0.0, each.teardown_s or 0.0) for each in results), strict=True
        )
        print(f"  {key:36} {name:24} {spread(starts)}   {spread(ends)}")


def is_available(name: str, runtime: str) -> bool:
    if reason := RUNTIMES.load(runtime)().unavailable_reason():
        print(f"{name}: skipped, {reason}")
    return reason is None
