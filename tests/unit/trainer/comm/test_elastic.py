"""Mistakes of ranks that outlive a loss: results that differ, shared buffers, waits without end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import FileStore

from tests.unit.view_model import Setting, search
from trainer.comm import elastic_gloo, views
from trainer.comm.elastic import ElasticCommunicator, Group, Groups, SourceLost
from trainer.comm.elastic_gloo import GlooGroup, GlooGroups
from trainer.comm.errors import CommunicationError
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.sockets import open_sockets
from trainer.comm.views import Operate, Survivor
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import Event
from trainer.core.membership import MembershipTracker

TIMEOUT_S = 30.0
SIZE = 4


class Lost(Exception):
    """Ends the thread of a rank that is lost."""


class World:
    """All ranks of a test: their groups, and the file with the membership."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.Lock()
        self.groups: dict[str, ThreadGroup] = {}
        self.started: list[ElasticCommunicator] = []
        self.tracker = MembershipTracker(dict.fromkeys(range(SIZE), ""), range(0), {})
        for rank in range(SIZE):
            self.add(rank, "train_start")

    def add(self, rank: int, kind: str, **fields: Any) -> None:
        """Add an event of a rank, which all see at once."""
        with self.lock:
            self.tracker.add(Event(0.0, "", rank, "", kind, fields))
            self.tracker.current.write(self.path)

    def lose(self, rank: int) -> None:
        self.add(rank, "died", cause="killed")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path / "membership.json")
    yield found
    for comm in found.started:
        comm.abort()
    for thread in threading.enumerate():
        if thread.name == "membership":
            thread.join(TIMEOUT_S)


class ThreadsGroup(MemoryCommunicator, Group):
    """A group of threads."""

    leave = interrupt = MemoryCommunicator.abort


class ThreadsGroups(Groups):
    """Groups of the threads of a World."""

    def __init__(self, world: World, rank: int) -> None:
        self._world, self._rank = world, rank

    def first(self) -> Group:
        return self.form("first", range(SIZE), 0, "", lambda: False)

    def form(
        self, name: str, ranks: Sequence[int], host: int, address: str, give_up: Callable[[], bool]
    ) -> Group:
        shared = self._world.groups.setdefault(name, ThreadGroup(len(ranks), TIMEOUT_S))  # atomic
        return ThreadsGroup(ranks.index(self._rank), len(ranks), Clock(), shared)


class Failing(ElasticCommunicator):
    """Lets its rank be lost in the operation of a number, before or after it has taken part."""

    def __init__(self, world: World, rank: int, lost_in: int | None = None, after: bool = False) -> None:
        self._test, self._lost_in, self._after, self.own = world, lost_in, after, rank
        world.started.append(self)
        context = NodeContext(rank, SIZE, "gloo", Path(), incarnation=world.tracker.lost.get(rank, 0))
        events: Any = SimpleNamespace(write=partial(world.add, rank))
        super().__init__(context, Clock(), ThreadsGroups(world, rank), world.path, events)

    def _together(self, step: object) -> Any:
        if not isinstance(step, Operate) or self._survivor.completed != self._lost_in:
            return super()._together(step)
        if self._after:
            super()._together(step)
        self._test.lose(self.own)  # first: the others look at once, and not for long in some tests
        self._leave()
        raise Lost


def in_threads(work: Callable[[int], Any]) -> dict[int, Any]:
    """What `work` returns for each rank that is not lost."""

    def caught(rank: int) -> Any:
        try:
            return work(rank)
        except Lost as lost:
            return lost

    with ThreadPoolExecutor(SIZE) as pool:
        found = enumerate(pool.map(caught, range(SIZE)))
    return {rank: result for rank, result in found if not isinstance(result, Lost)}


