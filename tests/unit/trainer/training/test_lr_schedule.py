"""Mistakes in the learning rate and the target: which epochs, whose batches, what ends a run."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, MultiStepLR

from tests.unit.training import train
from trainer.data.base import DataError
from trainer.spec.run_spec import RunSpec
from trainer.training.lr_schedule import Target, learning_rate, scheduled_rate
from trainer.training.replica import Replica


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "all_reduce", "lr": 0.1, **fields})


def rates(**fields: Any) -> list[float]:
    run = spec(**fields)
    return [learning_rate(run, epoch) for epoch in range(1, run.epochs + 1)]


def test_rate_scales_with_the_global_batch() -> None:
    mesh = {"name": "hybrid", "mesh": {"data": 4, "pipeline": 2}}
    for strategy, nodes, processes in (("ddp", 2, 2), ("parameter_server", 5, 1), (mesh, 8, 1)):
        fields: dict[str, Any] = {"strategy": strategy, "nodes": nodes, "processes_per_node": processes}
        found = [rates(**fields, lr_scaling=each, epochs=1)[0] for each in ("none", "linear", "sqrt")]
        assert found == pytest.approx([0.1, 0.4, 0.2])


def test_one_batch_per_step_has_no_scaling_and_a_warm_up_of_its_own() -> None:
    for one in ({"batch_per": "run", "nodes": 4}, {"nodes": 1}, {"strategy": "pipeline", "nodes": 3}):
        assert rates(**one, lr_scaling="linear") == [0.1] * 3
        assert spec(**one, lr_scaling="linear").key == spec(**one).key
        for scaling in ("none", "linear"):
            fields = {**one, "lr_scaling": scaling, "warm_up_epochs": 3, "epochs": 5}
            assert rates(**fields) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])


def test_warm_up_equals_torch_linear_lr() -> None:
    for nodes, scaling, warm_up in ((2, "none", 3), (9, "linear", 8), (9, "sqrt", 3), (1, "sqrt", 1)):
        fields: dict[str, Any] = {"nodes": nodes, "lr_scaling": scaling}
        start = 1 / (warm_up + 1) if nodes == 1 else 1 / sqrt(nodes) if scaling == "sqrt" else 1 / nodes
        optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=rates(**fields, epochs=1)[0])
        scheduler = LinearLR(optimizer, start_factor=start, end_factor=1.0, total_iters=warm_up)
        theirs = []
        for _ in range(10):
            theirs += scheduler.get_last_lr()
            optimizer.step()
            scheduler.step()
        assert rates(**fields, warm_up_epochs=warm_up, epochs=10) == pytest.approx(theirs)


def factors(schedule: Any, epochs: int, steps: int, **fields: Any) -> list[float]:
    """Those of a training of so many steps per epoch, over the rate of each epoch."""
    run = spec(lr_schedule=schedule, epochs=epochs, **fields)
    return [
        scheduled_rate(run, epoch, step, steps) / learning_rate(run, epoch)
        for epoch in range(1, epochs + 1)
        for step in range(1, steps + 1)
    ]


def test_schedules_are_those_of_torch_and_of_the_papers() -> None:
    def of_torch(scheduled: Callable[[SGD], LRScheduler]) -> list[float]:
        optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        scheduler, found = scheduled(optimizer), []
        for _ in range(12):
            found += scheduler.get_last_lr()
            optimizer.step()
            scheduler.step()
        return found

    pairs: list[tuple[Any, list[float]]] = [
        ("constant", [1.0] * 12),
        ("cosine", of_torch(lambda sgd: CosineAnnealingLR(sgd, 12))),
        ({"name": "cosine", "final": 0.1}, of_torch(lambda sgd: CosineAnnealingLR(sgd, 12, 0.1))),
        ({"name": "linear", "final": 0.25}, of_torch(lambda sgd: LinearLR(sgd, 1.0, 0.25, 12))),
        ("step", of_torch(lambda sgd: MultiStepLR(sgd, [6, 9]))),
        ({"name": "step", "milestones": [0.7], "gamma": 0.5}, [1.0] * 8 + [0.5] * 4),
    ]
    for schedule, expected in pairs:
        for epochs in (1, 3, 12):
            assert factors(schedule, epochs, 12 // epochs) == pytest.approx(expected), schedule
    vaswani = [min(n**-0.5, n * 4**-1.5) / 4**-0.5 for n in range(1, 16)]
    assert factors({"name": "inverse_sqrt", "timescale": 4}, 3, 4) == pytest.approx(vaswani[3:])


def test_a_warm_up_of_steps_or_epochs_comes_before_the_schedule() -> None:
    rising = [(step + 1) / 5 for step in range(4)]
    for name in ("constant", "cosine"):
        expected = rising + factors(name, 2, 4)
        for own in ({"warm_up_steps": 4}, {"warm_up_epochs": 1}):
            assert factors({"name": name, **own}, 3, 4) == pytest.approx(expected)
    assert factors({"name": "linear", "warm_up_steps": 1}, 1, 2) == [0.5, 1.0]
    both = factors("cosine", 3, 4, warm_up_epochs=1)  # that of the run scales the whole schedule
    assert both == pytest.approx(factors("cosine", 3, 4))


@pytest.mark.parametrize(
    ("fields", "field", "parts"),
    [
        ({"lr_schedule": {"name": "cosine", "warm_up_epochs": 3}}, "lr_schedule", "0 to 2"),
        ({"lr_schedule": {"name": "cosine", "warm_up_steps": 12}}, "lr_schedule", "12 of a rank; 0 to 11"),
        (
            {"lr_schedule": {"name": "constant", "warm_up_steps": 2}, "warm_up_epochs": 1},
            "lr_schedule",
            "warm_up_epochs",
        ),
        (
            {"lr_schedule": "cosine", "strategy": "rpc_split", "nodes": 3},
            "lr_schedule",
            "rpc_split; pipeline",
        ),
        (
            {"lr_schedule": {"name": "constant", "warm_up_epochs": 1}, "strategy": "rpc_split", "nodes": 3},
            "lr_schedule",
            "rpc_split",
        ),
        (
            {"lr_schedule": {"name": "step", "warm_up_steps": 1, "warm_up_epochs": 1}},
            "without_effect",
            "warm_up_epochs",
        ),
        ({"lr_schedule": {"name": "step", "milestones": [1.0]}}, "less_than", "less than 1"),
    ],
)
def test_schedules_that_end_elsewhere_than_the_training_are_refused(
    fields: dict[str, Any], field: str, parts: str
) -> None:
    of_three = {"epochs": 3, "dataset": {"name": "synthetic", "samples": 32}, "batch_size": 8}
    with pytest.raises(ValidationError) as caught:
        spec(**of_three, **fields)
    (error,) = caught.value.errors()
    assert error["type"] == field
    assert [part for part in parts.split("; ") if part not in error["msg"]] == []


def test_a_warm_up_that_a_part_outlasts_is_refused_before_training() -> None:
    """Parts of 68 and 52 samples: 7 and 6 steps per epoch. The smaller one ends the epoch with drop."""
    uneven = {"partitioner": {"name": "quantity", "imbalance": 0.4}, "epochs": 1}
    drop = {"name": "all_reduce", "uneven": "drop"}
    for strategy, steps in (("all_reduce", 7), (drop, 6), ("one_shot", 6)):
        constant = {"name": "constant", "warm_up_steps": steps - 1}
        assert train(strategy, 2, lr_schedule=constant, **uneven).results
        with pytest.raises(DataError, match=f"{steps} of a rank; allowed: 0 to {steps - 1}"):
            train(strategy, 2, lr_schedule={**constant, "warm_up_steps": steps}, **uneven)


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("all_reduce", 2), ("parameter_server", 3), ("local_sgd", 2), ("gossip", 2), ("pipeline", 2)],
)
def test_every_step_takes_the_rate_of_the_schedule(
    strategy: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 60 samples or 120 in batches of 10, so with 6 or 12 steps per epoch."""
    taken: dict[int, list[float]] = {}
    step = Replica.step

    def recorded(self: Replica) -> None:
        (group,) = self._optimizer.param_groups
        taken.setdefault(id(self), []).append(group["lr"])
        step(self)

    monkeypatch.setattr(Replica, "step", recorded)
    schedule = {"lr_schedule": {"name": "cosine", "warm_up_epochs": 1}, "epochs": 3}
    done = train(strategy, ranks, **schedule)
    steps = 12 if strategy == "pipeline" else 6
    expected = [0.1 * factor for factor in factors(schedule["lr_schedule"], 3, steps)]
    assert len(taken) == (1 if strategy == "parameter_server" else ranks)
    for rates in taken.values():
        assert rates == pytest.approx(expected)
    assert [event.fields["lr"] for event in done.of("epoch")] == pytest.approx(expected[steps - 1 :: steps])


