"""Mistakes of ranks that take turns: state that another rank gets, time, and the end of failed runs."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.unit.training import SMALL
from trainer.comm.base import CommunicationError
from trainer.core.trace import Kind
from trainer.spec.run_spec import RunSpec
from trainer.time_model.described import cluster_of_run
from trainer.training.task import Task
from trainer.virtual import run as module
from trainer.virtual.clock import StepCosts, VirtualClock
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.options import MEASURED, VirtualOptions
from trainer.virtual.run import in_turns, session_kind

PRICED = VirtualOptions(seconds_per_sample=0.01)


def spec_of(nodes: int, **fields: Any) -> RunSpec:
    run = {**SMALL, "strategy": "all_reduce", "transport": "gloo", "nodes": nodes}
    return RunSpec.model_validate({**run, **fields})


def errors_in_turns(
    body: Callable[[VirtualCommunicator], object], nodes: int = 2, options: VirtualOptions = MEASURED
) -> dict[int, str]:
    """Run `body` on every rank in training. Returns what the ranks raised."""
    errors: dict[int, str] = {}

    def caught(comm: VirtualCommunicator) -> None:
        comm.clock.start()
        try:
            body(comm)
        except (CommunicationError, ValueError) as error:
            errors[comm.rank] = str(error)
            comm.abort()

    in_turns(caught, spec_of(nodes), options)
    return errors


# State


@pytest.mark.parametrize(
    "block",
    [torch.inference_mode(), torch.autocast("cpu"), None],
    ids=["inference", "autocast", "backward"],
)
def test_an_exchange_whose_state_a_coroutine_would_lose_is_refused(block: Any) -> None:
    def body(comm: VirtualCommunicator) -> None:
        if block:
            with block:
                comm.barrier()
        loss = torch.ones(1, requires_grad=True) * 2
        loss.register_hook(lambda _: comm.barrier())
        loss.backward()

    assert "needs_thread" in errors_in_turns(body)[0]


def test_ranks_pause_with_a_state_of_autograd_of_their_own() -> None:
    found: dict[int, list[bool]] = {}
    saved: list[tuple[int, str]] = []

    def hooks(comm: VirtualCommunicator, name: str) -> saved_tensors_hooks:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append((comm.rank, name))
            return tensor

        return saved_tensors_hooks(pack, lambda tensor: tensor)

    def body(comm: VirtualCommunicator) -> None:
        comm.barrier()
        with torch.set_grad_enabled(comm.rank == 1), hooks(comm, "outer"), hooks(comm, "inner"):
            comm.barrier()
            product = torch.ones(1, requires_grad=True) * torch.ones(1)
            found[comm.rank] = [torch.is_grad_enabled(), product.requires_grad]
            comm.barrier()
        found[comm.rank].append(torch.is_grad_enabled())
        torch.ones(1, requires_grad=True) * torch.ones(1)

    assert errors_in_turns(body) == {}
    assert found == {0: [False, False, True], 1: [True, True, True]}
    assert saved == [(1, "inner")]


@pytest.mark.parametrize("kind", ["strategy", "model", "optimizer"])
def test_components_of_users_have_a_module_of_their_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their code may keep state in it."""
    task = Task(spec_of(2), Path())
    assert session_kind(task, None) is not None
    monkeypatch.setattr(module, "ImportedComponent", type(getattr(task.spec, kind)))
    assert session_kind(task, None) is None


# Time


def test_a_rank_does_not_pay_for_the_work_of_others() -> None:
    measured: list[float] = []

    def body(comm: VirtualCommunicator) -> None:
        comm.barrier()
        if comm.rank == 1:
            with comm.clock.phase("compute"):
                until = time.thread_time() + 0.2
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
    clock = VirtualClock(0.5, StepCosts(lambda samples: samples * 1.0, update_s=0.25))
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
    assert (clock.charged_s, clock.take_work()) == (2.25, ("compute", 2.25))
    assert clock.take_work()[1] == 0.0


def test_every_rank_has_a_core() -> None:
    spec = spec_of(2, processes_per_node=2, cpus=0.5, node_speed=[1, 0.5])
    cluster = cluster_of_run(spec)
    assert [cluster.speed_of(rank) for rank in range(4)] == [1, 1, 0.5, 0.5]


# Failures


def test_ranks_that_wait_for_each_other_are_named_and_one_that_is_alone_first() -> None:
    def body(comm: VirtualCommunicator) -> None:
        if comm.rank == 7:
            comm.recv(torch.zeros(1), source=6)
        comm.barrier()

    errors = errors_in_turns(body, 9)
    assert errors.keys() == {*range(9)}
    (message,) = {*errors.values()}
    assert message.endswith("rank 7 (receive of 4 bytes, peer 6); rank 0 (barrier), as 7 other ranks")


def test_of_many_states_a_message_names_four() -> None:
    def body(comm: VirtualCommunicator) -> None:
        comm.recv(torch.zeros(comm.rank + 1), source=(comm.rank + 1) % comm.size)

    message = errors_in_turns(body, 6)[0]
    assert message.count("receive of") == 4
    assert message.endswith("; and 2 other states")


@pytest.mark.parametrize("phase", ["compute", "evaluate"])
def test_different_collectives_of_a_group_are_an_error(phase: str) -> None:
    def body(comm: VirtualCommunicator) -> None:
        with comm.clock.phase(phase):  # type: ignore[arg-type]
            comm.all_reduce(torch.zeros(2 + comm.rank), "sum")

    errors = errors_in_turns(body)
    assert errors.keys() == {0, 1}
    assert errors[1] == "rank 1 calls all_reduce of 12 bytes, where others call all_reduce of 8 bytes"


def test_the_failure_of_a_rank_ends_the_others() -> None:
    def body(comm: VirtualCommunicator) -> None:
        if comm.rank == 2:
            raise ValueError("mine")
        comm.barrier()
        comm.barrier()

    errors = errors_in_turns(body, 4)
    assert errors.pop(2) == "mine"
    assert errors.keys() == {0, 1, 3}
    assert all("another rank" in error for error in errors.values())


def test_a_peer_that_does_not_exist_is_an_error() -> None:
    for peer in (-1, 2):
        for call in ("send", "recv"):
            errors = errors_in_turns(lambda comm: getattr(comm, call)(torch.zeros(1), peer))  # noqa: B023
            assert errors[0] == f"there is no rank {peer}; the group has 2"


def test_a_price_that_nobody_pays_is_an_error() -> None:
    """As with a strategy that computes gradients itself."""

    def body(comm: VirtualCommunicator) -> None:
        comm.barrier()
        comm.close()

    assert errors_in_turns(body) == {}
    errors = errors_in_turns(body, options=PRICED)
    assert errors.keys() == {0, 1}
    assert any("virtual.seconds_per_sample" in error for error in errors.values())


def test_a_group_of_some_ranks_has_no_requests() -> None:
    def body(comm: VirtualCommunicator) -> None:
        comm.requests(1.0)
        with pytest.raises(CommunicationError, match="those of all ranks"):
            comm.split(int(comm.rank > 0)).requests(1.0)

    assert errors_in_turns(body, 3) == {}


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 4096), (1124, 4096)),
        ((1024, 1100), (1100, 1100)),
        ((1024, resource.RLIM_INFINITY), (1124, resource.RLIM_INFINITY)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_open_files_are_allowed_up_to_the_hard_limit(
    limits: tuple[int, int], raised: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: found.append(both))
    module._allow_files(100)
    assert found == [raised] * (raised is not None)
