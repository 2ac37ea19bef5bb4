"""Transport rpc across real processes, and strategy rpc_echo through the runner."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from orchestrator.result import RunResult
from orchestrator.runtimes.local import _loopback
from tests.integration.support import Silent, node_processes
from trainer.clock import Clock
from trainer.comm.base import CommunicationError, Communicator
from trainer.context import NodeContext

Execute = Callable[..., RunResult]
Body = Callable[[Communicator], Any]
SIZE = 3
FLOATS = 10  # not a multiple of SIZE: the ranks' shares of an all-reduce differ


@dataclass
class Ranks:
    """Runs a function as ranks that are processes, as RPC demands."""

    place: str
    timeout_s: float = 30.0

    def run(self, body: Body) -> list[Any]:
        """What `body`, a function of a module, returns or raises on each rank; None where a rank died."""
        # Forked from a server that has torch already: a rank starts in milliseconds.
        multiprocessing.set_forkserver_preload(["torch.distributed.rpc"])
        server = multiprocessing.get_context("forkserver")
        told, processes = [], []
        for rank in range(SIZE):
            hear, say = server.Pipe(duplex=False)
            context = NodeContext(
                rank, SIZE, "rpc", Path(), rendezvous=self.place, timeout_s=self.timeout_s
            )
            processes.append(server.Process(target=_rank, args=(context, body, say)))
            processes[-1].start()
            say.close()  # this process's copy, or it would hear nothing of the rank's death
            told.append(hear)
        try:
            return [_heard(hear) for hear in told]
        finally:
            for process in processes:
                process.kill()
                process.join(10)


def _heard(hear: Connection) -> Any:
    try:
        return hear.recv() if hear.poll(60) else pytest.fail("a rank waits for ever")
    except EOFError:
        return None


def _rank(context: NodeContext, body: Body, say: Connection) -> None:
    torch.set_num_threads(1)
    os.environ |= {"TP_SOCKET_IFNAME": _loopback(), "GLOO_SOCKET_IFNAME": _loopback()}
    clock = Clock()
    try:
        comm = context.connect(clock)
        clock.start()
        outcome = body(comm)
        comm.close()
    except Exception as error:
        outcome = error
        context.abort()
    say.send(outcome)
    os._exit(0)


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(f"{tmp_path}/rendezvous")


def values(rank: int) -> torch.Tensor:
    """A buffer by which a rank can be told, and whose sum depends on the order of summation."""
    return torch.linspace(0.1, 7.7, FLOATS) * (rank + 1) * 1.1


# The Communicator. Tensors come back as lists: a tensor would come through shared memory of a dead process.


def every_collective(comm: Communicator) -> dict[str, Any]:
    told: dict[str, Any] = {}

    def tell(name: str, buffer: torch.Tensor) -> None:
        told[name] = (buffer.tolist(), comm.traffic.bytes_sent)
        comm.traffic.bytes_sent = 0

    for op in ("sum", "mean"):
        buffer = values(comm.rank)
        comm.all_reduce(buffer, op)
        tell(op, buffer)
    few = torch.tensor([comm.rank + 1.0, 10.0])  # fewer than ranks: one has no share
    comm.all_reduce(few, "sum")
    tell("few", few)
    part = values(comm.rank)[2:9]
    comm.all_reduce(part, "sum")
    tell("part", part)
    buffer = values(comm.rank)
    gathered = comm.all_gather(buffer)
    buffer.zero_()  # what was gathered is a copy
    tell("gather", gathered)
    tell("to all", comm.all_to_all(torch.stack([values(comm.rank) + to for to in range(comm.size)])))
    for root in range(comm.size):
        buffer = values(comm.rank)
        comm.broadcast(buffer, root)
        tell(f"broadcast {root}", buffer)
    told["meetings"] = len(comm.traffic.meetings)
    return told


def test_collectives(ranks: Ranks) -> None:
    told = ranks.run(every_collective)
    everyone = torch.stack([values(rank) for rank in range(SIZE)])
    payload = FLOATS * 4
    for rank, own in enumerate(told):
        for op, expected in (("sum", everyone.sum(0)), ("mean", everyone.mean(0))):
            numbers, sent = own[op]
            torch.testing.assert_close(torch.tensor(numbers), expected)
            assert sent == pytest.approx(2 * payload * (SIZE - 1) / SIZE)
        assert own["few"][0] == [6, 30]
        torch.testing.assert_close(torch.tensor(own["part"][0]), everyone.sum(0)[2:9])
        assert own["gather"] == (everyone.tolist(), payload * (SIZE - 1))
        assert own["to all"] == ((everyone + rank).tolist(), payload * (SIZE - 1))
        for root in range(SIZE):
            sent = payload * (SIZE - 1) if rank == root else 0
            assert own[f"broadcast {root}"] == (values(root).tolist(), sent)
        its_own = {name: own[name] for name in own if "broadcast" in name or name == "to all"}
        assert own == told[0] | its_own  # bit for bit
        assert own["meetings"] == 6 + SIZE


def in_order(comm: Communicator) -> list[float]:
    if comm.rank > 0:
        for number in range(50):
            buffer = torch.full((1 + 1000 * (50 - number),), 100.0 * comm.rank + number)
            comm.send(buffer, to=0)
            buffer.fill_(-1)  # it may be changed again at once
        return []
    told = []
    for number in range(50):
        for source in (2, 1):
            buffer = torch.zeros(1 + 1000 * (50 - number))
            comm.recv(buffer, source)
            assert (buffer == buffer[0]).all()
            told.append(buffer[0].item())
    return told


def test_send_and_receive_in_order_and_by_source(ranks: Ranks) -> None:
    expected = [100.0 * source + number for number in range(50) for source in (2, 1)]
    assert ranks.run(in_order) == [expected, [], []]


def many_rounds(comm: Communicator) -> list[float]:
    sums = []
    for number in range(100):
        buffer = torch.tensor([float(number * (comm.rank + 1))])
        comm.all_reduce(buffer, "sum")
        sums.append(buffer.item())
    return sums


def test_many_rounds_do_not_mix(ranks: Ranks) -> None:
    assert ranks.run(many_rounds) == [[6.0 * number for number in range(100)]] * SIZE


def late(comm: Communicator) -> tuple[float, float]:
    time.sleep(0.3 * comm.rank)
    arrived = time.monotonic()
    comm.barrier()
    return arrived, time.monotonic()


def test_barrier_waits_for_the_last(ranks: Ranks) -> None:
    told = ranks.run(late)
    assert min(left for _, left in told) >= max(arrived for arrived, _ in told)


def over_the_link(comm: Communicator) -> float:
    before = psutil.net_io_counters(pernic=True)[_loopback()].bytes_sent
    comm.barrier()  # or a rank that is late would miss what the others have sent already
    comm.all_reduce(torch.ones(2_000_000), "sum")
    comm.barrier()
    return psutil.net_io_counters(pernic=True)[_loopback()].bytes_sent - before


def test_the_bytes_cross_the_link_and_not_shared_memory(ranks: Ranks) -> None:
    """Others use the link too, so more is no mistake; what went around it would be missing."""
    assert min(ranks.run(over_the_link)) > 2 * 8_000_000 * (SIZE - 1)


def one_dies(comm: Communicator) -> Any:
    if comm.rank == 1:
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(CommunicationError) as caught:
        comm.recv(torch.empty(1), source=1)
    with pytest.raises(CommunicationError, match="sending to node 1 failed"):
        comm.send(torch.empty(1), to=1)
    raise CommunicationError(f"{caught.value} {time.monotonic() - began:.1f}")


def test_a_dead_peer_is_named_at_once(ranks: Ranks) -> None:
    first, dead, last = ranks.run(one_dies)
    assert dead is None
    for error in (first, last):
        assert isinstance(error, CommunicationError)
        assert str(error).startswith("waiting for node 1 failed: ")
        assert float(str(error).split()[-1]) < 5


def one_is_silent(comm: Communicator) -> None:
    if comm.rank == 1:
        time.sleep(8)
        raise CommunicationError("slept")
    comm.recv(torch.empty(1), source=1)


def test_a_silent_peer_is_named_when_time_is_up(ranks: Ranks) -> None:
    ranks.timeout_s = 5.0
    first, _, last = ranks.run(one_is_silent)
    for error in (first, last):
        assert str(error) == "waiting for node 1 failed: nothing came within 5 s"


# The strategy


@pytest.mark.parametrize("nodes", [2, 4])
def test_echo(execute: Execute, tmp_path: Path, nodes: int) -> None:
    echo = {"name": "rpc_echo", "floats": 30_000, "rounds": 7}
    result = execute(strategy=echo, nodes=nodes)
    assert (result.status, result.cause, result.topology) == ("ok", None, "rpc")
    message = 30_000 * 4
    master, *others = result.ranks
    assert master.bytes_sent == 7 * message * (nodes - 1)
    assert [rank.bytes_sent for rank in others] == [7 * message] * (nodes - 1)
    for rank in result.ranks:
        assert rank.steps == 7
        assert rank.train_s == pytest.approx(sum(rank.seconds.values()), abs=1e-4)
    assert master.seconds["communicate"] > 0
    assert all(rank.seconds["wait"] > 0 for rank in others)
    assert node_processes(tmp_path) == []


@pytest.mark.parametrize("doomed", [0, 1])
def test_kill_9_of_one_node(execute: Execute, tmp_path: Path, doomed: int) -> None:
    display = Silent()
    killed: list[tuple[int, float]] = []

    def kill() -> None:
        while sum(event.kind == "train_start" for event in display.seen) < 3:
            time.sleep(0.02)
        time.sleep(0.5)
        pids = {event.rank: event.fields["pid"] for event in display.seen if event.kind == "start"}
        os.kill(pids[doomed], signal.SIGKILL)
        killed.append((pids[doomed], time.time()))

    threading.Thread(target=kill, daemon=True).start()
    result = execute(display, strategy={"name": "rpc_echo", "rounds": 1_000_000}, nodes=3)
    ((pid, at),) = killed
    assert result.status == "failed"
    assert re.fullmatch(rf"node {doomed} \(process {pid}\) was killed by SIGKILL", str(result.cause))
    assert result.started_at + result.wall_s - at < 10
    assert node_processes(tmp_path) == []
