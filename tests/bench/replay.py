"""The replay: its speed, and its model of an all-reduce against measurements on this machine.

The link between local processes is this machine's loopback interface. Its bandwidth and the overhead of a
message are fitted to the measured all-reduces of two ranks; those of three and four ranks are then a test.
With more ranks than cores, the ranks share cores, which the model leaves out.
"""

from __future__ import annotations

import time

import torch

from tests.bench.collectives import calls_of_a_block, measured
from tests.bench.measuring import in_turns
from tests.bench.ranks import measure_as_rank
from tests.support.traces import builders, traces
from trainer.comm.base import Communicator
from trainer.core.trace import Kind
from trainer.time_model.algorithms import Network
from trainer.time_model.cluster import Cluster, Link
from trainer.time_model.simulate import simulate

FLOATS = (1, 256, 4_096, 65_536, 1_048_576)
RANKS, TRANSPORTS = (2, 3, 4), ("gloo", "mpi", "rpc")
REPEATS, BLOCK_S = 15, 0.02
STEPS = 20_000


def main() -> None:
    speed()
    model()


def speed() -> None:
    """Print how many records a second are replayed."""
    print("replay of steps with data, compute and an all-reduce")
    for size in (2, 4, 16):
        ranks = builders(size)
        for rank in ranks:
            for step in range(STEPS // size):
                rank.work(0.001, "data").work(0.01 + 0.001 * (step % 5)).add(Kind.ALL_REDUCE, 40_000)
                rank.add(Kind.STEP)
        cluster = Cluster(node_speed=[1.0] * size, link=Link(latency_s=1e-4, bytes_per_s=1e8))
        recorded = traces(ranks)
        started = time.process_time()
        rate = simulate(recorded, cluster).records / (time.process_time() - started)
        print(f"  {size:2} ranks: {rate:9,.0f} records and {rate / 4:7,.0f} rank-steps per CPU second")


def model() -> None:
    """Print measured and modelled all-reduces."""
    sizes = ", ".join(f"{4 * floats:,}" for floats in FLOATS)
    print(f"all-reduce of {sizes} bytes in microseconds: fastest of {REPEATS} blocks / model")
    fitted = (0.0, 0.0)
    for transport, ranks, found in measured(TRANSPORTS, RANKS, __name__):
        times = {4 * int(floats): min(blocks) for floats, blocks in found.items()}
        if ranks == RANKS[0]:
            fitted = fit(transport, times)
            print(f"  {transport}: overhead {1e6 * fitted[0]:.1f} µs, {fitted[1] / 1e6:,.0f} MB/s")
        cells = [
            f"{1e6 * took:8.0f}/{1e6 * modelled(transport, ranks, size, *fitted):<8.0f}"
            for size, took in times.items()
        ]
        print(f"  {transport:5} {ranks} ranks  {' '.join(cells)}", flush=True)


def modelled(transport: str, ranks: int, size: int, overhead_s: float, bytes_per_s: float) -> float:
    """Seconds of an all-reduce of `size` bytes by ranks that enter together."""
    link = Link(latency_s=0.0, bytes_per_s=bytes_per_s)
    cluster = Cluster(node_speed=[1.0] * ranks, link=link, overhead_s=overhead_s)
    costs = Network(cluster, transport).costs("all_reduce", range(ranks), size, -1)
    return max(costs.exits([0.0] * ranks)[0])


def fit(transport: str, times: dict[int, float]) -> tuple[float, float]:
    """Overhead from the smallest size, then bandwidth from the largest.

    The loopback interface has no latency of its own: what a small message takes is software.
    """
    smallest, largest = min(times), max(times)
    overhead_s = times[smallest] / modelled(transport, 2, smallest, 1.0, 1e15)
    at_one = modelled(transport, 2, largest, 0.0, 1.0)
    rest = max(times[largest] - modelled(transport, 2, largest, overhead_s, 1e15), 1e-9)
    return overhead_s, at_one / rest


def blocks(comm: Communicator, buffer: torch.Tensor) -> list[float]:
    """Seconds per call in each block of calls."""

    def call() -> None:
        comm.all_reduce(buffer, "sum")

    calls = calls_of_a_block(comm, call, BLOCK_S)
    return in_turns({"": call}, REPEATS, calls, warm_up=0, before=comm.barrier)[""]


if __name__ == "__main__":
    measure_as_rank(lambda comm, *_: {floats: blocks(comm, torch.zeros(floats)) for floats in FLOATS})
