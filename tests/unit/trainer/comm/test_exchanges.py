"""Mistakes in exchanges over each kind of communicator: who gets what, shared buffers, what is counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.unit.threads import running_clock, together
from trainer.comm.base import Communicator
from trainer.comm.traffic import Traffic
from trainer.core.clock import Clock
from trainer.core.trace import Kind
from trainer.launch.checked import CheckedCommunicator
from trainer.spec.run_spec import RunSpec
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.run import in_turns

SIZES = [1, 2, 3, 4]
VALUES = 12  # of a buffer; all sizes divide it
NBYTES = 4 * VALUES
Body = Callable[[Communicator], Any]


def own_of(rank: int) -> Tensor:
    """A buffer whose values identify the rank and their places."""
    return torch.arange(float(VALUES)) * 0.5 + 100 * (rank + 1)


def in_place(call: Callable[[Communicator, Tensor], Any]) -> Callable[[Communicator, Tensor], Tensor]:
    def result(comm: Communicator, own: Tensor) -> Tensor:
        call(comm, own)
        return own

    return result


def around(comm: Communicator, own: Tensor) -> Tensor:
    """Two messages to the next rank."""
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sends = [comm.isend(each, following) for each in (own, -own)]
    received = torch.empty(2, VALUES)
    for each in received:
        comm.recv(each, before)
    for each in sends:
        each.wait()
    return received


class Operation(NamedTuple):
    """call: from communicator and buffer. expected: the result, from all buffers, rank and size.

    sent: bytes that leave a rank, from rank and size.
    """

    call: Callable[[Communicator, Tensor], Any]
    expected: Callable[[Tensor, int, int], Tensor | None]
    sent: Callable[[int, int], float]


def weighted(buffers: Tensor, rank: int, size: int) -> Tensor:
    weights = torch.arange(1.0, size + 1)
    return (buffers * weights[:, None]).sum(0) / weights.sum()


def reduced(rank: int, size: int, nbytes: int = NBYTES) -> float:
    return 2 * nbytes * (size - 1) / size


def with_weights(rank: int, size: int) -> float:
    return reduced(rank, size, NBYTES + 4)


def gathered(rank: int, size: int) -> float:
    return NBYTES * (size - 1)


def shift_by(distance: int) -> Operation:
    return Operation(
        lambda comm, own: comm.shift(own, distance),
        lambda b, rank, size: b[(rank - distance) % size],
        lambda rank, size: NBYTES if distance % size else 0,
    )


# With the buffers b of all ranks, rank r and P ranks.
OPERATIONS = {
    "sum": Operation(in_place(lambda c, x: c.all_reduce(x, "sum")), lambda b, r, P: b.sum(0), reduced),
    "mean": Operation(in_place(lambda c, x: c.all_reduce(x, "mean")), lambda b, r, P: b.mean(0), reduced),
    "weighted_mean": Operation(lambda c, x: c.weighted_mean(x, c.rank + 1), weighted, with_weights),
    "no weights": Operation(lambda c, x: c.weighted_mean(x, 0), lambda b, r, P: b[r], with_weights),
    "all_gather": Operation(lambda c, x: c.all_gather(x), lambda b, r, P: b, gathered),
    "all_gather_float64": Operation(
        lambda c, x: c.all_gather_float64(x.double() / 3),
        lambda b, r, P: b.double() / 3,
        lambda r, P: 2 * gathered(r, P),
    ),
    "all_to_all": Operation(
        lambda c, x: c.all_to_all(x.view(c.size, -1)),
        lambda b, r, P: b.view(P, P, -1)[:, r],
        lambda r, P: NBYTES * (P - 1) / P,
    ),
    "gather": Operation(
        lambda c, x: c.gather(x, c.size - 1),
        lambda b, r, P: b if r == P - 1 else None,
        lambda r, P: 0 if r == P - 1 else NBYTES,
    ),
    "broadcast": Operation(
        in_place(lambda c, x: c.broadcast(x, c.size - 1)),
        lambda b, r, P: b[-1],
        lambda r, P: gathered(r, P) if r == P - 1 else 0,
    ),
    "messages": Operation(
        around, lambda b, r, P: torch.stack([b[r - 1], -b[r - 1]]), lambda r, P: 2 * NBYTES
    ),
    "barrier": Operation(in_place(lambda c, x: c.barrier()), lambda b, r, P: b[r], lambda r, P: 0),
    **{f"shift by {distance}": shift_by(distance) for distance in (0, 1, -1, 2, 5)},
}


def over_threads(size: int, body: Body, clock: Callable[[], Clock]) -> list[Any]:
    return together(size, body, clock)


def checked(size: int, body: Body, clock: Callable[[], Clock]) -> list[Any]:
    return together(size, lambda comm: body(CheckedCommunicator(comm)), clock)


def virtually(size: int, body: Body, clock: Callable[[], Clock]) -> list[Any]:
    outcomes: dict[int, Any] = {}

    def own(comm: VirtualCommunicator) -> None:
        if clock is running_clock:
            comm.clock.start()
        outcomes[comm.rank] = body(comm)

    in_turns(own, RunSpec(strategy="all_reduce", transport="gloo", nodes=size))
    return [outcomes[rank] for rank in range(size)]


KINDS = {"threads": over_threads, "checked": checked, "virtual": virtually}
Run = Callable[[int, Body, Callable[[], Clock]], list[Any]]


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest) -> Run:
    return KINDS[request.param]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_rank_has_its_result_in_memory_of_its_own(run: Run, name: str) -> None:
    """Whatever a rank then does to its buffer and to its result, those of others keep their values."""
    call, expected, _ = OPERATIONS[name]

    def body(comm: Communicator) -> Tensor | None:
        own = own_of(comm.rank)
        result: Tensor | None = call(comm, own)
        if result is not own:
            own.fill_(-1)
        comm.barrier()
        kept = None if result is None else result.clone()
        comm.barrier()
        if comm.rank == 0 and result is not None:
            result.fill_(-2)
        comm.barrier()
        assert comm.rank == 0 or result is None or torch.equal(result, kept)  # type: ignore[arg-type]
        return kept

    for size in SIZES if name != "messages" else SIZES[1:]:
        buffers = torch.stack([own_of(rank) for rank in range(size)])
        found = run(size, body, running_clock)
        for rank, result in enumerate(found):
            torch.testing.assert_close(result, expected(buffers, rank, size), rtol=1e-6, atol=0)
        if name in ("sum", "mean", "weighted_mean"):  # so that replicas stay equal
            assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("name", OPERATIONS)
def test_bytes_and_spans_are_those_of_the_operation(run: Run, name: str) -> None:
    call, _, sent = OPERATIONS[name]

    def body(comm: Communicator) -> Communicator:
        call(comm, own_of(comm.rank))
        comm.clock.stop()
        return comm

    for size in SIZES if name != "messages" else SIZES[1:]:
        for rank, comm in enumerate(run(size, body, running_clock)):
            traffic, is_collective = comm.traffic, name != "messages" and not name.startswith("shift")
            assert comm.bytes_sent == traffic.bytes_sent == pytest.approx(sent(rank, size))
            spans = [*traffic.collectives, *traffic.shifts, *traffic.receives, *traffic.send_waits]
            assert all(span[0] <= span[1] for span in spans)
            alone = size == 1 and name in ("weighted_mean", "no weights")  # it exchanges nothing
            assert len(traffic.collectives) == (is_collective and not alone)
            before, following = (rank - 1) % size, (rank + 1) % size
            if name == "messages":
                assert [source for _, _, source in traffic.receives] == [before] * 2
                assert [to for _, to in traffic.sends] == [following] * 2
                assert [waited[2:] for waited in traffic.send_waits] == [(following, 0), (following, 1)]
                assert comm.bytes_to == {following: 2 * NBYTES}
            if name == "shift by 1" and size > 1:
                assert [source for _, _, source in traffic.shifts] == [before]


@pytest.mark.parametrize("state", ["before", "after", "evaluating"])
def test_nothing_outside_of_training_is_counted(run: Run, state: str) -> None:
    def body(comm: Communicator) -> Communicator:
        if state == "after":
            comm.clock.stop()
        with comm.clock.phase("evaluate") if state == "evaluating" else nullcontext():
            for operation in OPERATIONS.values():
                operation.call(comm, own_of(comm.rank))
        return comm

    clock = Clock if state == "before" else running_clock
    for comm in run(2, body, clock):
        assert comm.bytes_sent == comm.clock.seconds["communicate"] == 0
        traffic = comm.traffic
        assert not any(
            (traffic.collectives, traffic.shifts, traffic.sends, traffic.receives, traffic.send_waits)
        )


def test_messages_come_in_order_by_source_and_their_buffers_may_be_reused(run: Run) -> None:
    def body(comm: Communicator) -> list[float]:
        if comm.rank > 0:
            buffer = torch.empty(1)
            for number in range(3):
                comm.send(buffer.fill_(10 * comm.rank + number), to=0)
            return []
        received = torch.empty(6, 1)
        for each, source in zip(received, (2, 1, 1, 2, 2, 1), strict=True):
            comm.recv(each, source)
        return received.flatten().tolist()

    assert run(3, body, running_clock)[0] == [20, 10, 11, 21, 22, 12]


def test_sends_are_numbered_by_receiver(run: Run) -> None:
    def body(comm: Communicator) -> list[tuple[int, int]]:
        if comm.rank == 0:
            sends = [comm.isend(torch.ones(1), to) for to in (1, 2, 2, 1)]
            with comm.clock.phase("evaluate"):
                comm.send(torch.ones(1), to=1)  # not part of training
            for sending in reversed(sends):
                sending.wait()
            return [(to, number) for _, _, to, number in comm.traffic.send_waits]
        for number in range(3 if comm.rank == 1 else 2):
            with comm.clock.phase("evaluate") if number == 2 else nullcontext():
                comm.recv(torch.empty(1), source=0)
        return []

    assert run(3, body, running_clock)[0] == [(1, 1), (2, 1), (2, 0), (1, 0)]


def test_restored_counts_go_on() -> None:
    """Also those of ranks to which nothing was sent before."""
    before, after = Traffic(), Traffic()
    before.record_send(1.0, to=1, payload=40)
    after.restore(before.state())
    numbers = [after.record_send(2.0, to, payload=2) for to in (1, 2)]
    assert (after.bytes_sent, after.bytes_to, numbers) == (44, {1: 42, 2: 2}, [1, 0])


def test_groups_of_groups_know_their_ranks_and_count_for_their_parents(run: Run) -> None:
    """Of five ranks those with odd and those with even numbers; of these again the first, and the rest."""

    def body(comm: Communicator) -> tuple[Any, ...]:
        part = comm.split(colour=-comm.rank % 2)
        before = comm.bytes_sent
        inner = part.split(colour=int(part.rank > 0))
        colours = 4 * (part.size - 1)
        gathered = inner.all_gather(torch.tensor([float(comm.rank)])).flatten().tolist()
        if inner.size > 1:
            sending = inner.isend(own_of(0), to=1 - inner.rank)
            inner.recv(own_of(0), source=1 - inner.rank)
            sending.wait()
        sent = comm.bytes_sent - before - colours
        ranks = [*part.run_ranks], [*inner.parent_ranks], [*inner.run_ranks]
        return ranks, gathered, sent, dict(comm.bytes_to)

    own, pair = 4, NBYTES
    assert run(5, body, running_clock) == [
        (([0, 2, 4], [0], [0]), [0], 0, {}),
        (([1, 3], [0], [1]), [1], 0, {}),
        (([0, 2, 4], [1, 2], [2, 4]), [2, 4], own + pair, {4: NBYTES}),
        (([1, 3], [1], [3]), [3], 0, {}),
        (([0, 2, 4], [1, 2], [2, 4]), [2, 4], own + pair, {2: NBYTES}),
    ]


def test_barriers_and_sums_are_those_of_their_round(run: Run) -> None:
    arrived: list[int] = []

    def body(comm: Communicator) -> tuple[int, list[float]]:
        arrived.append(comm.rank)
        comm.barrier()
        count, sums = len(arrived), []
        for number in range(50):
            buffer = torch.tensor([float(number * (comm.rank + 1))])
            comm.all_reduce(buffer, "sum")
            sums.append(buffer.item())
        return count, sums

    assert run(3, body, running_clock) == [(3, [6.0 * number for number in range(50)])] * 3


def test_traced_records_name_the_size_and_the_peer() -> None:
    """See Kind: bytes of a buffer, the root of a broadcast, the distance of a shift, the receiver."""

    class Tracer:
        full = False

        def __init__(self) -> None:
            self.found: list[tuple[Kind, int, int]] = []

        def group(self, ranks: Any) -> int:
            return 0

        def exchange(
            self, kind: Kind, group: int, entered: float, left: float, size: int, peer: int, cpu_s: float
        ) -> None:
            self.found.append((kind, size, peer))

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

    def body(comm: Communicator) -> list[tuple[Kind, int, int]]:
        tracer: Any = Tracer()
        comm.clock.tracer = tracer
        for name in ("sum", "gather", "broadcast", "shift by -1", "messages", "barrier"):
            OPERATIONS[name].call(comm, own_of(comm.rank))
        found: list[tuple[Kind, int, int]] = tracer.found
        return found

    found = together(3, body)
    assert found[0] == [
        (Kind.ALL_REDUCE, NBYTES, -1),
        (Kind.GATHER, NBYTES, 2),
        (Kind.BROADCAST, NBYTES, 2),
        (Kind.SHIFT, NBYTES, -1),
        (Kind.SEND, NBYTES, 1),
        (Kind.SEND, NBYTES, 1),
        (Kind.RECEIVE, NBYTES, 2),
        (Kind.RECEIVE, NBYTES, 2),
        (Kind.SEND_WAIT, 0, 1),
        (Kind.SEND_WAIT, 1, 1),
        (Kind.BARRIER, 0, -1),
    ]
