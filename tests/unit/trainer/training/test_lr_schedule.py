"""The learning-rate schedule, and the target accuracy that ends a run early."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import nll_loss
from torch.nn.utils import vector_to_parameters
from torch.optim import SGD
from torch.optim.lr_scheduler import LinearLR

from tests.unit.training import SMALL, Training, train
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.training.lr_schedule import Target, learning_rate
from trainer.training.replica import Replica
from trainer.training.task import Task

# Every strategy that runs on transport memory, with the number of ranks that process two batches per step.
TWO_AT_ONCE = {
    name: {"parameter_server": 3, "hybrid": 4}.get(name, 2)
    for name in STRATEGIES.entries
    if "memory" in (loaded := STRATEGIES.load(name)).transports
    and loaded.trains
    and not loaded.forks
    and loaded.max_nodes != 1
    and not loaded.shards_state  # see test_lr_schedule_of_strategies.py
    and (not loaded.partitions_model or name == "hybrid")
}
ONE_AT_ONCE = {"serial": 1, "pipeline": 2, "tensor_parallel": 2}


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "all_reduce", "lr": 0.1, **fields})


def rates(**fields: Any) -> list[float]:
    run = spec(**fields)
    return [learning_rate(run, epoch) for epoch in range(1, run.epochs + 1)]


# The rate as a function of spec and epoch


@pytest.mark.parametrize(("scaling", "at_4"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_rate_scales_with_the_global_batch(scaling: str, at_4: float) -> None:
    assert rates(nodes=4, lr_scaling=scaling) == pytest.approx([at_4] * 3)
    assert rates(nodes=2, processes_per_node=2, lr_scaling=scaling) == pytest.approx([at_4] * 3)
    assert rates(nodes=5, strategy="parameter_server", lr_scaling=scaling) == pytest.approx([at_4] * 3)
    hybrid = {"name": "hybrid", "mesh": {"data": 4, "pipeline": 2}}
    assert rates(nodes=8, strategy=hybrid, lr_scaling=scaling) == pytest.approx([at_4] * 3)


ONE_BATCH = [{"batch_per": "run", "nodes": 4}, {"nodes": 1}, {"strategy": "pipeline", "nodes": 3}]


@pytest.mark.parametrize("one", ONE_BATCH)
def test_rate_is_unchanged_with_one_batch_per_step(one: dict[str, Any]) -> None:
    assert rates(**one, lr_scaling="linear") == [0.1] * 3
    assert spec(**one, lr_scaling="linear").key == spec(**one).key


@pytest.mark.parametrize("one", ONE_BATCH)
@pytest.mark.parametrize("scaling", ["none", "linear"])
def test_one_batch_per_step_has_a_warm_up_of_its_own(one: dict[str, Any], scaling: str) -> None:
    fields = {**one, "lr_scaling": scaling, "warm_up_epochs": 3, "epochs": 5}
    assert rates(**fields) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
    assert spec(**fields).key != spec(**{**fields, "warm_up_epochs": 0}).key


def test_run_key_includes_the_schedule() -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"lr_scaling": "linear"},
        {"lr_scaling": "sqrt"},
        {"warm_up_epochs": 1},
    ]
    assert len({spec(nodes=2, **each).key for each in fields}) == 4


@pytest.mark.parametrize("scaling", ["none", "linear", "sqrt"])
@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("warm_up", [1, 3, 8])
def test_warm_up_equals_torch_linear_lr(scaling: str, nodes: int, warm_up: int) -> None:
    ours = rates(nodes=nodes, lr_scaling=scaling, warm_up_epochs=warm_up, epochs=8)
    (scaled,) = rates(nodes=nodes, lr_scaling=scaling, epochs=1)
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=scaled)
    start = 1 / (warm_up + 1) if nodes == 1 else 1 / sqrt(nodes) if scaling == "sqrt" else 1 / nodes
    scheduler = LinearLR(optimizer, start_factor=start, end_factor=1.0, total_iters=warm_up)
    theirs = []
    for _ in range(8):
        theirs += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("scaling", ["linear", "sqrt"])
def test_warm_up_starts_at_the_serial_rate(scaling: str) -> None:
    first, *_, last = rates(nodes=9, lr_scaling=scaling, warm_up_epochs=3, epochs=4)
    assert first == pytest.approx(0.1)
    assert last == pytest.approx({"linear": 0.9, "sqrt": 0.3}[scaling])


# Every strategy applies the schedule


@pytest.mark.parametrize("strategy", [*TWO_AT_ONCE, *ONE_AT_ONCE])
def test_strategy_applies_the_rate_of_the_epoch(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With plain SGD, the rate is the change of the weights divided by the gradient."""
    step, seen = Replica.step, set()

    def watched(replica: Replica) -> None:
        before, gradient = replica.flat_parameters(), replica.gradient()
        step(replica)
        if gradient.any():  # a stage may have no weights, and a rank may be idle
            at = gradient.abs().argmax()
            seen.add(round(((before - replica.flat_parameters())[at] / gradient[at]).item(), 4))

    monkeypatch.setattr(Replica, "step", watched)
    ranks = {**TWO_AT_ONCE, **ONE_AT_ONCE}[strategy]
    done = train(strategy, ranks, epochs=3, lr=0.01, lr_scaling="linear", warm_up_epochs=2)
    wanted = [0.01, 0.015, 0.02] if strategy in TWO_AT_ONCE else [0.01 / 3, 0.02 / 3, 0.01]
    for rank in range(ranks):
        assert [event.fields["lr"] for event in done.of("epoch", rank)] == pytest.approx(wanted)
    assert sorted(seen) == pytest.approx(sorted(set(wanted)), abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", TWO_AT_ONCE)
def test_scaled_rate_equals_the_same_rate_given_directly(strategy: str) -> None:
    ranks = TWO_AT_ONCE[strategy]
    scaled = train(strategy, ranks, lr=0.05, lr_scaling="linear")
    assert (scaled.weights == train(strategy, ranks, lr=0.1).weights).all()
    assert (scaled.weights != train(strategy, ranks, lr=0.05).weights).any()


# The target


@pytest.mark.parametrize(
    ("patience", "accuracies", "ends"),
    [
        (1, [0.8, 0.9, 0.7], [False, True, False]),
        (2, [0.9, 0.8, 0.9, 0.95], [False, False, False, True]),
        (3, [0.9, 0.9, 0.8, 0.9, 0.9], [False] * 5),
    ],
)
def test_target_must_be_reached_in_consecutive_epochs(
    patience: int, accuracies: list[float], ends: list[bool]
) -> None:
    target = Target(0.9, patience)
    assert [target.reached(accuracy) for accuracy in accuracies] == ends


def test_no_accuracy_ends_a_run_without_a_target() -> None:
    assert not Target(None, 1).reached(1.0)


def epochs(done: Training, rank: int = 0) -> list[tuple[int, bool]]:
    return [(e.fields["epoch"], e.fields["target_reached"]) for e in done.of("epoch", rank)]


TOGETHER = {
    name: ranks
    for name, ranks in {**TWO_AT_ONCE, **ONE_AT_ONCE}.items()
    if STRATEGIES.load(name).evaluates_together
}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", TOGETHER)
def test_all_ranks_end_after_the_epoch_that_reaches_the_target(strategy: str) -> None:
    ranks, easy = (
        TOGETHER[strategy],
        {"name": "synthetic", "samples": 120, "test_samples": 40, "noise": 0.1},
    )
    whole = train(strategy, ranks, epochs=6, dataset=easy, lr=0.2)
    reached = [event.fields["accuracy"] for event in whole.of("epoch")]
    target = reached[2] if reached[1] < reached[2] else reached[1]
    first = next(epoch for epoch, accuracy in enumerate(reached, 1) if accuracy >= target)
    done = train(strategy, ranks, epochs=6, dataset=easy, lr=0.2, target_accuracy=target)
    for rank in range(ranks):
        assert epochs(done, rank) == [(epoch, epoch == first) for epoch in range(1, first + 1)]
    assert done.same_weights
    assert {result.accuracy for result in done.results} == {reached[first - 1]}


def test_unreached_target_does_not_change_the_run() -> None:
    one, other = train("all_reduce"), train("all_reduce", target_accuracy=1.0, patience=2)
    assert epochs(other) == [(1, False), (2, False)]
    assert (one.weights == other.weights).all()


@pytest.mark.parametrize("strategy", ["local_sgd", "diloco", "gossip"])
def test_local_replicas_end_with_the_average_that_reached_the_target(strategy: str) -> None:
    form = {"name": strategy, **({} if strategy == "gossip" else {"local_steps": 4})}  # 6 steps an epoch
    done = train(form, 2, epochs=5, target_accuracy=0.01)
    assert epochs(done) == [(1, True)]
    assert done.same_weights
    model = mlp_with(done.weights)
    test = Task(RunSpec.model_validate({**SMALL, "strategy": "serial"}), Path()).data.test
    with torch.no_grad():
        output = model(torch.from_numpy(test.inputs))
    right = (output.argmax(dim=1) == torch.from_numpy(test.labels)).double().mean().item()
    loss = nll_loss(output, torch.from_numpy(test.labels)).item()
    for result in done.results:
        assert (result.accuracy, result.test_loss) == pytest.approx((right, loss), rel=1e-5)


def mlp_with(weights: np.ndarray) -> torch.nn.Module:
    model = Task(RunSpec.model_validate({**SMALL, "strategy": "serial"}), Path()).build_model(0)
    vector_to_parameters(torch.from_numpy(weights), model.parameters())
    return model.eval()
