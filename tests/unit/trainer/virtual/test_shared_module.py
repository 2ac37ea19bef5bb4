"""Mistakes in memory that ranks share: values of another rank, copies that cost memory, lost infinities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.training import SMALL
from trainer.core.clock import Clock
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.copy_on_write import have_same_memory, shared_copy
from trainer.virtual.run import in_turns
from trainer.virtual.shared_module import SharedModule, TurnReplica

SPEC = RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "transport": "gloo", "nodes": 3})


def in_turn(replica: TurnReplica) -> TurnReplica:
    replica._shared.give_to(replica)
    return replica


def test_weights_are_shared_until_one_rank_steps() -> None:
    shared = SharedModule(task := Task(SPEC, Path()))
    replicas = [TurnReplica(shared, task, Clock(), number, weights_seed=0) for number in range(2)]
    one, other = replicas
    assert have_same_memory(in_turn(one).weights(), in_turn(other).weights())  # both are initial
    for _ in range(2):
        average = torch.randn(len(one.weights()))
        for replica in replicas:
            in_turn(replica).set_weights(shared_copy(average))
        assert have_same_memory(in_turn(one).weights(), in_turn(other).weights())
        assert torch.equal(in_turn(one).weights(), average)
    in_turn(one).set_gradient(torch.ones(one.parameter_count))
    one.step()
    stepped = one.weights()
    assert not torch.equal(stepped, average)
    assert torch.equal(in_turn(other).weights(), average)
    assert torch.equal(in_turn(one).weights(), stepped)
    in_turn(other).set_weights(stepped)  # of this rank alone
    stepped.zero_()
    assert torch.equal(in_turn(other).weights(), in_turn(one).weights())


def found_in_turns(body: Callable[[VirtualCommunicator], Tensor]) -> dict[int, Tensor]:
    """What each of three ranks finds."""
    found: dict[int, Tensor] = {}

    def finding(comm: VirtualCommunicator) -> None:
        found[comm.rank] = body(comm)

    in_turns(finding, SPEC)
    return found


def test_absent_ranks_bring_nothing_to_a_mean_and_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    brought: dict[int, int] = {}
    meet = VirtualCommunicator._meet

    def recorded(comm: VirtualCommunicator, kind: Any, nbytes: int, brings: Tensor, *rest: Any) -> Any:
        brought[comm.rank] = brings.untyped_storage().nbytes()
        return meet(comm, kind, nbytes, brings, *rest)

    monkeypatch.setattr(VirtualCommunicator, "_meet", recorded)
    means = found_in_turns(
        lambda comm: comm.weighted_mean(torch.full((1000,), float(comm.rank)), comm.rank % 2)
    )
    assert brought == {0: 4, 1: 4004, 2: 4}
    assert have_same_memory(means[0], means[2])
    means[0].zero_()
    assert torch.equal(means[2], torch.ones(1000))


def test_values_that_are_not_finite_reach_the_mean_and_signs_of_zeros_all_ranks() -> None:
    """0 · inf is NaN. A sum without it would hide that a rank has diverged."""

    def average(comm: VirtualCommunicator) -> Tensor:
        return comm.weighted_mean(torch.tensor([1.0 if comm.rank else torch.inf, 1.0]), comm.rank and 1)

    def broadcast(comm: VirtualCommunicator) -> Tensor:
        own = torch.tensor([0.0 if comm.rank else -0.0])
        comm.broadcast(own, root=0)
        return own

    assert [each.isnan().tolist() for each in found_in_turns(average).values()] == 3 * [[True, False]]
    assert all(each.signbit().all() for each in found_in_turns(broadcast).values())
