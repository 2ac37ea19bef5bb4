"""A program of all non-blocking exchanges, what it brings and what it sends.

`mpirun -n 3 python -m tests.support.started_exchanges DIRECTORY` runs it over Open MPI.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.trace_laws import assert_waited_for, bytes_sent
from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.core.trace import Kind
from trainer.core.tracer import Tracer

VALUES = 12  # of a buffer; all sizes divide it
NBYTES = 4 * VALUES


def own_of(rank: int) -> Tensor:
    """A buffer whose values identify the rank and their places."""
    return torch.arange(float(VALUES)) * 0.5 + 100 * (rank + 1)


def reduced(rank: int, size: int) -> float:
    return 2 - 2 / size


def with_weight(rank: int, size: int) -> float:
    return reduced(rank, size) * (VALUES + 1) / VALUES


def all_started(comm: Communicator, own: Tensor) -> Tensor:
    """All non-blocking exchanges at once, waited for in another order on each rank."""
    size, last = comm.size, comm.size - 1
    copies = [own.clone() for _ in range(4)]
    requests = [
        comm.iall_reduce(copies[0], "mean"),
        comm.iall_gather(own),
        comm.ireduce_scatter(own),
        comm.ibroadcast(copies[1], last),
        comm.iweighted_mean(own, comm.rank + 1),
        comm.ishift(own, 1),
        comm.iall_reduce(copies[2], "sum"),
        comm.irecv(copies[3], (comm.rank - 1) % size) if size > 1 else comm.ishift(own, 1),
        comm.isend(-own, (comm.rank + 1) % size) if size > 1 else comm.ishift(own, 1),
    ]
    comm.all_reduce(blocking := own.clone(), "sum")
    order = [*range(len(requests))]
    Random(comm.rank).shuffle(order)
    results = {at: requests[at].wait() for at in order}
    assert all(request.done() for request in requests)
    assert all(requests[at].wait() is results[at] for at in order)
    found = [results[at].flatten() for at in range(7)]
    if size > 1:
        assert torch.equal(results[7], -results[5])
    return torch.cat([*found, blocking])


def started_by_hand(b: Tensor, r: int, P: int) -> Tensor:
    weights = torch.arange(1.0, P + 1)
    return torch.cat(
        [
            b.mean(0),
            b.flatten(),
            b.view(P, P, -1)[:, r].sum(0),
            b[-1],
            (b * weights[:, None]).sum(0) / weights.sum() if P > 1 else b[0],
            b[r - 1],
            b.sum(0),
            b.sum(0),
        ]
    )


def sent_by_started(r: int, P: int) -> float:
    if P == 1:
        return 0.0
    return 3 * reduced(r, P) + with_weight(r, P) + (P - 1) + (1 - 1 / P) + 2 + (P - 1 if r == P - 1 else 0)


def started(comm: Communicator) -> tuple[list[float], float]:
    """What the program brings, and the bytes that this rank sent. The trace fits to them."""
    tracer = Tracer(comm.clock.cpu_seconds, comm.clock.booked_until, "steps", range(comm.size), 99)
    comm.clock.tracer = tracer
    found = all_started(comm, own_of(comm.rank))
    comm.check_waited()
    trace = tracer.finished(comm.clock.wall(), "run", comm.rank, "gloo")
    assert_waited_for(trace)
    assert Counter(trace.records["kind"].tolist())[Kind.WAIT] == 8
    assert bytes_sent(trace) == pytest.approx(comm.bytes_sent)
    return found.tolist(), comm.bytes_sent


def assert_all_started(ranks: list[Any]) -> None:
    """Check what `started` has returned on each rank."""
    size = len(ranks)
    buffers = torch.stack([own_of(rank) for rank in range(size)])
    for rank, (found, sent) in enumerate(ranks):
        torch.testing.assert_close(
            torch.tensor(found), started_by_hand(buffers, rank, size), rtol=1e-6, atol=0
        )
        assert sent == pytest.approx(NBYTES * sent_by_started(rank, size))


if __name__ == "__main__":
    from mpi4py import MPI

    from trainer.comm.mpi import MpiCommunicator

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    mpi = MpiCommunicator(world.Get_rank(), world.Get_size(), Clock(cpu=time.thread_time), MPI, naps=True)
    mpi.clock.start()
    torch.save(started(mpi), Path(sys.argv[1]) / f"{mpi.rank}.pt")
    mpi.close()
