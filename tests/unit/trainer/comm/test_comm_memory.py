"""Communicators on transport memory, whose ranks are threads: results, counted bytes and failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.threads import running_clock, together
from trainer.comm.base import CommunicationError, Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup, total
from trainer.core.clock import Clock
from trainer.core.context import NodeContext

SIZES = [1, 2, 3, 4]


def values(rank: int) -> Tensor:
    """A buffer whose values identify the rank."""
    return torch.tensor([1.0, 10.0, 0.1]) * (rank + 1)


# Results


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_all_reduce(size: int, op: Any) -> None:
    def body(comm: Communicator) -> Tensor:
        buffer = values(comm.rank)
        comm.all_reduce(buffer, op)
        return buffer

    expected = torch.stack([values(rank) for rank in range(size)]).sum(0)
    reduced = together(size, body)
    for buffer in reduced:
        torch.testing.assert_close(buffer, expected / size if op == "mean" else expected)
        assert torch.equal(buffer, reduced[0])  # bit for bit, so that replicas stay equal


def test_sums_of_many_buffers() -> None:
    """Up to 16 buffers, bit for bit the sum of all of them at once; more, in the memory of a few."""
    for count in range(1, 70):
        buffers = [torch.randn(33) for _ in range(count)]
        kept = [buffer.clone() for buffer in buffers]
        found = total(buffers)
        exact = torch.stack(buffers).double().sum(dim=0)
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)
        assert count > 16 or torch.equal(found, torch.stack(buffers).sum(dim=0))
        assert all(map(torch.equal, buffers, kept))


@pytest.mark.parametrize("size", SIZES)
def test_all_gather(size: int) -> None:
    def body(comm: Communicator) -> tuple[Tensor, Tensor]:
        buffer = values(comm.rank)
        gathered = comm.all_gather(buffer)
        buffer.zero_()  # the result is a copy
        comm.barrier()
        return gathered, buffer

    for gathered, _ in together(size, body):
        assert torch.equal(gathered, torch.stack([values(rank) for rank in range(size)]))


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all(size: int) -> None:
    def body(comm: Communicator) -> tuple[Tensor, Tensor]:
        buffer = torch.stack([values(10 * comm.rank + to) for to in range(size)])
        received = comm.all_to_all(buffer)
        buffer.zero_()  # the result is a copy
        comm.barrier()
        return received, buffer

    for rank, (received, _) in enumerate(together(size, body)):
        assert torch.equal(received, torch.stack([values(10 * source + rank) for source in range(size)]))


@pytest.mark.parametrize(("size", "root"), [(1, 0), (2, 1), (4, 0), (4, 3)])
def test_gather(size: int, root: int) -> None:
    reported = together(size, lambda comm: comm.gather(values(comm.rank), root))
    for rank, gathered in enumerate(reported):
        if rank == root:
            assert torch.equal(gathered, torch.stack([values(each) for each in range(size)]))
        else:
            assert gathered is None


@pytest.mark.parametrize("distance", [0, 1, 2, 3, 5, -1, -2])
@pytest.mark.parametrize("size", SIZES)
def test_shift(size: int, distance: int) -> None:
    def body(comm: Communicator) -> tuple[Tensor, Tensor]:
        own = values(comm.rank)
        return comm.shift(own, distance), own

    for rank, (received, own) in enumerate(together(size, body)):
        assert torch.equal(received, values((rank - distance) % size))
        assert torch.equal(own, values(rank))


@pytest.mark.parametrize(("size", "root"), [(1, 0), (2, 1), (4, 0), (4, 3)])
def test_broadcast(size: int, root: int) -> None:
    def body(comm: Communicator) -> Tensor:
        buffer = values(comm.rank)
        comm.broadcast(buffer, root)
        return buffer

    assert all(torch.equal(buffer, values(root)) for buffer in together(size, body))


def test_send_and_receive_in_order_and_by_source() -> None:
    def body(comm: Communicator) -> list[float]:
        received = torch.empty(1)
        if comm.rank > 0:
            for number in range(3):
                buffer = torch.tensor([10.0 * comm.rank + number])
                comm.send(buffer, to=0)
                buffer.fill_(-1)  # the caller may reuse the buffer at once
            return []
        reported = []
        for source in (2, 1, 1, 2, 2, 1):
            comm.recv(received, source)
            reported.append(received.item())
        return reported

    assert together(3, body)[0] == [20, 10, 11, 21, 22, 12]


def test_barrier_waits_for_the_slowest_rank() -> None:
    arrived: list[int] = []

    def body(comm: Communicator) -> int:
        time.sleep(0.02 * comm.rank)
        arrived.append(comm.rank)
        comm.barrier()
        return len(arrived)

    assert together(3, body) == [3, 3, 3]


def test_consecutive_all_reduces_do_not_mix() -> None:
    def body(comm: Communicator) -> list[float]:
        sums = []
        for number in range(200):
            buffer = torch.tensor([float(number * (comm.rank + 1))])
            comm.all_reduce(buffer, "sum")
            sums.append(buffer.item())
        return sums

    assert all(sums == [6.0 * number for number in range(200)] for sums in together(3, body))


# Counting


def to_all(rank: int, size: int) -> float:
    return 400 * (size - 1)  # one row for every other rank


COSTS: dict[str, tuple[Callable[[Communicator, Tensor], Any], Callable[[int, int], float]]] = {
    # 100 float32 on each of P ranks: the bytes that leave `rank`.
    "all_reduce": (lambda comm, b: comm.all_reduce(b, "mean"), lambda rank, p: 2 * 400 * (p - 1) / p),
    "all_gather": (lambda comm, b: comm.all_gather(b), lambda rank, p: 400 * (p - 1)),
    "gather": (lambda comm, b: comm.gather(b, 0), lambda rank, p: 0 if rank == 0 else 400),
    "all_to_all": (lambda comm, b: comm.all_to_all(b.expand(comm.size, len(b)).contiguous()), to_all),
    "broadcast": (lambda comm, b: comm.broadcast(b, 0), lambda rank, p: 400 * (p - 1) if rank == 0 else 0),
    "barrier": (lambda comm, b: comm.barrier(), lambda rank, p: 0),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", COSTS)
def test_bytes_and_collectives_are_counted(name: str, size: int) -> None:
    call, cost = COSTS[name]

    def body(comm: Communicator) -> Communicator:
        call(comm, torch.ones(100))
        comm.clock.stop()
        return comm

    for rank, comm in enumerate(together(size, body)):
        assert comm.traffic.bytes_sent == pytest.approx(cost(rank, size))
        ((entered, left),) = comm.traffic.collectives
        assert entered <= left
        assert comm.clock.seconds["communicate"] > 0


@pytest.mark.parametrize("state", ["before", "after", "evaluating"])
@pytest.mark.parametrize("name", COSTS)
def test_communication_outside_training_is_not_counted(name: str, state: str) -> None:
    def body(comm: Communicator) -> Communicator:
        if state == "evaluating":
            with comm.clock.phase("evaluate"):
                COSTS[name][0](comm, torch.ones(100))
        else:
            COSTS[name][0](comm, torch.ones(100))
        return comm

    def stopped() -> Clock:
        clock = running_clock()
        clock.stop()
        return clock

    clocks = {"before": Clock, "after": stopped, "evaluating": running_clock}
    for comm in together(2, body, clocks[state]):
        assert comm.traffic.bytes_sent == 0
        assert comm.traffic.collectives == []
        assert comm.clock.seconds["communicate"] == 0


def test_bytes_are_counted_at_the_sender() -> None:
    def body(comm: Communicator) -> Communicator:
        if comm.rank == 0:
            comm.send(torch.ones(100), to=1)
        else:
            comm.recv(torch.empty(100), source=0)
        return comm

    sender, receiver = together(2, body)
    assert (sender.traffic.bytes_sent, receiver.traffic.bytes_sent) == (400, 0)
    assert (sender.traffic.bytes_to, receiver.traffic.bytes_to) == ({1: 400}, {})
    assert sender.traffic.collectives == receiver.traffic.collectives == []


def test_sends_are_numbered_by_receiver() -> None:
    def body(comm: Communicator) -> list[tuple[int, int]]:
        if comm.rank == 0:
            sends = [comm.isend(torch.ones(1), to) for to in (1, 2, 2, 1)]
            with comm.clock.phase("evaluate"):
                comm.send(torch.ones(1), to=1)  # not part of training
            for sending in reversed(sends):
                sending.wait()
            return [(to, number) for _, _, to, number in comm.traffic.send_waits]
        for _ in range(2 if comm.rank == 2 else 3):
            comm.recv(torch.empty(1), source=0)
        return []

    assert together(3, body)[0] == [(1, 1), (2, 1), (2, 0), (1, 0)]


@pytest.mark.parametrize("size", SIZES)
def test_shifts_are_counted(size: int) -> None:
    def body(comm: Communicator) -> Communicator:
        comm.shift(torch.ones(100), 1)
        with comm.clock.phase("evaluate"):
            comm.shift(torch.ones(100), 1)
        return comm

    for rank, comm in enumerate(together(size, body)):
        assert comm.traffic.bytes_sent == (400 if size > 1 else 0)
        assert [source for _, _, source in comm.traffic.shifts] == [(rank - 1) % size] * (size > 1)
        assert all(entered <= left for entered, left, _ in comm.traffic.shifts)


# Splitting


def test_split_gives_each_colour_its_own_communicator() -> None:
    def body(comm: Communicator) -> tuple[Any, ...]:
        part = comm.split(colour=comm.rank % 2)
        buffer = values(comm.rank)
        part.all_reduce(buffer, "sum")
        ring = part.shift(torch.tensor([float(comm.rank)]), 1).item()
        inner = part.split(colour=part.rank)  # one rank each
        inner.all_reduce(torch.ones(1), "sum")
        return part.rank, part.size, buffer, ring, comm.bytes_sent - comm.traffic.bytes_sent

    reported = together(5, body)
    assert [each[:2] for each in reported] == [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]
    for rank, (_, size, buffer, ring, sent) in enumerate(reported):
        peers = range(rank % 2, 5, 2)
        torch.testing.assert_close(buffer, torch.stack([values(peer) for peer in peers]).sum(0))
        assert ring == peers[peers.index(rank) - 1]
        # The all-reduce, the shift, and the exchange of colours for the inner split.
        assert sent == pytest.approx(2 * 12 * (size - 1) / size + 4 + 4 * (size - 1))


def test_failed_rank_releases_ranks_that_wait_in_a_split() -> None:
    group = ThreadGroup(3, timeout_s=10)
    raised: list[Exception] = []

    def run(rank: int) -> None:
        comm = MemoryCommunicator(rank, 3, Clock(), group)
        part = comm.split(colour=0)
        if rank == 0:
            time.sleep(0.1)
            comm.abort()
            return
        try:
            part.barrier()
        except CommunicationError as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert len(raised) == 2


def test_split_after_a_failure_raises() -> None:
    group = ThreadGroup(2)
    group.abort()
    with pytest.raises(CommunicationError):
        MemoryCommunicator(0, 2, Clock(), group.subgroup([0, 1])).barrier()


# Failures


# gather: a sender does not wait for the root, and `recv` covers a root that waits.
CALLS = {name: call for name, (call, _) in COSTS.items() if name != "gather"}


@pytest.mark.parametrize("name", CALLS)
def test_failed_rank_releases_waiting_ranks(name: str) -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            raise ValueError("odd")
        CALLS[name](comm, torch.ones(4))

    first, failed, last = together(3, body)
    assert isinstance(failed, ValueError)
    for released in (first, last):
        assert isinstance(released, CommunicationError)
        assert "another rank" in str(released)


def test_collective_after_a_failure_raises() -> None:
    group = ThreadGroup(2)
    MemoryCommunicator(0, 2, Clock(), group).abort()
    with pytest.raises(CommunicationError):
        MemoryCommunicator(1, 2, Clock(), group).barrier()


def receiver(timeout_s: float) -> tuple[MemoryCommunicator, list[BaseException]]:
    """Start rank 1 in a thread that receives from rank 0. Returns rank 0 and the errors of rank 1."""
    group, raised = ThreadGroup(2, timeout_s), []

    def receive() -> None:
        try:
            MemoryCommunicator(1, 2, Clock(), group).recv(torch.empty(1), source=0)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    sender = MemoryCommunicator(0, 2, Clock(), group)
    sender.join = lambda: thread.join(0.2)  # type: ignore[attr-defined]
    return sender, raised


def test_failed_rank_releases_receivers() -> None:
    sender, raised = receiver(timeout_s=1)
    sender.abort()
    sender.join()  # type: ignore[attr-defined]
    assert [type(error) for error in raised] == [CommunicationError]


def test_receive_timeout_is_a_communication_error() -> None:
    sender, raised = receiver(timeout_s=0.01)
    sender.join()  # type: ignore[attr-defined]
    assert [type(error) for error in raised] == [CommunicationError]


def test_timeout_comes_from_the_run() -> None:
    context = NodeContext(0, 1, "memory", Path(), timeout_s=7200)
    assert MemoryCommunicator.connect(context, Clock())._group.timeout_s == 7200
