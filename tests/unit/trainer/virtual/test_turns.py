"""Mistakes of ranks that take turns: state that another rank gets, time, and the end of failed runs."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.unit.training import SMALL
from trainer.comm.errors import CommunicationError
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task
from trainer.virtual import run as module
from trainer.virtual.clock import StepCosts, VirtualClock
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.options import MEASURED, VirtualOptions
from trainer.virtual.run import in_turns, session_kind

Body = Callable[[VirtualCommunicator], object]


def spec_of(nodes: int) -> RunSpec:
    return RunSpec(**SMALL, strategy="all_reduce", transport="gloo", nodes=nodes)


def errors_in_turns(body: Body, nodes: int = 2, options: VirtualOptions = MEASURED) -> dict[int, str]:
    """Run `body` on every rank in training. Returns what the ranks raised."""
    errors: dict[int, str] = {}

    def caught(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        try:
            body(comm)
        except CommunicationError as error:
            errors[comm.rank] = str(error)
            comm.abort()

    in_turns(caught, spec_of(nodes), StepCosts.given(options))
    return errors


# State


def test_ranks_pause_with_a_state_of_autograd_of_their_own() -> None:
    found: dict[int, list[bool]] = {}
    saved: list[tuple[int, str]] = []

    def pack(rank: int, name: str, tensor: torch.Tensor) -> torch.Tensor:
        saved.append((rank, name))
        return tensor

    def body(comm: VirtualCommunicator) -> None:
        packs = (partial(pack, comm.rank, name) for name in ("outer", "inner"))
        outer, inner = (saved_tensors_hooks(each, lambda tensor: tensor) for each in packs)
        with torch.set_grad_enabled(comm.rank == 1), outer, inner:
            comm.barrier()
            product = torch.ones(1, requires_grad=True) * torch.ones(1)
            found[comm.rank] = [torch.is_grad_enabled(), product.requires_grad]
            comm.barrier()
        found[comm.rank].append(torch.is_grad_enabled())
        torch.ones(1, requires_grad=True) * torch.ones(1)

    assert errors_in_turns(body) == {}
    assert found == {0: [False, False, True], 1: [True, True, True]}
    assert saved == [(1, "inner")]


def test_components_of_users_have_a_module_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their code may keep state in it."""
    task = Task(spec_of(2), Path())
    assert session_kind(task, None) is not None
    for component in (task.spec.strategy, task.spec.model, task.spec.optimizer):
        monkeypatch.setattr(module, "ImportedComponent", type(component))
        assert session_kind(task, None) is None


# Time


def test_a_rank_does_not_pay_for_the_work_of_others() -> None:
    measured: list[float] = []

    def body(comm: VirtualCommunicator) -> None:
        comm.barrier()
        with comm.clock.phase("compute"):
            until = time.thread_time() + 0.2 * comm.rank
            while time.thread_time() < until:
                pass
        with comm.clock.phase("compute"):
            comm.node.pause((int(Kind.BARRIER), 0, -1, 0, 0.0, 0.0, 0.0))
        comm.clock.stop()
        measured.append(comm.clock.cpu_seconds["compute"])

    assert errors_in_turns(body) == {}
    assert min(measured) < 0.1 < max(measured)


def test_charged_work_counts_once_and_in_training_only() -> None:
    """Also work that is charged in another phase: it is no time of that phase."""
    clock = VirtualClock(0.5, StepCosts(float, update_s=0.25))
    clock.charge(3)
    clock.start()
    with clock.phase("communicate"):
        clock.charge(2)
        clock.now_s += 10.0
    with clock.phase("evaluate"):
        clock.charge(3)
    clock.charge_update()
    clock.stop()
    clock.charge_update()
    assert clock.now_s == 10.0 + 2 * 2.25
    assert (clock.seconds["compute"], clock.seconds["communicate"]) == (2 * 2.25, 10.0)
    assert (clock.charged_s, clock.take_work(), clock.take_work()[1]) == (2.25, ("compute", 2.25), 0.0)


# Failures. test_workers.py has those that are alike in several processes.


def exchanges_in_a_backward_pass(comm: VirtualCommunicator) -> None:
    loss = torch.ones(1, requires_grad=True) * 2
    loss.register_hook(lambda _: comm.barrier())
    loss.backward()


def waits_for_a_message(comm: VirtualCommunicator) -> None:
    if comm.rank == 7:
        comm.recv(torch.zeros(1), source=6)
    comm.barrier()


STATES = r": (rank \d \(receive of \d+ bytes, peer \d\); ){4}and 2 other states$"
# What ranks do, how many there are, and the error of one of them.
FAILURES: list[tuple[Body, int, str]] = [
    (torch.inference_mode()(lambda comm: comm.barrier()), 2, "needs_thread"),
    (torch.autocast("cpu")(lambda comm: comm.barrier()), 2, "needs_thread"),
    (exchanges_in_a_backward_pass, 2, "needs_thread"),
    (waits_for_a_message, 9, r"rank 7 \(receive of 4 bytes, peer 6\); rank 0 \(barrier\), as 7 o"),
    (lambda comm: comm.recv(torch.zeros(comm.rank + 1), (comm.rank + 1) % comm.size), 6, STATES),
    (lambda comm: comm.all_reduce(torch.zeros(2 + comm.rank), "sum"), 2, "^rank 1 .* 12 .* others .* 8 b"),
    (lambda comm: comm.send(torch.zeros(1), -1), 2, "^there is no rank -1; the group has 2$"),
    (lambda comm: comm.recv(torch.zeros(1), 2), 2, "^there is no rank 2; the group has 2$"),
    (lambda comm: comm.split(comm.rank % 2).requests(1.0), 4, "those of all ranks"),
]


def test_failures_end_all_ranks_and_name_their_cause() -> None:
    for body, nodes, cause in FAILURES:
        errors = errors_in_turns(body, nodes)
        assert errors.keys() == {*range(nodes)}
        assert any(re.search(cause, each) for each in errors.values()), errors


def test_a_price_that_nobody_pays_is_an_error() -> None:
    """As with a strategy that computes gradients itself."""
    for options in (MEASURED, VirtualOptions(seconds_per_sample=0.01)):
        errors = errors_in_turns(lambda comm: (comm.barrier(), comm.close()), options=options)
        assert errors.keys() == (set() if options == MEASURED else {0, 1})
    assert any("virtual.seconds_per_sample" in error for error in errors.values())


def test_open_files_are_allowed_up_to_the_hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: found.append(both))
    unlimited = resource.RLIM_INFINITY
    for limits in ((1024, 4096), (1024, 1100), (1024, unlimited), (unlimited, unlimited)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        module._allow_files(100)
    assert found == [(1124, 4096), (1100, 1100), (1124, unlimited)]