def program(comm: Failing) -> list[float]:
    """Three rounds of the operations that have one result for all ranks, and these: each of 4 numbers."""
    results = []
    for number in range(3):
        own = torch.full((4,), comm.own + 1.0)
        comm.all_reduce(own, "sum")
        gathered, sent = comm.all_gather(torch.tensor([comm.own + 1.0])), torch.tensor([float(number)])
        comm.broadcast(sent, root=comm.size - 1)
        comm.barrier()
        results += [own[0].item(), gathered.sum().item(), sent.item(), float(comm.size)]
    comm.barrier()  # ranks that have completed the last operation help those that have not
    return results


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("lost_in", [0, 1, 2, 3, 10])  # each operation of the first round, and the last
def test_survivors_agree_on_every_result(world: World, lost_in: int, after: bool) -> None:
    """Results of all ranks until rank 1 is lost, and of the others then; of its last one, either."""
    results = in_threads(lambda rank: program(Failing(world, rank, lost_in if rank == 1 else None, after)))
    assert results.keys() == {0, 2, 3}
    (values,) = {tuple(each) for each in results.values()}
    whole = []
    for at, value in enumerate(values):
        if at % 4 == 2:  # a broadcast needs its source, which is the last rank here
            assert value == at // 4
            continue
        of_all, of_others = (4, 3) if at % 4 == 3 else (10, 8)
        assert value == of_all or at >= lost_in - 1
        assert value == of_others or at < lost_in + after
        assert value in (of_all, of_others)
        whole.append(value == of_all)
    assert whole == sorted(whole, reverse=True)


def test_one_that_is_left_alone_continues(world: World) -> None:
    """The others are lost in different operations."""
    lost = {0: 1, 1: 2, 2: 7}
    results = in_threads(lambda rank: program(Failing(world, rank, lost.get(rank))))
    assert {rank: values[-4:] for rank, values in results.items()} == {3: [4.0, 4.0, 2.0, 1.0]}


@pytest.mark.parametrize("lost_in", [0, 4])
def test_neighbours_of_a_lost_rank_continue_to_shift(world: World, lost_in: int) -> None:
    """Ranks may be several shifts apart when one is lost; then all have done equally many."""

    def work(rank: int) -> list[float]:
        comm = Failing(world, rank, lost_in if rank == 2 else None)
        own = torch.tensor([float(rank)])
        for _ in range(6):
            comm.shift(own, 1)
        comm.all_reduce(total := own.clone(), "sum")
        return [*total.tolist(), float(comm.size), *comm.shift(own, 1).tolist()]

    # The sum, the size, and the value of the neighbour in a new ring.
    assert in_threads(work) == {0: [4.0, 3.0, 3.0], 1: [4.0, 3.0, 0.0], 3: [4.0, 3.0, 1.0]}


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

    assert in_threads(work) == {rank: [float(rank)] for rank in range(SIZE)}


