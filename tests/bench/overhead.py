"""Overhead: what a run costs beside its training, warm and cold, and beside a bare torchrun script."""

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

import psutil

from orchestrator.identity import identity
from orchestrator.runtimes.docker.engine import reach
from orchestrator.runtimes.docker.reaper import LABEL
from tests.bench.runs import Execute, runs_on
from tests.support.containers import containers_missing
from tests.support.runs import DuringTraining
from trainer.spec.run_spec import THREAD_VARIABLES, RunSpec

REPEATS = {"local": 3, "docker": 2}
NODES = (2, 4)
IDLE_S = 20
Row = tuple[str, str]  # strategy, transport
ROWS: list[Row] = [
    *(("all_reduce", transport) for transport in ("memory", "gloo", "rpc", "mpi")),
    ("ddp", "gloo"),
    ("hogwild", "memory"),
]
IN_CONTAINERS: list[Row] = [("all_reduce", transport) for transport in ("memory", "gloo", "rpc", "mpi")]
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


# Trains long enough to be measured, on data of 120 MB.
LARGE = {
    "dataset": {"name": "synthetic", "samples": 40_000, "test_samples": 64},
    "model": {"name": "mlp", "hidden": [32]},
    "strategy": "all_reduce",
    "transport": "gloo",
    "epochs": 2,
}


def main() -> None:
    compare("local", ROWS)
    if reason := containers_missing():
        print(f"runtime docker: skipped, {reason}")
    else:
        compare("docker", IN_CONTAINERS)
        print(f"an idle warm container used {idle():.4f} cores")
    for ranks in (1, *NODES):
        warm, cold = (memory(ranks, cold) for cold in (False, True))
        print(f"memory of {ranks} ranks and their parent: {warm:.0f} MiB warm, {cold:.0f} MiB cold")


def idle() -> float:
    """CPU seconds per second of a warm container between two runs, health checks included."""
    api = reach().client.api
    with runs_on("docker") as execute:
        overhead(execute, ("all_reduce", "gloo"), 2)
        own = {"label": [f"{LABEL}={identity()}", "com.docker.compose.service=node"]}
        container = api.containers(filters=own)[0]["Id"]

        def used() -> tuple[float, float]:
            stats = api.stats(container, stream=False)
            return time.monotonic(), stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9

        first, before = used()
        time.sleep(IDLE_S)
        last, after = used()
    return float((after - before) / (last - first))


def memory(ranks: int, cold: bool) -> float:
    """Memory of all processes of a local run in MiB, while it trains. Shared pages count once (PSS)."""
    found: list[float] = []

    def measure(_: int) -> None:
        processes = psutil.Process().children(recursive=True)
        found.append(sum(process.memory_full_info().pss for process in processes) / 2**20)

    display = DuringTraining(measure, rank=0, ranks=ranks)
    with runs_on("local", display, cold) as execute:
        execute(RunSpec.model_validate({**LARGE, "nodes": ranks}))
    return found[0]


def compare(runtime: str, rows: Sequence[Row]) -> None:
    """Measure every row once per round, warm, cold and beside torchrun, and print medians."""
    ways, repeats = {"warm": False, "cold": True}, REPEATS[runtime]
    found: dict[tuple[str, int, str], list[float]] = {}
    with ExitStack() as stack:
        script = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ddp.py"
        script.write_text(SCRIPT)
        execute = {way: stack.enter_context(runs_on(runtime, cold=cold)) for way, cold in ways.items()}
        for nodes in reversed(NODES):
            for row in rows:
                overhead(execute["warm"], row, nodes)  # starts the warm nodes
        for _ in range(repeats):
            for nodes in NODES:
                found.setdefault(("torchrun", nodes, "cold"), []).append(torchrun(script, nodes))
                for row in rows:
                    for way in ways:
                        seconds = overhead(execute[way], row, nodes)
                        found.setdefault((", ".join(row), nodes, way), []).append(seconds)
    print(f"runtime {runtime}: wall time of a run minus its training, s, median (min to max) of {repeats}")
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
