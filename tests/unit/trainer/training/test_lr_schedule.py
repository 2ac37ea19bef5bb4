"""Mistakes in the learning rate and the target: which epochs, whose batches, what ends a run."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import LinearLR

from tests.unit.training import train
from trainer.spec.run_spec import RunSpec
from trainer.training.lr_schedule import Target, learning_rate


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
