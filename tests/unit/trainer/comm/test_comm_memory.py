"""Mistakes of ranks that are threads: sums of many buffers, and ranks that wait for one that has failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.threads import together
from trainer.comm.base import CommunicationError, Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup, total
from trainer.core.clock import Clock
from trainer.core.context import NodeContext

WAITS: dict[str, Callable[[Communicator], Any]] = {
    "all_reduce": lambda comm: comm.all_reduce(torch.ones(4), "sum"),
    "all_gather": lambda comm: comm.all_gather(torch.ones(4)),
    "all_to_all": lambda comm: comm.all_to_all(torch.ones(3, 4)),
    "broadcast": lambda comm: comm.broadcast(torch.ones(4), 1),
    "barrier": lambda comm: comm.barrier(),
    "receive": lambda comm: comm.recv(torch.ones(4), 1),
    "part": lambda comm: comm.subgroups[0].barrier(),
}


def test_sums_of_many_buffers() -> None:
    """Up to 16 buffers, bit for bit the sum of all of them at once; more, in the memory of a few."""
    for count in (1, 2, 15, 16, 17, 18, 31, 32, 33, 49):
        buffers = [torch.randn(33) for _ in range(count)]
        kept = [buffer.clone() for buffer in buffers]
        found = total(buffers)
        exact = torch.stack(buffers).double().sum(dim=0)
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)
        assert count > 16 or torch.equal(found, torch.stack(buffers).sum(dim=0))
        assert all(map(torch.equal, buffers, kept))


@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
def test_a_rank_that_fails_releases_those_that_wait_for_it(waits: Callable[[Communicator], Any]) -> None:
    def body(comm: Communicator) -> None:
        comm.split(colour=0)
        if comm.rank == 1:
            time.sleep(0.05)
            raise ValueError("odd")
        waits(comm)

    first, failed, last = together(3, body)
    assert isinstance(failed, ValueError)
    for released in (first, last):
        assert isinstance(released, CommunicationError)
        assert "another rank" in str(released)


@pytest.mark.parametrize("splits", [False, True])
def test_an_exchange_after_a_failure_raises(splits: bool) -> None:
    group = ThreadGroup(2)
    MemoryCommunicator(0, 2, Clock(), group).abort()
    with pytest.raises(CommunicationError):
        MemoryCommunicator(1, 2, Clock(), group.subgroup([0, 1]) if splits else group).barrier()


@pytest.mark.parametrize("name", ["barrier", "receive"])
def test_a_wait_ends_at_the_time_limit(name: str) -> None:
    with pytest.raises(CommunicationError):
        WAITS[name](MemoryCommunicator(0, 2, Clock(), ThreadGroup(2, timeout_s=0.01)))


def test_the_time_limit_is_that_of_the_run_and_several_ranks_need_a_common_group() -> None:
    context = NodeContext(0, 1, "memory", Path(), timeout_s=7200)
    assert MemoryCommunicator.connect(context, Clock())._group.timeout_s == 7200
    with pytest.raises(ValueError, match="ThreadGroup"):
        MemoryCommunicator.connect(NodeContext(0, 2, "memory", Path()), Clock())
