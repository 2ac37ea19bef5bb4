"""Mistakes of ranks that outlive a loss: results that differ, another source or ring, shared buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.comm.base import CommunicationError
from trainer.comm.elastic import ElasticCommunicator, Group, Groups
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.views import Operate
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import Event
from trainer.core.membership import MembershipTracker

TIMEOUT_S = 30.0


class Lost(Exception):
    """Ends the thread of a rank that is lost."""


@dataclass
class World:
    """All ranks of a test: their groups, and the file with the membership."""

    path: Path
    size: int
    groups: dict[str, ThreadGroup] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    started: list[ElasticCommunicator] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tracker = MembershipTracker(dict.fromkeys(range(self.size), ""), range(0), {})
        for rank in range(self.size):
            self.add(rank, "train_start")

    def add(self, rank: int, kind: str, **fields: Any) -> None:
        with self.changed:
            self.tracker.add(Event(0.0, "", rank, "", kind, fields))
            self.tracker.current.write(self.path)

    def lose(self, rank: int) -> None:
        self.add(rank, "died", cause="killed")

    def context(self, rank: int, incarnation: int = 0) -> NodeContext:
        return NodeContext(rank, self.size, "gloo", Path(), timeout_s=TIMEOUT_S, incarnation=incarnation)


class ThreadsGroup(MemoryCommunicator, Group):
    """A group of threads."""

    def leave(self) -> None:
        self.abort()

    def interrupt(self) -> None:
        self.abort()


class ThreadsGroups(Groups):
    """Groups of the threads of a World."""

    def __init__(self, world: World, rank: int) -> None:
        self._world, self._rank = world, rank

    def first(self) -> Group:
        return self.form("first", range(self._world.size), 0, "", lambda: False)

    def form(
        self, name: str, ranks: Sequence[int], host: int, address: str, give_up: Callable[[], bool]
    ) -> Group:
        with self._world.changed:
            shared = self._world.groups.setdefault(name, ThreadGroup(len(ranks), TIMEOUT_S))
        return ThreadsGroup(ranks.index(self._rank), len(ranks), Clock(), shared)


@dataclass(frozen=True)
class Events:
    """The events of one rank, which reach the world at once."""

    world: World
    rank: int

    def write(self, kind: str, **fields: Any) -> None:
        self.world.add(self.rank, kind, **fields)


class Failing(ElasticCommunicator):
    """Lets its rank be lost in the operation of a number, before or after it has taken part."""

    def __init__(self, world: World, rank: int, lost_in: int | None = None, after: bool = False) -> None:
        self._test, self._lost_in, self._after = world, lost_in, after
        world.started.append(self)
        groups = ThreadsGroups(world, rank)
        incarnation = world.tracker.lost.get(rank, 0)
        events: Any = Events(world, rank)
        super().__init__(world.context(rank, incarnation), Clock(), groups, world.path, events)

    def _together(self, step: object) -> Any:
        if not isinstance(step, Operate) or self._survivor.completed != self._lost_in:
            return super()._together(step)
        if self._after:
            super()._together(step)
        self._test.lose(self.own)  # first: the others look at once, and not for long in some tests
        self._leave()
        raise Lost

    @property
    def own(self) -> int:
        """The rank in the run."""
        return self._survivor.own


def in_threads(ranks: Sequence[int], work: Callable[[int], list[float]]) -> dict[int, list[float]]:
    """What `work` returns for each rank that is not lost."""

    def caught(rank: int) -> list[float] | None:
        try:
            return work(rank)
        except Lost:
            return None

    with ThreadPoolExecutor(len(ranks)) as pool:
        found = dict(zip(ranks, pool.map(caught, ranks), strict=True))
    return {rank: values for rank, values in found.items() if values is not None}


def program(comm: ElasticCommunicator, rounds: int = 3) -> list[float]:
    """All operations that have one result for all ranks."""
    results = []
    for number in range(rounds):
        own = torch.full((4,), float(comm.own + 1) * 10**number)
        comm.all_reduce(own, "sum")
        results.append(own[0].item())
        results.append(comm.all_gather(torch.tensor([1.0])).sum().item())
        sent = torch.tensor([float(number)])
        comm.broadcast(sent, root=comm.size - 1)
        results.append(sent.item())
        comm.barrier()
        results.append(float(comm.size))
    comm.barrier()  # ranks that have completed the last operation help those that have not
    return results


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    started = World(tmp_path / "membership.json", 4)
    yield started
    for comm in started.started:
        comm.abort()
    for thread in threading.enumerate():
        if thread.name == "membership":
            thread.join(TIMEOUT_S)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("lost_in", [0, 1, 2, 3, 10])  # each operation of the first round, and the last
def test_survivors_agree_on_every_result(world: World, lost_in: int, after: bool) -> None:
    def work(rank: int) -> list[float]:
        return program(Failing(world, rank, lost_in if rank == 1 else None, after))

    results = in_threads(range(4), work)
    # A broadcast needs its source, which is the last rank here.
    assert results.keys() == {0, 2, 3}
    assert len({tuple(values) for values in results.values()}) == 1
    values = results[0]
    sizes = values[3::4]
    assert sizes == sorted(sizes, reverse=True)
    # An operation in which a rank took part to the end may count with or without it, but for all alike.
    first = lost_in // 4 + (lost_in % 4 == 3 and after)
    assert all(size == 4 for size in sizes[: (lost_in - 1) // 4 if lost_in else 0])
    assert all(size == 3 for size in sizes[first:])
    sums = [values[round_ * 4] / 10**round_ for round_ in range(3)]
    assert set(sums) <= {10.0, 8.0}  # of four ranks, or of three
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize(
    ("lost", "last"), [({0: 2, 2: 7}, 2.0), ({0: 1, 1: 1, 2: 1}, 1.0)], ids=["two", "three"]
)
def test_those_that_are_left_continue(world: World, lost: dict[int, int], last: float) -> None:
    """Also when ranks are lost in different operations, and when one is left alone."""
    results = in_threads(range(4), lambda rank: program(Failing(world, rank, lost.get(rank))))
    assert results.keys() == {*range(4)} - lost.keys()
    (values,) = {tuple(values) for values in results.values()}
    assert values[-1] == len(results)
    assert values[-4] == 100 * sum(rank + 1 for rank in results)


@pytest.mark.parametrize(("lost_in", "after"), [(0, False), (1, True), (2, False)])
def test_weighted_mean_is_over_the_weights_of_those_that_are_left(
    world: World, lost_in: int, after: bool
) -> None:
    """Rank r has value r and weight r, so the mean is Σ r² / Σ r; without weights it is the own value."""

    def work(rank: int) -> list[float]:
        comm = Failing(world, rank, lost_in if rank == 3 else None, after)
        value = torch.tensor([float(rank)])
        means = [comm.weighted_mean(value, rank).item() for _ in range(3)]
        (alone,) = comm.weighted_mean(value, 0.0).tolist()
        comm.barrier()
        return [*means, alone]

    results = in_threads(range(4), work)
    assert results.keys() == {0, 1, 2}
    whole, left = (1 + 4 + 9) / 6, (1 + 4) / 3
    for rank, (*means, alone) in results.items():
        assert means == results[0][:3]  # all agree
        completed = means[: lost_in + after]  # those in which rank 3 may have taken part
        assert means[len(completed) :] == pytest.approx([left] * (3 - len(completed)))
        assert all(mean == pytest.approx(whole) or mean == pytest.approx(left) for mean in completed)
        assert alone == rank


@pytest.mark.parametrize("lost_in", [0, 4])
def test_neighbours_of_a_lost_rank_continue_to_shift(world: World, lost_in: int) -> None:
    """Ranks may be several shifts apart when one is lost; then all have done equally many."""

    def work(rank: int) -> list[float]:
        comm = Failing(world, rank, lost_in if rank == 2 else None)
        for _ in range(6):
            comm.shift(torch.tensor([float(rank)]), 1)
        total = torch.tensor([float(rank)])
        comm.all_reduce(total, "sum")
        return [total.item(), float(comm.size), *comm.shift(torch.tensor([float(rank)]), 1).tolist()]

    results = in_threads(range(4), work)
    # The sum, the size, and the value of the neighbour in a new ring.
    assert results == {0: [4.0, 3.0, 3.0], 1: [4.0, 3.0, 0.0], 3: [4.0, 3.0, 1.0]}


def test_a_result_is_the_callers_own(world: World) -> None:
    """A rank that has changed it can give the result to one that is behind."""

    def work(rank: int) -> list[float]:
        comm = Failing(world, rank)
        gathered = comm.all_gather(torch.tensor([float(rank)]))
        before = comm._newest.clone()
        gathered.fill_(-1.0)
        assert torch.equal(comm._newest, before)
        comm.barrier()
        own = torch.tensor([float(rank)])
        comm._survivor._first = comm._survivor.completed + 1  # as if the others had completed the next one
        behind = comm.shift(own, 1)
        own.fill_(-1.0)
        return behind.tolist()

    assert in_threads(range(4), work) == {rank: [float(rank)] for rank in range(4)}


def test_a_rank_that_waits_elsewhere_leaves_the_lost_ones(world: World) -> None:
    def work(rank: int) -> list[float]:
        comm = Failing(world, rank)
        comm.barrier()
        assert comm.leave_lost() == set()
        waited.wait(TIMEOUT_S)
        if rank == 2:
            world.lose(2)
        waited.wait(TIMEOUT_S)
        return [] if rank == 2 else [*map(float, comm.leave_lost() or ())]

    waited = threading.Barrier(4)
    assert in_threads(range(4), work) == {0: [2.0], 1: [2.0], 2: [], 3: [2.0]}


def test_broadcast_fails_if_its_source_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.comm.elastic.DECLARED_S", 0.3)

    def work(rank: int) -> list[float]:
        comm = Failing(world, rank, 0 if rank == 0 else None)
        with pytest.raises(CommunicationError) as raised:
            comm.broadcast(torch.tensor([1.0]), root=0)
        causes.append(str(raised.value))
        return []

    causes: list[str] = []
    assert in_threads(range(4), work).keys() == {1, 2, 3}
    assert any("node 0" in cause for cause in causes)  # others may fail because that rank has left


def test_rank_that_was_declared_lost_by_mistake_ends(world: World) -> None:
    """As a node that was cut off the network and comes back."""
    suspended, resumed = threading.Event(), threading.Event()

    def work(rank: int) -> list[float]:
        comm = Failing(world, rank)
        comm.barrier()
        if rank == 1:
            suspended.set()
            assert resumed.wait(TIMEOUT_S)
            with pytest.raises(CommunicationError, match="without this one"):
                comm.barrier()
            return []
        if rank == 0:
            assert suspended.wait(TIMEOUT_S)
            world.lose(1)
        values = program(comm)
        resumed.set()
        return values

    results = in_threads(range(4), work)
    assert results[0] == results[2] == results[3]
    assert results[0][-1] == 3


def test_exchange_that_fails_without_a_loss_is_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.comm.elastic.DECLARED_S", 0.3)

    def work(rank: int) -> list[float]:
        comm = Failing(world, rank)
        if rank == 0:
            comm._leave()
        with pytest.raises(CommunicationError, match="declared lost"):
            comm.barrier()
        return []

    assert len(in_threads(range(4), work)) == 4


def test_rank_that_was_started_again_joins_between_epochs(world: World) -> None:
    trained, restarted = threading.Barrier(4), threading.Event()

    def epochs(comm: ElasticCommunicator, first: int, joined: list[int]) -> Iterator[float]:
        for epoch in range(first, 4):
            if epoch == 2 and first == 0:
                trained.wait(TIMEOUT_S)
                assert restarted.wait(TIMEOUT_S)
            if epoch > first or first == 0:  # who returns has joined
                joined += comm.admit()
            total = torch.tensor([1.0])
            comm.all_reduce(total, "sum")
            yield total.item()

    def work(rank: int) -> list[float]:
        joined: list[int] = []
        comm = Failing(world, rank, 1 if rank == 1 else None)
        results = [*epochs(comm, 0, joined)]
        assert joined == [1]
        assert comm.changed
        return results

    def restart() -> list[float]:
        trained.wait(TIMEOUT_S)
        world.add(1, "waiting", incarnation=1)
        restarted.set()
        joined: list[int] = []
        comm = Failing(world, 1)
        assert comm.changed
        results = [*epochs(comm, 2, joined)]
        assert joined == []
        return results

    with ThreadPoolExecutor(1) as pool:
        returning = pool.submit(restart)
        results = in_threads(range(4), work)
        assert returning.result() == [4.0, 4.0]
    assert results == {rank: [3.0, 3.0, 4.0, 4.0] for rank in (0, 2, 3)}
