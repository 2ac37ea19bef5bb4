"""Transport rpc across real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from orchestrator.runtimes.local.processes import loopback
from tests.integration.rpc_ranks import Ranks
from trainer.comm.base import CommunicationError, Communicator
from trainer.core.context import NodeContext
from trainer.launch.ranks import connect

Body = Callable[[Communicator], Any]
SIZE = 3
FLOATS = 10  # not a multiple of SIZE: the shards of an all-reduce differ in size


class ConnectedRanks:
    """Runs a module-level function `body(comm)` in connected ranks."""

    def __init__(self, rendezvous: str) -> None:
        self.ranks = Ranks(rendezvous)

    def run(self, body: Body) -> list[Any]:
        """As `Ranks.run`."""
        return self.ranks.run(partial(_connect, body), SIZE)


def _connect(body: Body, context: NodeContext) -> Any:
    comm = connect(context, threads=1)
    comm.clock.start()
    outcome = body(comm)
    comm.close()
    return outcome


@pytest.fixture
def ranks(tmp_path: Path) -> ConnectedRanks:
    return ConnectedRanks(f"{tmp_path}/rendezvous")


def values(rank: int) -> torch.Tensor:
    """A buffer that differs between ranks and whose sum depends on the order of summation."""
    return torch.linspace(0.1, 7.7, FLOATS) * (rank + 1) * 1.1


# Results are lists: a tensor would be read from the shared memory of a process that has ended.


def every_collective(comm: Communicator) -> dict[str, Any]:
    results: dict[str, Any] = {}

    def record(name: str, buffer: torch.Tensor) -> None:
        results[name] = (buffer.tolist(), comm.traffic.bytes_sent)
        comm.traffic.bytes_sent = 0

    for op in ("sum", "mean"):
        buffer = values(comm.rank)
        comm.all_reduce(buffer, op)
        record(op, buffer)
    few = torch.tensor([comm.rank + 1.0, 10.0])  # fewer elements than ranks: one rank has an empty shard
    comm.all_reduce(few, "sum")
    record("few", few)
    part = values(comm.rank)[2:9]
    comm.all_reduce(part, "sum")
    record("part", part)
    buffer = values(comm.rank)
    gathered = comm.all_gather(buffer)
    buffer.zero_()  # all_gather returns a copy
    record("gather", gathered)
    record("to all", comm.all_to_all(torch.stack([values(comm.rank) + to for to in range(comm.size)])))
    for root in range(comm.size):
        buffer = values(comm.rank)
        comm.broadcast(buffer, root)
        record(f"broadcast {root}", buffer)
    results["collectives"] = len(comm.traffic.collectives)
    return results


def test_collectives(ranks: ConnectedRanks) -> None:
    results = ranks.run(every_collective)
    values_by_rank = torch.stack([values(rank) for rank in range(SIZE)])
    payload = FLOATS * 4
    for rank, own in enumerate(results):
        for op, expected in (("sum", values_by_rank.sum(0)), ("mean", values_by_rank.mean(0))):
            numbers, sent = own[op]
            torch.testing.assert_close(torch.tensor(numbers), expected)
            assert sent == pytest.approx(2 * payload * (SIZE - 1) / SIZE)
        assert own["few"][0] == [6, 30]
        torch.testing.assert_close(torch.tensor(own["part"][0]), values_by_rank.sum(0)[2:9])
        assert own["gather"] == (values_by_rank.tolist(), payload * (SIZE - 1))
        assert own["to all"] == ((values_by_rank + rank).tolist(), payload * (SIZE - 1))
        for root in range(SIZE):
            sent = payload * (SIZE - 1) if rank == root else 0
            assert own[f"broadcast {root}"] == (values(root).tolist(), sent)
        rank_specific = {name: own[name] for name in own if "broadcast" in name or name == "to all"}
        assert own == results[0] | rank_specific  # bitwise
        assert own["collectives"] == 6 + SIZE


def in_order(comm: Communicator) -> list[float]:
    if comm.rank > 0:
        for number in range(50):
            buffer = torch.full((1 + 1000 * (50 - number),), 100.0 * comm.rank + number)
            comm.send(buffer, to=0)
            buffer.fill_(-1)  # the buffer may be reused after send returns
        return []
    results = []
    for number in range(50):
        for source in (2, 1):
            buffer = torch.zeros(1 + 1000 * (50 - number))
            comm.recv(buffer, source)
            assert (buffer == buffer[0]).all()
            results.append(buffer[0].item())
    return results


def test_messages_of_a_sender_arrive_in_order(ranks: ConnectedRanks) -> None:
    expected = [100.0 * source + number for number in range(50) for source in (2, 1)]
    assert ranks.run(in_order) == [expected, [], []]


def many_rounds(comm: Communicator) -> list[float]:
    sums = []
    for number in range(100):
        buffer = torch.tensor([float(number * (comm.rank + 1))])
        comm.all_reduce(buffer, "sum")
        sums.append(buffer.item())
    return sums


def test_consecutive_collectives_do_not_mix(ranks: ConnectedRanks) -> None:
    assert ranks.run(many_rounds) == [[6.0 * number for number in range(100)]] * SIZE


def late(comm: Communicator) -> tuple[float, float]:
    time.sleep(0.3 * comm.rank)
    arrived = time.monotonic()
    comm.barrier()
    return arrived, time.monotonic()


def test_barrier_waits_for_the_slowest_rank(ranks: ConnectedRanks) -> None:
    results = ranks.run(late)
    assert min(left for _, left in results) >= max(arrived for arrived, _ in results)


def over_the_link(comm: Communicator) -> float:
    before = psutil.net_io_counters(pernic=True)[loopback()].bytes_sent
    comm.barrier()  # otherwise a late rank would miss bytes that others have sent already
    comm.all_reduce(torch.ones(2_000_000), "sum")
    comm.barrier()
    return psutil.net_io_counters(pernic=True)[loopback()].bytes_sent - before


def test_bytes_cross_the_network_interface_and_not_shared_memory(ranks: ConnectedRanks) -> None:
    """Other processes use the interface too, so the count is a lower bound."""
    assert min(ranks.run(over_the_link)) > 2 * 8_000_000 * (SIZE - 1)


def one_dies(comm: Communicator) -> Any:
    if comm.rank == 1:
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(CommunicationError) as caught:
        comm.recv(torch.empty(1), source=1)
    with pytest.raises(CommunicationError, match="node 1"):
        comm.send(torch.empty(1), to=1)
    raise CommunicationError(f"{caught.value} {time.monotonic() - began:.1f}")


def test_a_dead_peer_is_named_within_seconds(ranks: ConnectedRanks) -> None:
    first, dead, last = ranks.run(one_dies)
    assert dead is None
    for error in (first, last):
        assert isinstance(error, CommunicationError)
        assert "node 1" in str(error)
        assert float(str(error).split()[-1]) < 5


def one_is_silent(comm: Communicator) -> None:
    if comm.rank == 1:
        time.sleep(8)
        raise CommunicationError("slept")
    comm.recv(torch.empty(1), source=1)


def test_a_silent_peer_is_named_after_the_timeout(ranks: ConnectedRanks) -> None:
    ranks.ranks.timeout_s = 5.0
    first, _, last = ranks.run(one_is_silent)
    for error in (first, last):
        assert "node 1" in str(error)
        assert "5 s" in str(error)