@pytest.fixture
def impatient(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("trainer.comm.elastic.DECLARED_S", 0.3)
    return world


def test_broadcast_fails_if_its_source_is_lost(impatient: World) -> None:
    def work(rank: int) -> None:
        comm = Failing(impatient, rank, 0 if rank == 0 else None)
        with pytest.raises(SourceLost, match="node 0"):
            comm.broadcast(torch.tensor([1.0]), root=0)

    assert in_threads(work).keys() == {1, 2, 3}


def test_exchange_that_fails_without_a_loss_is_an_error(impatient: World) -> None:
    def work(rank: int) -> None:
        comm = Failing(impatient, rank)
        if rank == 0:
            comm._leave()
        with pytest.raises(CommunicationError, match="declared lost"):
            comm.barrier()

    assert len(in_threads(work)) == SIZE


def test_rank_that_was_declared_lost_by_mistake_ends(world: World) -> None:
    """As a node that was cut off the network and comes back."""
    apart, resumed = threading.Barrier(SIZE), threading.Event()

    def work(rank: int) -> list[float]:
        comm = Failing(world, rank)
        comm.barrier()
        apart.wait(TIMEOUT_S)
        if rank == 1:
            world.lose(1)
            assert resumed.wait(TIMEOUT_S)
            with pytest.raises(CommunicationError, match="without this one"):
                comm.barrier()
            return [8.0, 8.0, 2.0, 3.0]
        values = program(comm)
        resumed.set()
        return values[-4:]

    assert in_threads(work) == {rank: [8.0, 8.0, 2.0, 3.0] for rank in range(SIZE)}


# Groups over gloo


@pytest.fixture
def _left_alone() -> Iterator[None]:
    """Wait for operations that are left alone: gloo may abort a process that ends meanwhile."""
    before = {*threading.enumerate()}
    yield
    for thread in {*threading.enumerate()} - before:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.usefixtures("_left_alone")
def test_group_without_a_member_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 1 has arrived, and is lost before it connects. Gloo itself would wait for it until a timeout."""
    monkeypatch.setattr(elastic_gloo, "CONNECT_S", 1.0)
    rendezvous = str(tmp_path / "rendezvous")
    FileStore(f"{rendezvous}-view-1").set("here/1", "")
    context = NodeContext(0, 2, "gloo", tmp_path, timeout_s=120, rendezvous=rendezvous)
    asked = count(1)
    with pytest.raises(CommunicationError, match="a member was lost"):
        GlooGroups(context, Clock()).form("view-1", [0, 1], 0, "", lambda: next(asked) > 3)
    assert next(asked) == 5


def test_interrupt_ends_the_connections_of_its_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection closes while the group is interrupted, and a new one gets its descriptor."""
    with ExitStack() as stack:
        pairs = [[stack.enter_context(each) for each in socket.socketpair()] for _ in range(3)]
        (kept, its_peer), (closed, _), (new, its_new_peer) = pairs
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sockets = {each.fileno(): open_sockets()[each.fileno()] for each in (listener, kept, closed)}
        duplicate, number = os.dup, closed.fileno()

        def dup(each: int) -> int:
            return duplicate(os.dup2(new.fileno(), number) if each == number else each)

        monkeypatch.setattr(os, "dup", dup)
        GlooGroup(0, 2, Clock(), None, sockets).interrupt()
        assert its_peer.recv(1, socket.MSG_DONTWAIT) == b""
        with pytest.raises(BlockingIOError):
            its_new_peer.recv(1, socket.MSG_DONTWAIT)
        socket.create_connection(listener.getsockname()).close()  # it still listens


@pytest.mark.usefixtures("_left_alone")
def test_interrupt_ends_an_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo itself would wait for the rest of a message until a timeout, which is that of the run."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(elastic_gloo, "CONNECT_S", 1.0)

    def group(rank: int) -> GlooGroup:
        context = NodeContext(rank, 2, "gloo", tmp_path, timeout_s=4, rendezvous=f"{tmp_path}/rendezvous")
        formed = GlooGroups(context, Clock()).form("view-1", [0, 1], 0, "", lambda: False)
        assert isinstance(formed, GlooGroup)
        return formed

    message = torch.ones(40_000_000)

    def late(group: GlooGroup) -> torch.Tensor:
        time.sleep(1.5 * group.rank)
        return group._shift(torch.ones(1), 1 - group.rank, 1 - group.rank)

    with ThreadPoolExecutor(2) as threads:
        groups = [*threads.map(group, range(2))]
        assert [*threads.map(late, groups)] == [1, 1]
        shifts = [threads.submit(each._shift, message, 1 - each.rank, 1 - each.rank) for each in groups]
        time.sleep(0.02)
        for each in groups:
            each.interrupt()
        for shift in shifts:
            with pytest.raises(CommunicationError):
                shift.result(timeout=3)


# The protocol; `make soak` searches larger settings

SMALL = Setting(3, losses=1, returns=1)
SHIFTS = Setting(4, shifts=True, lost=True, losses=1, epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [SMALL, SHIFTS], ids=["returns", "shifts"])
def test_every_live_rank_finishes_and_agrees_on_every_result(setting: Setting) -> None:
    found = search(setting)
    assert found.wrong is None
    assert found.states > 10_000  # the search is not cut short


def test_a_rank_joins_once_all_members_know_that_it_waits() -> None:
    assert views.known_to_all([[-1, 3], [-1, 3]]) == (1, 3)
    assert views.known_to_all([[-1, 3], [-1, -1]]) is None  # one member does not know it yet
    assert views.known_to_all([[-1, 3], [-1, 4]]) is None  # it was lost and has returned
    assert views.known_to_all([[0, 3], [-1, 3]]) == (1, 3)
    assert views.known_to_all([[2, 3], [2, 3]]) == (0, 2)


def test_a_member_that_has_finished_is_not_lost() -> None:
    for kind, lost in (("done", False), ("died", True)):
        tracker = MembershipTracker({0: "", 1: ""}, range(0), {})
        for rank, each in ((0, "train_start"), (1, "train_start"), (1, kind)):
            tracker.add(Event(0.0, "", rank, "", each, {"cause": "killed"}))
        assert Survivor(0, 0, 2).lacks_member(tracker.current) == lost
