"""Virtual nodes: what 1,000 of them cost beside serial training on the same samples, and how much memory.

All in one process and on one thread, in alternation. The averages of weights are timed apart, beside a copy
of as many bytes, because they are bound by the memory. Then the wall time of two processes beside that of
one. At last, the cost of a step of sampled nodes, beyond what starts and ends a run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import torch

from tests.support.virtual_training import train_virtually
from trainer.data.cache import DatasetCache
from trainer.launch.threads import threads_in_torch
from trainer.spec.run_spec import RunSpec
from trainer.training.memory import peak_memory_mb
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.options import VirtualOptions
from trainer.virtual.run import in_turns

SAMPLES, NODES = 60_000, 1_000
BATCHES = (10, 32)
MEMORY_NODES = (100, 500)
SAMPLED_NODES, SAMPLED_EPOCHS = 1_024, (1, 9)  # of 20 steps
AVERAGES = 2  # in an epoch
WORKERS, REPETITIONS = 2, 2
PARAMETERS = 51_902  # of lenet5 with images of 28 × 28 and 10 classes
BASE: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": SAMPLES, "test_samples": 1000},
    "model": "lenet5",
    "epochs": 1,
    "transport": "memory",
    "save_weights": True,
}


def main() -> None:
    speed(averages())
    workers()
    memory()
    sampled()


def spec_of(nodes: int, **fields: Any) -> RunSpec:
    strategy = "serial" if nodes == 1 else "local_sgd"
    return RunSpec.model_validate({**BASE, "strategy": strategy, "nodes": nodes, **fields})


def speed(averages_s: float) -> None:
    """Print CPU seconds of serial training and of virtual nodes on the same samples.

    Args:
        averages_s: those of the averages in an epoch.
    """
    print(
        f"{NODES:,} virtual nodes, local_sgd, lenet5, {SAMPLES:,} samples of 28 × 28, one epoch, one core"
    )
    datasets = DatasetCache()
    train_virtually(spec_of(2, dataset={**BASE["dataset"], "samples": 100}), datasets=datasets)  # warm up
    for batch in BATCHES:
        seconds = {}
        for nodes in (1, NODES):
            started = time.process_time()
            train_virtually(spec_of(nodes, batch_size=batch), datasets=datasets, reads_traces=False)
            seconds[nodes] = time.process_time() - started
        ratio = seconds[NODES] / seconds[1]
        beyond = (seconds[NODES] - averages_s) / seconds[1]
        print(
            f"  batch {batch}: serial {seconds[1]:.1f} s, virtual {seconds[NODES]:.1f} s: {ratio:.2f} ×, "
            f"{beyond:.2f} × beyond the averages",
            flush=True,
        )


def workers() -> None:
    """Print the wall time of virtual nodes that two processes share, beside that of one process."""
    datasets = DatasetCache()
    for batch in BATCHES:
        seconds: dict[int, list[float]] = {1: [], WORKERS: []}
        for _ in range(REPETITIONS):
            for number, walls in seconds.items():
                started = time.perf_counter()
                options, spec = VirtualOptions(workers=number), spec_of(NODES, batch_size=batch)
                train_virtually(spec, options, datasets, reads_traces=False)
                walls.append(time.perf_counter() - started)
        alone, shared = (min(walls) for walls in seconds.values())
        print(
            f"  batch {batch}: {WORKERS} processes {shared:.1f} s, one {alone:.1f} s: "
            f"{shared / alone:.2f} × the wall time",
            flush=True,
        )


def averages() -> float:
    """Print CPU seconds of the averages in an epoch, and of a copy of the same bytes. Returns the former.

    There are two: local_sgd averages at the end of the epoch, and so does its evaluation.
    """
    weights = [torch.randn(PARAMETERS) for _ in range(NODES)]

    def average(comm: VirtualCommunicator) -> None:
        for _ in range(AVERAGES):
            weights[comm.rank] = comm.weighted_mean(weights[comm.rank], 1)

    averaged, copied = [], []
    with threads_in_torch(1):
        for _ in range(3):
            started = time.process_time()
            in_turns(average, spec_of(NODES))
            averaged.append(time.process_time() - started)
            started = time.process_time()
            _ = [each.clone() for _ in range(AVERAGES) for each in weights]
            copied.append(time.process_time() - started)
    print(f"{AVERAGES} averages of the weights: {min(averaged):.2f} s; as many copies: {min(copied):.2f} s")
    return min(averaged)


def memory() -> None:
    """Print the memory of a node: the slope of the peak over two numbers of nodes."""
    peaks = []
    for nodes in MEMORY_NODES:
        measured = f"from tests.bench.virtual import memory_mb; print(memory_mb({nodes}))"
        done = subprocess.run([sys.executable, "-c", measured], capture_output=True, text=True, check=True)
        peaks.append(float(done.stdout))
    each = (peaks[1] - peaks[0]) / (MEMORY_NODES[1] - MEMORY_NODES[0])
    weights = 4 * PARAMETERS / 2**20
    print(f"  memory: {each:.2f} MiB per node, whose weights have {weights:.2f} MiB")


def memory_mb(nodes: int) -> float:
    """The peak of this process in MiB after training on so many nodes. Call it in a new process."""
    dataset = {**BASE["dataset"], "samples": 20 * nodes, "test_samples": 100}
    train_virtually(spec_of(nodes, dataset=dataset, batch_size=10))
    return peak_memory_mb() or 0.0


def sampled() -> None:
    """Print the CPU time of a rank's step without its computation, and of 1,000 steps of all ranks."""
    datasets, seconds = DatasetCache(), []
    dataset = {**BASE["dataset"], "samples": 20 * SAMPLED_NODES, "test_samples": 100}
    chosen = {"save_weights": False, "transport": "gloo", "batch_size": 1, "dataset": dataset}
    for epochs in SAMPLED_EPOCHS:
        spec = spec_of(SAMPLED_NODES, strategy="all_reduce", epochs=epochs, **chosen)
        started = time.process_time()
        train_virtually(spec, VirtualOptions(compute="sampled"), datasets)
        seconds.append(time.process_time() - started)
    steps = 20 * (SAMPLED_EPOCHS[1] - SAMPLED_EPOCHS[0])
    step_s = (seconds[1] - seconds[0]) / steps
    print(
        f"  {SAMPLED_NODES:,} sampled nodes, all_reduce: {step_s / SAMPLED_NODES * 1e6:.0f} µs per rank "
        f"and step, {1000 * step_s:.0f} s for 1,000 steps"
    )
