"""Mistakes in the learning rate and the target: which epochs, whose batches, what ends a run."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import LinearLR

from tests.unit.training import Training, train
from trainer.spec.run_spec import RunSpec
from trainer.training.lr_schedule import Target, learning_rate
from trainer.training.replica import Replica

HYBRID = {"name": "hybrid", "mesh": {"data": 4, "pipeline": 2}}


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "all_reduce", "lr": 0.1, **fields})


def rates(**fields: Any) -> list[float]:
    run = spec(**fields)
    return [learning_rate(run, epoch) for epoch in range(1, run.epochs + 1)]


@pytest.mark.parametrize(("scaling", "at_4"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_rate_scales_with_the_global_batch(scaling: str, at_4: float) -> None:
    four: list[dict[str, Any]] = [
        {"nodes": 4},
        {"nodes": 2, "processes_per_node": 2},
        {"nodes": 5, "strategy": "parameter_server"},
        {"nodes": 8, "strategy": HYBRID},
    ]
    for each in four:
        assert rates(**each, lr_scaling=scaling) == pytest.approx([at_4] * 3)


@pytest.mark.parametrize(
    "one",
    [{"batch_per": "run", "nodes": 4}, {"nodes": 1}, {"strategy": "pipeline", "nodes": 3}],
    ids=["batch of a run", "one node", "pipeline"],
)
def test_one_batch_per_step_has_no_scaling_and_a_warm_up_of_its_own(one: dict[str, Any]) -> None:
    assert rates(**one, lr_scaling="linear") == [0.1] * 3
    assert spec(**one, lr_scaling="linear").key == spec(**one).key
    for scaling in ("none", "linear"):
        fields = {**one, "lr_scaling": scaling, "warm_up_epochs": 3, "epochs": 5}
        assert rates(**fields) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
        assert spec(**fields).key != spec(**{**fields, "warm_up_epochs": 0}).key


def test_run_key_includes_the_schedule() -> None:
    schedules = [{}, {"lr_scaling": "linear"}, {"lr_scaling": "sqrt"}, {"warm_up_epochs": 1}]
    assert len({spec(nodes=2, **each).key for each in schedules}) == 4


@pytest.mark.parametrize("scaling", ["none", "linear", "sqrt"])
def test_warm_up_equals_torch_linear_lr(scaling: str) -> None:
    for nodes in (1, 2, 9):
        (scaled,) = rates(nodes=nodes, lr_scaling=scaling, epochs=1)
        for warm_up in (1, 3, 8):
            ours = rates(nodes=nodes, lr_scaling=scaling, warm_up_epochs=warm_up, epochs=8)
            optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=scaled)
            start = 1 / (warm_up + 1) if nodes == 1 else 1 / sqrt(nodes) if scaling == "sqrt" else 1 / nodes
            scheduler = LinearLR(optimizer, start_factor=start, end_factor=1.0, total_iters=warm_up)
            theirs = []
            for _ in range(8):
                theirs += scheduler.get_last_lr()
                optimizer.step()
                scheduler.step()
            assert ours == pytest.approx(theirs)


@pytest.mark.parametrize(("strategy", "ranks", "batches"), [("pipeline", 2, 1), ("parameter_server", 3, 2)])
def test_steps_have_the_rate_of_the_epoch(
    strategy: str, ranks: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, seen = Replica.step, set()

    def watched(replica: Replica) -> None:
        seen.update(group["lr"] for group in replica._optimizer.param_groups)
        step(replica)

    monkeypatch.setattr(Replica, "step", watched)
    done = train(strategy, ranks, epochs=3, lr=0.01, lr_scaling="linear", warm_up_epochs=2)
    wanted = [0.01, 0.015, 0.02] if batches == 2 else [0.01 / 3, 0.02 / 3, 0.01]
    for rank in range(ranks):
        assert [event.fields["lr"] for event in done.of("epoch", rank)] == pytest.approx(wanted)
    assert sorted(seen) == pytest.approx(wanted)


# The target


@pytest.mark.parametrize(
    ("target", "patience", "accuracies", "ends"),
    [
        (0.9, 1, [0.8, 0.9, 0.7], [False, True, False]),
        (0.9, 2, [0.9, 0.8, 0.9, 0.95], [False, False, False, True]),
        (0.9, 3, [0.9, 0.9, 0.8, 0.9, 0.9], [False] * 5),
        (None, 1, [1.0], [False]),
    ],
)
def test_target_must_be_reached_in_consecutive_epochs(
    target: float | None, patience: int, accuracies: list[float], ends: list[bool]
) -> None:
    found = Target(target, patience)
    assert [found.reached(accuracy) for accuracy in accuracies] == ends


def epochs(done: Training, rank: int = 0) -> list[tuple[int, bool]]:
    return [(e.fields["epoch"], e.fields["target_reached"]) for e in done.of("epoch", rank)]


@pytest.mark.parametrize(("strategy", "ranks"), [("all_reduce", 2), ("hybrid", 4), ("parameter_server", 3)])
def test_all_ranks_end_after_the_epoch_that_reaches_the_target(strategy: str, ranks: int) -> None:
    """Until then, they train as without a target."""
    easy = {"name": "synthetic", "samples": 120, "test_samples": 40, "noise": 0.1}
    whole = train(strategy, ranks, epochs=6, dataset=easy, lr=0.2)
    reached = [event.fields["accuracy"] for event in whole.of("epoch")]
    target = reached[2] if reached[1] < reached[2] else reached[1]
    first = next(epoch for epoch, accuracy in enumerate(reached, 1) if accuracy >= target)
    done = train(strategy, ranks, epochs=6, dataset=easy, lr=0.2, target_accuracy=target)
    for rank in range(ranks):
        assert epochs(done, rank) == [(epoch, epoch == first) for epoch in range(1, first + 1)]
    assert done.same_weights
    assert {result.accuracy for result in done.results} == {reached[first - 1]}


@pytest.mark.parametrize("strategy", ["local_sgd", "diloco", "gossip"])
def test_local_replicas_end_with_the_average_that_reached_the_target(strategy: str) -> None:
    form = {"name": strategy, **({} if strategy == "gossip" else {"local_steps": 4})}  # 6 steps an epoch
    done = train(form, 2, epochs=5, target_accuracy=0.01)
    assert epochs(done) == [(1, True)]
    assert done.same_weights
    (epoch,) = done.of("epoch")
    for result in done.results:
        assert (result.accuracy, result.test_loss) == (epoch.fields["accuracy"], epoch.fields["test_loss"])
