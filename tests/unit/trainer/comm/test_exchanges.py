"""Mistakes in exchanges over each communicator: who gets what, shared buffers, counts, checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import ANY, Mock, call, patch

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.started_exchanges import (
    NBYTES,
    VALUES,
    all_started,
    own_of,
    reduced,
    sent_by_started,
    started_by_hand,
    with_weight,
)
from tests.unit.conftest import PROJECT
from tests.unit.threads import TorchRpc, running_clock, together
from trainer.comm import rpc
from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError, ExchangeError
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.traffic import Traffic
from trainer.core.clock import Clock
from trainer.launch.checked import CheckedCommunicator
from trainer.launch.owned_buffers import OwnedBuffers
from trainer.spec.run_spec import RunSpec
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.run import in_turns

Body = Callable[[Communicator], Any]
Run = Callable[..., list[Any]]


def in_place(call: Callable[[Communicator, Tensor], Any]) -> Callable[[Communicator, Tensor], Tensor]:
    return lambda comm, own: (call(comm, own), own)[1]


def around(comm: Communicator, own: Tensor) -> Tensor:
    """Two messages to the next rank."""
    sends = [comm.isend(each, (comm.rank + 1) % comm.size) for each in (own, -own)]
    received = torch.empty(2, VALUES)
    for each in received:
        comm.recv(each, (comm.rank - 1) % comm.size)
    for sending in sends:
        sending.wait()
    return received


def weighted(buffers: Tensor, rank: int, size: int) -> Tensor:
    weights = torch.arange(1.0, size + 1)
    return (buffers * weights[:, None]).sum(0) / weights.sum()


# The call from communicator and buffer; the result and the bytes that leave a rank per byte of its buffer,
# from the buffers b of all ranks, rank r and P ranks.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., float]]] = {
    "sum": (in_place(lambda c, x: c.all_reduce(x, "sum")), lambda b, *_: b.sum(0), reduced),
    "mean": (in_place(lambda c, x: c.all_reduce(x, "mean")), lambda b, *_: b.mean(0), reduced),
    "weighted": (lambda c, x: c.weighted_mean(x, c.rank + 1), weighted, with_weight),
    "weight 0": (lambda c, x: c.weighted_mean(x, 0), lambda b, r, P: b[r], with_weight),
    "part": (  # of fewer elements than ranks
        lambda c, x: (c.all_reduce(x[1:3], "sum"), x[1:3].clone())[1],
        lambda b, *_: b.sum(0)[1:3],
        lambda r, P: reduced(r, P) * 2 / VALUES,
    ),
    "all_gather": (lambda c, x: c.all_gather(x), lambda b, *_: b, lambda r, P: P - 1),
    "float64": (
        lambda c, x: c.all_gather_float64(x.double() / 3),
        lambda b, *_: b.double() / 3,
        lambda r, P: 2 * (P - 1),
    ),
    "all_to_all": (
        lambda c, x: c.all_to_all(x.view(c.size, -1)),
        lambda b, r, P: b.view(P, P, -1)[:, r],
        lambda r, P: 1 - 1 / P,
    ),
    "reduce_scatter": (
        lambda c, x: c.reduce_scatter(x),
        lambda b, r, P: b.view(P, P, -1)[:, r].sum(0),
        lambda r, P: 1 - 1 / P,
    ),
    "gather": (
        lambda c, x: c.gather(x, c.size - 1),
        lambda b, r, P: b if r == P - 1 else None,
        lambda r, P: r < P - 1,
    ),
    "broadcast": (
        in_place(lambda c, x: c.broadcast(x, c.size - 1)),
        lambda b, *_: b[-1],
        lambda r, P: P - 1 if r == P - 1 else 0,
    ),
    "started": (all_started, lambda b, r, P: started_by_hand(b, r, P), sent_by_started),
    "barrier": (in_place(lambda c, x: c.barrier()), lambda b, r, P: b[r], lambda r, P: 0),
    "messages": (around, lambda b, r, P: torch.stack([b[r - 1], -b[r - 1]]), lambda r, P: 2),
    **{
        f"shift by {by}": (
            lambda c, x, by=by: c.shift(x, by),
            lambda b, r, P, by=by: b[(r - by) % P],
            lambda r, P, by=by: by % P != 0,
        )
        for by in (0, 1, -1, 2, 5)
    },
}


def checked(size: int, body: Body, clock: Callable[[], Clock] = running_clock) -> list[Any]:
    """As ranks of a run with `debug`."""

    def own(comm: Communicator) -> Any:
        found = CheckedCommunicator(comm)
        with OwnedBuffers(found, None):
            return body(found)

    return together(size, own, clock)


def virtually(size: int, body: Body, clock: Callable[[], Clock] = running_clock) -> list[Any]:
    outcomes: dict[int, Any] = {}

    def own(comm: VirtualCommunicator) -> None:
        if clock is running_clock:
            comm.clock.start()
        outcomes[comm.rank] = body(comm)

    in_turns(own, RunSpec(strategy="all_reduce", transport="gloo", nodes=size))
    return [outcomes[rank] for rank in range(size)]


def over_rpc(size: int, body: Body, clock: Callable[[], Clock] = running_clock) -> list[Any]:
    network: Any = TorchRpc()

    def own(comm: MemoryCommunicator) -> Any:
        network.here.rank = comm.rank
        return body(rpc.RpcCommunicator(comm.rank, size, comm.clock, network, Mock(), timeout_s=10.0))

    with patch.multiple(rpc, _mailbox=network.mailbox, _sum=network.sum, Heartbeat=Mock()):
        return together(size, own, clock)


@pytest.fixture(params=[together, checked, virtually, over_rpc])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_rank_has_a_result_of_its_own_and_counts_what_it_sent(run: Run, size: int) -> None:
    """Whatever a rank then does to its buffer and to its result, those of others keep their values."""

    def body(comm: Communicator) -> dict[str, tuple[Tensor | None, Traffic]]:
        found = {}
        for name in names:
            comm.traffic = traffic = Traffic()
            result = OPERATIONS[name][0](comm, own := own_of(comm.rank))
            comm.traffic = Traffic()
            if result is not own:
                own.fill_(-1)
            comm.barrier()
            arrived.append(name)
            found[name] = None if result is None else result.clone(), traffic
            comm.barrier()
            if comm.rank == 0 and result is not None:
                result.fill_(-2)
            comm.barrier()
            assert arrived.count(name) == size
            assert comm.rank == 0 or result is None or torch.equal(result, found[name][0]), name
        return found

    arrived: list[str] = []
    names = [name for name in OPERATIONS if size > 1 or name != "messages"]
    buffers = torch.stack([own_of(rank) for rank in range(size)])
    ranks = run(size, body)
    for name in names:
        _, expected, sent = OPERATIONS[name]
        exchanges = size > 1 or name not in ("weighted", "weight 0")  # a rank alone has nothing to weight
        collectives = exchanges and name != "messages" and not name.startswith("shift")
        for rank, found in enumerate(ranks):
            result, traffic = found[name]
            torch.testing.assert_close(result, expected(buffers, rank, size), rtol=1e-6, atol=0)
            assert traffic.bytes_sent == pytest.approx(NBYTES * sent(rank, size)), name
            assert len(traffic.collectives) == collectives, name
            before, following = (rank - 1) % size, (rank + 1) % size
            if name == "shift by 1" and size > 1:
                assert [source for *_, source in traffic.shifts] == [before]
            if name == "messages":
                assert [source for _, _, source, _ in traffic.receives] == [before] * 2
                assert [to for _, to in traffic.sends] == [following] * 2
                assert traffic.bytes_to == {following: 2 * NBYTES}
        if name in ("sum", "mean", "weighted", "part"):  # so that replicas stay equal
            assert all(torch.equal(found[name][0], ranks[0][name][0]) for found in ranks)


@pytest.mark.parametrize("state", ["before", "after", "evaluating"])
def test_nothing_outside_of_training_is_counted(run: Run, state: str) -> None:
    def body(comm: Communicator) -> Communicator:
        if state == "after":
            comm.clock.stop()
        with comm.clock.phase("evaluate") if state == "evaluating" else nullcontext():
            for call, *_ in OPERATIONS.values():
                call(comm, own_of(comm.rank))
        return comm

    for comm in run(2, body, Clock if state == "before" else running_clock):
        assert (comm.traffic, comm.clock.seconds["communicate"]) == (Traffic(), 0)


def test_messages_come_in_order_by_source_and_have_numbers_by_receiver(run: Run) -> None:
    def body(comm: Communicator) -> Any:
        if comm.rank == 0:
            received = torch.empty(6, 1)
            for at, source in enumerate((2, 1, 1, 2, 2, 1)):
                with comm.clock.phase("evaluate") if at < 2 else nullcontext():
                    comm.recv(received[at], source)
            sends = [comm.isend(torch.ones(1), to) for to in (1, 2, 2, 1)]
            for sending in reversed(sends):
                sending.wait()
            return received.flatten().tolist(), [waited[2:] for waited in comm.traffic.send_waits]
        buffer = torch.empty(1)
        for number in range(3):
            with comm.clock.phase("evaluate") if number == 0 else nullcontext():  # without a number
                comm.send(buffer.fill_(10 * comm.rank + number), to=0)
        for _ in range(2):
            comm.recv(buffer, source=0)
        return [waited[2:] for waited in comm.traffic.send_waits]

    numbers = [(1, 1), (2, 1), (2, 0), (1, 0)]
    assert run(3, body) == [([20, 10, 11, 21, 22, 12], numbers), *[[(0, 0), (0, 1)]] * 2]


def test_receives_take_messages_in_the_order_in_which_they_were_posted(run: Run) -> None:
    def body(comm: Communicator) -> list[float]:
        if comm.rank == 1:
            for number in range(3):
                comm.send(torch.tensor([float(number)]), to=0)
            return []
        first, second, third = (torch.empty(1) for _ in range(3))
        requests = [comm.irecv(each, source=1) for each in (first, second)]
        comm.recv(third, source=1)
        for request in reversed(requests):
            request.wait()
        return [each.item() for each in (first, second, third)]

    assert run(2, body)[0] == [0, 1, 2]


def test_a_request_that_is_never_waited_for_is_named(run: Run) -> None:
    def body(comm: Communicator) -> str:
        part = comm.split(0)
        own = torch.zeros(4)
        part.iall_reduce(own.clone(), "sum").wait()
        comm.check_waited()
        part.iall_gather(own)
        with pytest.raises(ExchangeError) as error:
            comm.check_waited()
        return str(error.value)

    for rank, found in enumerate(run(2, body)):
        assert found.startswith(
            f"rank {rank} never waits for the iall_gather started at test_exchanges.py:"
        )


def test_a_start_on_a_gpu_does_not_read_the_clock_and_counts_from_its_wait() -> None:
    class OnGpu(MemoryCommunicator):
        times_starts = False

    group = ThreadGroup(2)

    def body(comm: MemoryCommunicator) -> tuple[list[float], list[tuple[float, ...]], float]:
        readings = iter(range(100))
        clock = Clock(wall=lambda: float(next(readings)), cpu=lambda: 0.0)
        clock.start()
        own = OnGpu(comm.rank, 2, clock, group)
        requests = [own.iall_reduce(own_of(comm.rank), "sum") for _ in range(2)]
        before = next(readings)
        for request in requests:
            request.wait()
        return own.traffic.starts, [each[:2] for each in own.traffic.start_waits], before

    for starts, waits, before in together(2, body):
        assert before == 1  # 0: the start of the clock
        assert (starts, waits) == ([2.0, 4.0], [(2.0, 3.0), (4.0, 5.0)])


def test_restored_counts_go_on() -> None:
    """Also those of ranks to which nothing was sent before."""
    before, after = Traffic(), Traffic()
    before.record_send(1.0, to=1, payload=40)
    after.restore(before.state())
    numbers = [after.record_send(2.0, to, payload=2) for to in (1, 2)]
    assert (after.bytes_sent, after.bytes_to, numbers) == (44, {1: 42, 2: 2}, [1, 0])


def test_groups_of_groups_know_their_ranks_and_count_for_their_parents(run: Run) -> None:
    """Of five ranks those with even numbers; of these again all but the first."""

    def body(comm: Communicator) -> Any:
        part = comm.split(colour=-comm.rank % 2)
        inner = part.split(colour=int(part.rank > 0))
        before = comm.bytes_sent
        gathered = inner.all_gather(torch.tensor([float(comm.rank)])).flatten().tolist()
        if inner.size > 1:
            sending = inner.isend(own_of(0), to=1 - inner.rank)
            inner.recv(own_of(0), source=1 - inner.rank)
            sending.wait()
        ranks = [*part.run_ranks], [*inner.parent_ranks], [*inner.run_ranks]
        return ranks, gathered, comm.bytes_sent - before, dict(comm.bytes_to)

    found, ranks = run(5, body), ([0, 2, 4], [1, 2], [2, 4])
    assert [found[2], found[4]] == [(ranks, [2, 4], 4 + NBYTES, {to: NBYTES}) for to in (4, 2)]
    assert found[1] == (([1, 3], [0], [1]), [1], 0, {})


def test_a_silent_peer_of_rpc_is_named_after_the_timeout() -> None:
    network: Any = TorchRpc()
    network.here.rank = 0
    with patch.multiple(rpc, _mailbox=network.mailbox, _sum=network.sum, Heartbeat=Mock()):
        comm = rpc.RpcCommunicator(0, 2, Clock(), network, Mock(), timeout_s=0.05, ranks=[0, 7])
        with pytest.raises(CommunicationError, match=r"^waiting for node 7 .* within 0\.05 s$"):
            comm.recv(torch.empty(1), source=1)


def test_rank_0_leaves_rpc_last() -> None:
    for rank, at_store in ((0, call.wait(["left/1", "left/2"], ANY)), (2, call.set("left/2", ""))):
        torch_rpc = Mock()
        comm: Any = rpc.RpcCommunicator(rank, 3, Clock(), torch_rpc, torch_rpc, timeout_s=7.0)
        comm._barrier = torch_rpc.barrier
        comm.close()
        assert torch_rpc.mock_calls == [call.barrier(), call.shutdown(graceful=True, timeout=7.0), at_store]


# Checks of runs with `debug`


@pytest.mark.parametrize("start", ["iall_reduce", "ibroadcast", "iall_gather"])
def test_debug_names_a_buffer_that_numpy_changes_before_it_is_waited_for(start: str) -> None:
    """A buffer that receives holds nan meanwhile."""

    def body(comm: Communicator) -> bool:
        own = own_of(comm.rank)
        options = {"iall_reduce": ("mean",), "ibroadcast": (0,), "iall_gather": ()}[start]
        request = getattr(comm, start)(own, *options)
        assert bool(np.isnan(own.numpy()).all()) == (start != "iall_gather")
        own.numpy()[3] = 1.0
        with pytest.raises(ExchangeError, match=f"rank {comm.rank} changes the buffer of {start}.* 12 el"):
            request.wait()
        return True

    assert checked(2, body) == [True, True]


FILE = "trainer/strategies/mine.py"


def in_file(code: str, line: int) -> Any:
    """An expression as one of this line of FILE."""
    return compile("\n" * (line - 1) + code, str(PROJECT / FILE), "eval")


# What a rank starts, what it does before `wait`, and how that uses the buffer; empty: it does not.
USES = [
    ("comm.iall_reduce(own, 'sum')", "own + 1", "reads"),
    ("comm.iall_reduce(own[:4], 'sum')", "(own[4:] + 1, own[4:].zero_())", ""),
    ("comm.iall_reduce(own[4:], 'sum')", "own[2:6].add_(1)", "writes to"),
    ("comm.split(0).iall_reduce(own, 'sum')", "torch._foreach_mul_([torch.ones(1), own], 2)", "writes to"),
    ("comm.ibroadcast(own, 0)", "torch.cat([own, own])", "reads"),
    ("comm.iall_gather(own)", "own + 1", ""),
    ("comm.iall_gather(own)", "torch.add(own, 1, out=own)", "writes to"),
    ("comm.ireduce_scatter(own)", "own.view(-1)[1:2].fill_(0)", "writes to"),
    ("comm.iweighted_mean(own, 1.0)", "own.zero_()", ""),
    ("comm.irecv(own, 1 - comm.rank)", "own[0].item()", "reads"),
    ("comm.ishift(own, 1)", "own.mul_(2)", "writes to"),
    ("comm.iall_reduce(own, 'sum')", "(own.view(2, 6)[0].detach(), own.new_zeros(3))", ""),
]


def test_debug_names_who_uses_a_buffer_before_it_is_waited_for() -> None:
    for start, use, how in USES:

        def body(comm: Communicator, start: str = start, use: str = use) -> str:
            names = {"comm": comm, "own": own_of(comm.rank), "torch": torch}
            peer = 1 - comm.rank
            sent = [comm.isend(own_of(comm.rank), peer)] if "irecv" in start else []
            request = eval(in_file(start, 1), names)
            try:
                eval(in_file(use, 2), names)
            except ExchangeError as error:
                return str(error)
            finally:
                for each in (*sent, request):
                    each.wait()
            return ""

        for rank, found in enumerate(checked(2, body)):
            expected = rf"^rank {rank} {how} the buffer of the \w+ started at {FILE}:1 at {FILE}:2, before"
            assert re.match(expected, found) if how else found == "", (start, use, found)


PARTS = "comm.split(comm.rank > 0)."
# What each rank evaluates, rank r in line r + 1 of the file, and what the error contains.
MISMATCHES: list[tuple[list[str], list[str]]] = [
    (
        ["comm.barrier()", "comm.all_reduce(own, 'mean')"],
        [f"rank 0 calls barrier at {FILE}:1 while rank 1 calls all_reduce(mean) of 6 elements at {FILE}:2"],
    ),
    (["comm.all_reduce(own, 'sum')", "comm.all_reduce(own, 'mean')"], ["all_reduce(mean)"]),
    (["comm.all_reduce(own, 'sum')", "comm.all_reduce(own[:5], 'sum')"], ["5 elements"]),
    (["comm.all_gather(own)", "comm.all_gather(own.double())"], ["float64"]),
    (["comm.broadcast(own, 0)", "comm.broadcast(own, 1)"], ["from rank 1"]),
    (["comm.shift(own, 1)", "comm.shift(own, -1)"], ["by -1"]),
    (
        ["comm.iall_reduce(own, 'sum').wait()", "comm.iall_reduce(own[:4], 'sum').wait()"],
        [f"iall_reduce(sum) of 6 elements at {FILE}:1", "iall_reduce(sum) of 4 elements"],
    ),
    (
        ["(comm.iall_gather(own), comm.barrier())", "comm.barrier()"],
        ["rank 0 calls iall_gather", "rank 1 calls barrier"],
    ),
    (["comm.barrier()", "comm.barrier()", "comm.split(0)"], ["rank 2 calls all_gather"]),
    (
        ["comm.send(own, 1)", "comm.recv(own[:4], 0)"],
        [f"send of 6 elements to rank 1 at {FILE}:1", f"recv of 4 elements from rank 0 at {FILE}:2"],
    ),
    (
        [f"{PARTS}barrier()", f"{PARTS}barrier()", f"{PARTS}all_gather(own)"],
        ["rank 1 calls barrier", "rank 2 calls all_gather"],  # not their ranks in the part
    ),
]


def test_a_mismatch_names_two_ranks_and_their_lines() -> None:
    for bodies, messages in MISMATCHES:

        def run(comm: Communicator, bodies: list[str] = bodies) -> Any:
            names = {"comm": CheckedCommunicator(comm), "own": torch.arange(6.0) + comm.rank}
            return eval(in_file(bodies[comm.rank], comm.rank + 1), names)

        (found,) = {str(each) for each in together(len(bodies), run) if isinstance(each, ExchangeError)}
        assert all(each in found for each in messages), found


def test_requests_to_a_server_are_those_of_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryCommunicator, "requests", lambda _, timeout_s: ("requests", timeout_s))
    comm: Any = CheckedCommunicator(MemoryCommunicator(0, 1, Clock(), ThreadGroup(1)))
    assert comm.requests(3.0) == ("requests", 3.0)
