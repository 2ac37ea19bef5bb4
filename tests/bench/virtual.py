"""Virtual nodes: what 1,000 of them cost beside serial training on the same samples, and how much memory.

All in one process and on one thread. At last, the cost of a step of sampled nodes, beyond what starts and
ends a run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from tests.support.virtual_training import train_virtually
from trainer.data.cache import DatasetCache
from trainer.spec.run_spec import RunSpec
from trainer.training.memory import peak_memory_mb
from trainer.virtual.options import MEASURED, VirtualOptions

SAMPLES, NODES = 60_000, 1_000
BATCHES = (10, 32)
MEMORY_NODES = (100, 500)
SAMPLED_NODES, SAMPLED_EPOCHS = 1_024, (1, 9)  # of 20 steps
PARAMETERS = 51_902  # of lenet5 with images of 28 × 28 and 10 classes
DATASETS = DatasetCache()


def main() -> None:
    speed()
    memory()
    sampled()


def spec_of(nodes: int, samples: int, **fields: Any) -> RunSpec:
    dataset = {"name": "synthetic", "samples": samples, "test_samples": 1000 if samples == SAMPLES else 100}
    base = {"dataset": dataset, "model": "lenet5", "epochs": 1, "transport": "memory", "save_weights": True}
    strategy = "serial" if nodes == 1 else "local_sgd"
    return RunSpec.model_validate({**base, "strategy": strategy, "nodes": nodes, **fields})


def cpu_s(run: RunSpec, options: VirtualOptions = MEASURED) -> float:
    """CPU seconds of a training in this process."""
    started = time.process_time()
    train_virtually(run, options, DATASETS, reads_traces=False)
    return time.process_time() - started


def speed() -> None:
    """Print CPU seconds of serial training and of virtual nodes on the same samples."""
    print(f"{NODES:,} virtual nodes, local_sgd, lenet5, {SAMPLES:,} samples of 28 × 28, an epoch, one core")
    cpu_s(spec_of(2, 100))  # warm up
    for batch in BATCHES:
        serial, virtual = (cpu_s(spec_of(nodes, SAMPLES, batch_size=batch)) for nodes in (1, NODES))
        ratio = virtual / serial
        print(f"  batch {batch}: serial {serial:.1f} s, virtual {virtual:.1f} s: {ratio:.2f} ×", flush=True)


def memory() -> None:
    """Print the memory of a node: the slope of the peak over two numbers of nodes."""
    peaks = []
    for nodes in MEMORY_NODES:
        measured = f"from tests.bench.virtual import memory_mb; print(memory_mb({nodes}))"
        done = subprocess.run([sys.executable, "-c", measured], capture_output=True, text=True, check=True)
        peaks.append(float(done.stdout))
    each = (peaks[1] - peaks[0]) / (MEMORY_NODES[1] - MEMORY_NODES[0])
    print(f"  memory: {each:.2f} MiB per node, whose weights have {4 * PARAMETERS / 2**20:.2f} MiB")


def memory_mb(nodes: int) -> float:
    """The peak of this process in MiB after training on so many nodes. Call it in a new process."""
    train_virtually(spec_of(nodes, 20 * nodes, batch_size=10))
    return peak_memory_mb() or 0.0


def sampled() -> None:
    """Print the CPU time of a rank's step without its computation, and of 1,000 steps of all ranks."""
    fields = {"save_weights": False, "transport": "gloo", "batch_size": 1, "strategy": "all_reduce"}
    runs = [spec_of(SAMPLED_NODES, 20 * SAMPLED_NODES, **fields, epochs=each) for each in SAMPLED_EPOCHS]
    short, long = (cpu_s(run, VirtualOptions(compute="sampled")) for run in runs)
    step_s = (long - short) / (20 * (SAMPLED_EPOCHS[1] - SAMPLED_EPOCHS[0]))
    print(
        f"  {SAMPLED_NODES:,} sampled nodes, all_reduce: {step_s / SAMPLED_NODES * 1e6:.0f} µs per rank "
        f"and step, {1000 * step_s:.0f} s for 1,000 steps"
    )
