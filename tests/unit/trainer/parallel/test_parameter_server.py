"""Mistakes of async_parameter_server: staleness by one, the order of replies, lost workers, booked time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.futures import Future

from tests.unit.conftest import FakeTime
from trainer.comm import rpc_requests
from trainer.comm.base import CommunicationError
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.requests import Request, Requests
from trainer.core.clock import Clock
from trainer.parallel import parameter_server as module
from trainer.parallel.parameter_server import BoundedStaleness, Server, Worker


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.sampled_from([None, 0, 1, 3]),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30),
)
def test_a_worker_is_at_most_as_far_ahead_of_the_slowest_unfinished_one_as_allowed(
    steps: list[int], bound: int | None, events: list[tuple[int, bool]]
) -> None:
    """Whatever workers complete steps in which order, and some are lost."""
    progress = BoundedStaleness(dict(enumerate(steps, start=1)), bound)
    left, done = dict(enumerate(steps, start=1)), dict.fromkeys(range(1, len(steps) + 1), 0)
    for number, lost in events:
        rank = number % len(steps) + 1
        if lost and number == 3:
            progress.drop(rank)
            left[rank] = 0
        elif left[rank]:
            progress.complete_step(rank)
            left[rank] -= 1
            done[rank] += 1
        unfinished = [each for each in left if left[each]]
        assert progress.unfinished == unfinished
        for each in unfinished:
            ahead = done[each] - min(done[other] for other in unfinished)
            assert progress.may_start_step(each) == (bound is None or ahead <= bound)


# Requests


class Parameters:
    """A replica with parameters only."""

    def __init__(self) -> None:
        self.flat = torch.zeros(5)

    def flat_parameters(self) -> torch.Tensor:
        return self.flat.clone()


class ServerOfTwo:
    """A server with two workers; the test makes their requests. A step adds the gradient."""

    def __init__(self, bound: int | None, timeout_s: float = 5.0) -> None:
        self.replica: Any = Parameters()
        self.comm = MemoryCommunicator(0, 3, Clock(), ThreadGroup(3))
        self.comm.clock.start()
        self.server = Server(
            self.replica, self.comm, rpc_requests.RpcRequests(self.comm, timeout_s), timeout_s
        )
        self.server.start_epoch(BoundedStaleness({1: 100, 2: 100}, bound))

    def pull(self, rank: int) -> Future[Any]:
        return rpc_requests._arrive(rank, None)

    def push(self, rank: int) -> Future[Any]:
        return rpc_requests._arrive(rank, torch.ones(5))

    def step(self) -> None:
        with self.server.next_push() as gradient:
            self.replica.flat += gradient


@pytest.fixture(autouse=True)
def empty_queue() -> Iterator[None]:
    yield
    while not rpc_requests._arrived.empty():
        rpc_requests._arrived.get()


def test_staleness_counts_updates_of_other_workers_between_pull_and_push() -> None:
    endpoint = ServerOfTwo(None)
    slow = endpoint.pull(2)
    staleness = []
    for number in range(4):
        pulled, pushed = endpoint.pull(1), endpoint.push(1)
        endpoint.step()
        assert torch.equal(pulled.value()[0], torch.full((5,), float(number)))
        staleness.append(pushed.value()[0])
    assert torch.equal(slow.value()[0], torch.zeros(5))  # the weights at the time of the pull
    late = endpoint.push(2)
    endpoint.step()
    assert staleness == [0, 0, 0, 0]
    assert late.value()[0] == 4
    assert endpoint.comm.traffic.bytes_sent == 5 * 5 * 4  # five pulls of five float32 values


def test_a_pull_beyond_the_bound_waits_for_the_slowest_worker() -> None:
    endpoint = ServerOfTwo(0)
    endpoint.pull(1), endpoint.pull(2), endpoint.push(1)
    waiting = endpoint.pull(1)
    endpoint.push(2)
    endpoint.step()
    assert not waiting.done()
    endpoint.step()
    weights, in_server_s = waiting.value()
    assert torch.equal(weights, torch.full((5,), 2.0))
    assert 0 <= in_server_s < 5


def test_lost_workers_are_dropped_and_those_ahead_of_them_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that a lost worker has made before is left out."""
    monkeypatch.setattr(module, "CHECK_S", 0.0)
    endpoint, lost = ServerOfTwo(0), set[int]()
    monkeypatch.setattr(endpoint.comm, "leave_lost", lambda: lost)
    endpoint.pull(1), endpoint.push(1)
    endpoint.step()
    waiting = endpoint.pull(1)
    lost.add(2)
    late, push = endpoint.push(2), endpoint.push(1)
    endpoint.step()
    assert torch.equal(waiting.value()[0], torch.ones(5))
    assert (push.done(), late.done()) == (True, False)
    lost.add(1)
    with endpoint.server.next_push() as gradient:
        assert gradient is None


def test_time_in_the_server_is_waiting_and_the_rest_communication() -> None:
    class Asked(Requests):
        def ask(self, server: int, payload: torch.Tensor | None, doing: str) -> tuple[int, float]:
            now.pass_(5.0)
            return server, 3.0

        def take(self, timeout_s: float) -> None: ...
        def answer(self, request: Request, value: torch.Tensor | int) -> None: ...

    now = FakeTime()
    comm = MemoryCommunicator(1, 2, Clock(now, now), ThreadGroup(2))
    comm.clock.start()
    worker = Worker(comm, Asked())
    worker.pull()
    assert worker.push(torch.ones(5)) == module.SERVER
    assert (comm.clock.seconds["communicate"], comm.clock.seconds["wait"]) == (4.0, 6.0)
    assert comm.bytes_sent == 20


def test_requests_name_the_rank_in_the_run_also_when_others_are_lost() -> None:
    comm = MemoryCommunicator(1, 2, Clock(), ThreadGroup(2))
    comm.parent_ranks = (0, 3)
    assert rpc_requests.RpcRequests(comm, 5.0)._rank == 3


def test_a_push_is_answered_after_its_step() -> None:
    endpoint = ServerOfTwo(None)
    endpoint.pull(1)
    push = endpoint.push(1)
    with endpoint.server.next_push():
        assert not push.done()
    assert push.done()


def test_a_timeout_names_the_missing_workers() -> None:
    with pytest.raises(CommunicationError, match=r"node 1, 2\b.*\b0\.2 s"):
        ServerOfTwo(None, timeout_s=0.2).step()


def test_a_dead_worker_is_noticed_while_others_send_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(heartbeat: Any) -> None:
        if heartbeat._rank == 2:
            raise CommunicationError("node 2 is gone")

    monkeypatch.setattr(rpc_requests.Heartbeat, "check", check)
    monkeypatch.setattr(module, "CHECK_S", 0.0)
    endpoint = ServerOfTwo(None)
    endpoint.push(1)
    with pytest.raises(CommunicationError, match="node 2 is gone"):
        endpoint.step()
