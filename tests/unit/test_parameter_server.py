"""The server's end of an asynchronous parameter server, alone in a process: what it answers, and when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.futures import Future

from trainer.comm.base import CommunicationError
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.parallel import parameter_server as module
from trainer.parallel.parameter_server import Progress, Server

# Who may go on


def test_without_a_bound_everybody_goes_on() -> None:
    progress = Progress({1: 1000, 2: 1000}, None)
    for _ in range(999):
        progress.step(1)
    assert progress.may_go_on(1)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_nobody_is_further_ahead_than_the_bound(bound: int) -> None:
    progress = Progress({1: 100, 2: 100, 3: 100}, bound)
    for _ in range(bound):
        progress.step(1)
        assert progress.may_go_on(1)
    progress.step(1)  # begun when it was not too far ahead
    assert not progress.may_go_on(1)
    assert progress.may_go_on(2)
    progress.step(2)
    assert not progress.may_go_on(1)  # 3 is the slowest
    progress.step(3)
    assert progress.may_go_on(1)


def test_who_has_no_samples_left_holds_nobody_back() -> None:
    progress = Progress({1: 10, 2: 1, 3: 0}, 0)
    progress.step(1)
    assert not progress.may_go_on(1)
    progress.step(2)
    assert progress.owing == [1]
    for _ in range(9):
        assert progress.may_go_on(1)
        progress.step(1)
    assert progress.owing == []


# What is answered


class Weights:
    """A replica that is nothing but parameters."""

    def __init__(self) -> None:
        self.flat = torch.zeros(5)

    def flat_parameters(self) -> torch.Tensor:
        return self.flat.clone()


class Desk:
    """A server of two workers, whose requests are put before it by hand. A gradient is added."""

    def __init__(self, bound: int | None, timeout_s: float = 5.0) -> None:
        self.replica: Any = Weights()
        self.comm = MemoryCommunicator(0, 3, Clock(), ThreadGroup(3))
        self.comm.clock.start()
        self.server = Server(self.replica, self.comm, timeout_s)
        self.server.begin(Progress({1: 100, 2: 100}, bound))

    def pull(self, rank: int) -> Future[Any]:
        return module._ask(rank, None)

    def push(self, rank: int) -> Future[Any]:
        return module._ask(rank, torch.ones(5))

    def step(self) -> None:
        with self.server.next_push() as gradient:
            self.replica.flat += gradient


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    yield
    while not module._requests.empty():
        module._requests.get()


def test_staleness_is_what_others_did_between_pull_and_push() -> None:
    desk = Desk(None)
    slow = desk.pull(2)
    told = []
    for number in range(4):
        pulled, pushed = desk.pull(1), desk.push(1)
        desk.step()
        assert torch.equal(pulled.value()[0], torch.full((5,), float(number)))
        told.append(pushed.value()[0])
    assert torch.equal(slow.value()[0], torch.zeros(5))  # as they were then
    late = desk.push(2)
    desk.step()
    assert told == [0, 0, 0, 0]  # of one's own updates none is foreign
    assert late.value()[0] == 4
    assert desk.comm.traffic.bytes_sent == 5 * 5 * 4  # five pulls of five numbers


def test_a_pull_of_one_too_far_ahead_waits_for_the_slowest() -> None:
    desk = Desk(0)
    desk.pull(1), desk.pull(2), desk.push(1)
    held = desk.pull(1)
    desk.push(2)
    desk.step()
    assert not held.done()
    desk.step()
    weights, held_s = held.value()
    assert torch.equal(weights, torch.full((5,), 2.0))
    assert 0 <= held_s < 5


def test_a_push_is_answered_when_its_step_is_taken() -> None:
    desk = Desk(None)
    desk.pull(1)
    push = desk.push(1)
    with desk.server.next_push():
        assert not push.done()
    assert push.done()


def test_who_owes_a_gradient_is_named_when_time_is_up() -> None:
    with pytest.raises(CommunicationError) as caught:
        Desk(None, timeout_s=0.2).step()
    assert str(caught.value) == "waiting for node 1, 2 failed: nothing came within 0.2 s"


def test_a_dead_worker_is_noticed_while_others_keep_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(knock: Any) -> None:
        if knock._rank == 2:
            raise CommunicationError("waiting for node 2 failed: gone")

    monkeypatch.setattr(module.Heartbeat, "again", again)
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    desk = Desk(None)
    desk.push(1)
    with pytest.raises(CommunicationError, match="node 2 failed: gone"):
        desk.step()
