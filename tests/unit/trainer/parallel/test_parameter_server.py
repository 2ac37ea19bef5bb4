"""The server of async_parameter_server in one process: order and timing of its replies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.futures import Future

from trainer.comm import rpc_requests
from trainer.comm.base import CommunicationError
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.parallel import parameter_server as module
from trainer.parallel.parameter_server import BoundedStaleness, Server

# Bounded staleness


def test_steps_ahead_are_unlimited_without_a_bound() -> None:
    progress = BoundedStaleness({1: 1000, 2: 1000}, None)
    for _ in range(999):
        progress.complete_step(1)
    assert progress.may_start_step(1)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_worker_starts_a_step_further_ahead_than_the_bound(bound: int) -> None:
    progress = BoundedStaleness({1: 100, 2: 100, 3: 100}, bound)
    for _ in range(bound):
        progress.complete_step(1)
        assert progress.may_start_step(1)
    progress.complete_step(1)
    assert not progress.may_start_step(1)
    assert progress.may_start_step(2)
    progress.complete_step(2)
    assert not progress.may_start_step(1)  # worker 3 is the slowest
    progress.complete_step(3)
    assert progress.may_start_step(1)


def test_workers_that_have_finished_the_epoch_do_not_delay_others() -> None:
    progress = BoundedStaleness({1: 10, 2: 1, 3: 0}, 0)
    progress.complete_step(1)
    assert not progress.may_start_step(1)
    progress.complete_step(2)
    assert progress.unfinished == [1]
    for _ in range(9):
        assert progress.may_start_step(1)
        progress.complete_step(1)
    assert progress.unfinished == []


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