def test_target_must_be_reached_in_consecutive_epochs() -> None:
    for target, patience, accuracies, ends in (
        (0.9, 1, [0.8, 0.9, 0.7], [False, True, False]),
        (0.9, 2, [0.9, 0.8, 0.9, 0.95], [False, False, False, True]),
        (None, 1, [1.0], [False]),
    ):
        found = Target(target, patience)
        assert [found.reached(accuracy) for accuracy in accuracies] == ends


@pytest.mark.parametrize(("strategy", "ranks"), [("hybrid", 4), ("parameter_server", 3), ("local_sgd", 2)])
def test_all_ranks_end_after_the_epoch_that_reaches_the_target(strategy: str, ranks: int) -> None:
    """Until then, they train as without a target."""
    easy = {"dataset": {"name": "synthetic", "samples": 120, "test_samples": 40, "noise": 0.1}, "lr": 0.2}
    whole = train(strategy, ranks, epochs=4, **easy)
    reached = [event.fields["accuracy"] for event in whole.of("epoch")]
    target = max(reached[1:3])
    first = next(epoch for epoch, accuracy in enumerate(reached, 1) if accuracy >= target)
    done = train(strategy, ranks, epochs=6, **easy, target_accuracy=target)
    for rank in range(ranks):
        epochs = [(e.fields["epoch"], e.fields["target_reached"]) for e in done.of("epoch", rank)]
        assert epochs == [(epoch, epoch == first) for epoch in range(1, first + 1)]
    assert done.same_weights
    assert {result.accuracy for result in done.results} == {target}
