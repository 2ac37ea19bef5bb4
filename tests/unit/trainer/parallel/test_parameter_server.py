"""Mistakes of async_parameter_server: staleness by one, the order of replies, lost workers, booked time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tests.unit.conftest import FakeTime
from trainer.comm.errors import CommunicationError
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.requests import Request, Requests
from trainer.comm.rpc_requests import RpcRequests
from trainer.core.clock import Clock
from trainer.parallel import parameter_server as module
from trainer.parallel.parameter_server import BoundedStaleness, Server, Worker


class ServerOfTwo(Requests):
    """A server with two workers, whose requests the test makes. A step adds the gradient, of ones.

    answers: the rank of a worker, with the staleness of its push or the weights of its pull.
    """

    def __init__(self, bound: int | None = None, timeout_s: float = 5.0) -> None:
        self.waiting: deque[Request] = deque()
        self.answers: list[tuple[int, Any]] = []
        self.dead: set[int] = set()
        self.weights = torch.zeros(5)
        self.comm = MemoryCommunicator(0, 3, Clock(), ThreadGroup(3))
        self.comm.clock.start()
        replica: Any = SimpleNamespace(flat_parameters=lambda: self.weights.clone())
        self.server = Server(replica, self.comm, self, timeout_s)
        self.server.start_epoch(BoundedStaleness({1: 100, 2: 100}, bound))

    def ask(self, *_: Any) -> Any: ...

    def take(self, timeout_s: float) -> Request | None:
        return self.waiting.popleft() if self.waiting else None

    def answer(self, request: Request, value: torch.Tensor | int) -> None:
        self.answers.append((request.rank, value if isinstance(value, int) else value.unique().tolist()))

    def check(self, ranks: Iterable[int]) -> None:
        for rank in self.dead.intersection(ranks):
            raise CommunicationError(f"node {rank} is gone")

    def step(self, pulls: tuple[int, ...], pushes: tuple[int, ...]) -> list[tuple[int, Any]]:
        """Apply the first push. Returns the answers since the last step."""
        before = len(self.answers)
        self.waiting += [Request(rank, None) for rank in pulls]
        self.waiting += [Request(rank, torch.ones(5)) for rank in pushes]
        with self.server.next_push() as gradient:
            assert gradient is not None
            self.weights += gradient
        return self.answers[before:]


def test_staleness_counts_updates_of_other_workers_between_pull_and_push() -> None:
    endpoint = ServerOfTwo()
    assert endpoint.step((2, 1), (1,)) == [(2, [0.0]), (1, [0.0]), (1, 0)]
    for number in range(1, 4):
        assert endpoint.step((1,), (1,)) == [(1, [float(number)]), (1, 0)]
    assert endpoint.step((), (2,)) == [(2, 4)]
    assert endpoint.comm.traffic.bytes_sent == 5 * 5 * 4  # five pulls of five float32 values


def test_a_pull_beyond_the_bound_waits_for_the_slowest_worker_and_a_push_for_its_step() -> None:
    endpoint = ServerOfTwo(bound=0)
    assert endpoint.step((1, 2), (1,)) == [(1, [0.0]), (2, [0.0]), (1, 0)]
    endpoint.waiting += [Request(1, None), Request(2, torch.ones(5))]
    with endpoint.server.next_push():
        assert endpoint.answers[3:] == []
    assert endpoint.answers[3:] == [(2, 1), (1, [1.0])]


def test_lost_workers_are_dropped_and_those_ahead_of_them_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that waits for a lost worker is answered, and a request that this one has made is left out."""
    monkeypatch.setattr(module, "CHECK_S", 0.0)
    endpoint = ServerOfTwo(bound=0)
    endpoint.step((1,), (1,))
    monkeypatch.setattr(endpoint.comm, "leave_lost", lambda: {2} if len(endpoint.waiting) == 2 else set())
    assert endpoint.step((1,), (2, 1)) == [(1, [1.0]), (1, 0)]
    monkeypatch.setattr(endpoint.comm, "leave_lost", lambda: {1, 2})
    with endpoint.server.next_push() as gradient:
        assert gradient is None


def test_missing_and_dead_workers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommunicationError, match=r"node 1, 2\b.*\b0\.1 s"):
        ServerOfTwo(timeout_s=0.1).step((), ())
    monkeypatch.setattr(module, "CHECK_S", 0.0)
    endpoint = ServerOfTwo()
    endpoint.dead.add(2)
    with pytest.raises(CommunicationError, match="node 2 is gone"):
        endpoint.step((), (1,))  # others go on


def test_time_in_the_server_is_waiting_and_the_rest_communication() -> None:
    now = FakeTime()
    comm = MemoryCommunicator(1, 2, Clock(now, now), ThreadGroup(2))
    comm.clock.start()
    requests = MagicMock()
    requests.ask.side_effect = lambda server, *_: now.pass_(5.0) or (server, 3.0)
    worker = Worker(comm, requests)
    worker.pull()
    assert worker.push(torch.ones(5)) == module.SERVER
    assert (comm.clock.seconds["communicate"], comm.clock.seconds["wait"]) == (4.0, 6.0)
    assert comm.bytes_sent == 20


def test_requests_name_the_rank_in_the_run_also_when_others_are_lost() -> None:
    comm = MemoryCommunicator(1, 2, Clock(), ThreadGroup(2))
    comm.parent_ranks = (0, 3)
    assert RpcRequests(comm, 5.0)._rank == 3
