"""Overhead of a run: time from its start to the first step, and from the last step to its result."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.bench.runs import runs_on
from trainer.spec.run_spec import RunSpec

REPEATS = 5
Row = tuple[str, str, int]  # strategy, transport, nodes
ROWS: list[Row] = [
    ("serial", "memory", 1),
    *(("all_reduce", transport, nodes) for transport in ("memory", "gloo", "mpi") for nodes in (2, 4)),
]


def main() -> None:
    compare("local", ROWS, [sys.executable, "-c", "import torch"], "'import torch'")


def compare(runtime: str, rows: Sequence[Row], bare: Sequence[str], name: str) -> None:
    """Execute runs on a runtime, side by side with a bare command that only imports torch."""
    floors: list[float] = []
    startup: dict[Row, list[float]] = {row: [] for row in rows}
    teardown: dict[Row, list[float]] = {row: [] for row in rows}
    with runs_on(runtime) as execute:
        for _ in range(REPEATS):
            started = time.perf_counter()
            subprocess.run(bare, check=True)
            floors.append(time.perf_counter() - started)
            for strategy, transport, nodes in rows:
                fields = {"strategy": strategy, "transport": transport, "nodes": nodes, "epochs": 1}
                result = execute(RunSpec.model_validate(fields))
                if result.startup_s is None or result.teardown_s is None:
                    sys.exit(f"{result.key}: start-up or teardown time is missing")
                startup[strategy, transport, nodes].append(result.startup_s)
                teardown[strategy, transport, nodes].append(result.teardown_s)
    floor = statistics.median(floors)
    print(f"overhead of a run in seconds, median of {REPEATS}; a bare {name} takes {floor:.2f}")
    print("  run                        to first step  (× bare import)   from last step to row")
    for row in rows:
        first, last = statistics.median(startup[row]), statistics.median(teardown[row])
        label = f"{row[0]}, {row[1]}, {row[2]} node{'s' if row[2] > 1 else ''}"
        print(f"  {label:26} {first:13.2f}  {first / floor:15.1f} {last:23.2f}")
