"""Overhead: wall time of a run minus its training, warm and cold, beside a bare torchrun script."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from orchestrator.runtimes import RUNTIMES
from tests.bench.runs import Execute, runs_on
from trainer.spec.run_spec import THREAD_VARIABLES, RunSpec

REPEATS = 5
NODES = (2, 4)
Row = tuple[str, str]  # strategy, transport
ROWS: list[Row] = [
    *(("all_reduce", transport) for transport in ("memory", "gloo", "rpc", "mpi")),
    ("ddp", "gloo"),
    ("hogwild", "memory"),
]
RUN = {
    "dataset": {"name": "synthetic", "samples": 512, "test_samples": 64},
    "model": {"name": "mlp", "hidden": [32]},
    "epochs": 2,
}
# The same work with torch alone: what a user would write without this project.
SCRIPT = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
images, labels = torch.randn(512, 784), torch.randint(10, (512,))
model = torch.nn.Sequential(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = list(zip(images.split(32), labels.split(32)))[dist.get_rank() :: dist.get_world_size()]
dist.barrier()
start = time.perf_counter()
for _ in range(2):
    for batch, target in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(batch), target).backward()
        optimizer.step()
dist.barrier()
if dist.get_rank() == 0:
    print(time.perf_counter() - start)
del ddp
dist.destroy_process_group()
"""


def main() -> None:
    compare("local", ROWS)


def compare(runtime: str, rows: Sequence[Row]) -> None:
    """Measure every row once per round, warm, cold and beside torchrun, and print medians."""
    ways = {"warm": False, "cold": True} if RUNTIMES.load(runtime).info.warm else {"cold": True}
    found: dict[tuple[str, int, str], list[float]] = {}
    with ExitStack() as stack:
        script = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ddp.py"
        script.write_text(SCRIPT)
        execute = {way: stack.enter_context(runs_on(runtime, cold=cold)) for way, cold in ways.items()}
        if "warm" in execute:
            overhead(execute["warm"], rows[0], NODES[-1])  # starts the warm nodes
        for _ in range(REPEATS):
            for nodes in NODES:
                found.setdefault(("torchrun", nodes, "cold"), []).append(torchrun(script, nodes))
                for row in rows:
                    for way in ways:
                        seconds = overhead(execute[way], row, nodes)
                        found.setdefault((", ".join(row), nodes, way), []).append(seconds)
    print(f"runtime {runtime}: wall time of a run minus its training, s, median (min to max) of {REPEATS}")
    print(f"  {'run':22} nodes  way   seconds                 / torchrun")
    for (name, nodes, way), seconds in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        median = statistics.median(seconds)
        ratio = median / statistics.median(found["torchrun", nodes, "cold"])
        spread = f"{median:6.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        print(f"  {name:22} {nodes:5}  {way:4}  {spread:22} {ratio:11.2f}")


def overhead(execute: Execute, row: Row, nodes: int) -> float:
    """Seconds of one run beside its training: start, evaluation, stop, and writing its row."""
    strategy, transport = row
    fields = {**RUN, "strategy": strategy, "transport": transport, "nodes": nodes}
    result = execute(RunSpec.model_validate(fields))
    return result.wall_s - (result.train_s or 0.0)


def torchrun(script: Path, ranks: int) -> float:
    """Seconds of a DDP script under torchrun beside its training."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
    ]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, str(script)],
        env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - began - float(done.stdout.split()[-1])
