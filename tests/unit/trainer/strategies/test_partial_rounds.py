"""Mistakes in rounds in which not every rank takes part: who is averaged, and with which weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import nll_loss

from orchestrator.execution.run_result import certify
from tests.unit.trainer.strategies.test_strategies import PLAIN, close, flat, gradient, task_of
from tests.unit.training import train
from trainer.core.participation import Participation, Round, Rounds
from trainer.core.rng import RngFactory
from trainer.training.loader import Batch, BatchLoader
from trainer.training.participants import Participants
from trainer.training.partition import Partition
from trainer.training.task import Task

EVERYONE = [[0, 1, 2]]
SCHEDULE = [[0, 2], [1], [0, 1, 2], [2]]
H = 5  # 7 steps per epoch: rounds begin in the middle of an epoch
PARTS: dict[str, Any] = {"partitioner": "quantity", "epochs": 3}  # unequal


def loaded(strategy: str) -> tuple[Task, list[list[Batch]]]:
    """The task of a run on three nodes in which all take part, and the batches of each node."""
    task = task_of(strategy, 3, **PARTS)
    loaders = [BatchLoader(task.data.train, task.spec, task.rngs, rank, 3) for rank in range(3)]
    epochs = range(1, task.spec.epochs + 1)
    return task, [[batch for e in epochs for batch, _ in each.synchronous_batches(e)] for each in loaders]


def set_weights(model: torch.nn.Module, weights: torch.Tensor) -> None:
    torch.nn.utils.vector_to_parameters(weights.clone(), model.parameters())


def reference(
    schedule: Sequence[Sequence[int]], steps_per_round: int | None, weighting: str
) -> tuple[np.ndarray, list[list[int]]]:
    """Local SGD in plain torch. Returns the weights, and the samples of each node and epoch."""
    task, batches = loaded("local_sgd")
    model, steps = task.build_model(0), len(batches[0])
    counts = [[0] * task.spec.epochs for _ in range(3)]
    start, length = flat(model.parameters()), steps_per_round or steps
    for number, first in enumerate(range(0, steps, length)):
        total, weights = torch.zeros_like(start), 0
        for node in schedule[number % len(schedule)]:
            set_weights(model, start)
            samples = 0
            for step in range(first, min(first + length, steps)):
                batch = batches[node][step]
                if batch.samples:
                    samples += batch.samples
                    counts[node][step * task.spec.epochs // steps] += batch.samples
                    change = task.spec.lr * gradient(model, batch.inputs, batch.targets)
                    set_weights(model, flat(model.parameters()) - change)
            n = samples if weighting == "size" else min(samples, 1)
            total += n * flat(model.parameters())
            weights += n
        if weights:
            start = total / weights
    return start.numpy(), counts


@pytest.mark.parametrize(
    ("strategy", "weighting", "schedule"),
    [
        ({"name": "local_sgd"}, "size", EVERYONE),
        ({"name": "local_sgd"}, "equal", SCHEDULE),
        (PLAIN["diloco"], "equal", SCHEDULE),
        (PLAIN["fedopt"], "size", SCHEDULE),
        (PLAIN["fedprox"], "size", SCHEDULE),
    ],
    ids=["everyone", "local_sgd", *PLAIN],
)
def test_rounds_equal_reference(
    strategy: dict[str, Any], weighting: str, schedule: list[list[int]]
) -> None:
    taking_part = {} if schedule is EVERYONE else {"participation": {"schedule": schedule}}
    training = train({**strategy, "local_steps": H, "weighting": weighting, **taking_part}, 3, **PARTS)
    weights, counts = reference(schedule, H, weighting)
    close(training.weights, weights)
    assert training.same_weights

    certificate = certify([event for events in training.events for event in events])
    assert certificate is not None
    assert certificate.verified
    samples = [[0] * 3 for _ in range(3)]
    for part in certificate.parts:
        samples[part.rank][part.epoch - 1] = part.samples
    assert samples == counts
    assert [split.coverage for split in certificate.splits] == [
        sum(each[epoch] for each in counts) / 120 for epoch in range(3)
    ]


def test_one_shot_averages_the_nodes_of_its_only_round() -> None:
    """It weights them equally by default."""
    training = train({"name": "one_shot", "participation": {"schedule": SCHEDULE}}, 3, **PARTS)
    close(training.weights, reference(SCHEDULE, None, "equal")[0])
    assert training.results[1].samples == 0
    assert [each.local_accuracy is None for each in training.results] == [False, True, False]
    assert len({each.accuracy for each in training.results}) == 1


def test_the_certificate_counts_rounds() -> None:
    participation = {"schedule": [[0, 1], [1], [1, 2], [1]]}
    form = {"name": "local_sgd", "local_steps": 2, "participation": participation}
    training = train(form, 3)  # 4 steps per epoch, so 2 rounds
    certificate = certify([event for events in training.events for event in events])
    assert certificate is not None
    rounds = {(part.rank, part.epoch): part.rounds for part in certificate.parts}
    assert rounds == {(0, 1): 1, (1, 1): 2, (2, 1): 0, (0, 2): 0, (1, 2): 2, (2, 2): 1}
    assert {part.js_divergence for part in certificate.parts if not part.samples} == {None}
    # A rank that has not trained in an epoch has no loss there.
    points = [event for events in training.events for event in events if event.kind == "epoch"]
    without = {(each.rank, each.fields["epoch"]) for each in points if each.fields["loss"] is None}
    assert without == {(2, 1), (0, 2)}


@pytest.mark.parametrize("schedule", [EVERYONE, [[0, 1], [1]]], ids=["everyone", "some"])
def test_gossip_equals_reference(schedule: list[list[int]]) -> None:
    """D-PSGD on 3 nodes in plain torch: mix, then apply the gradient at the weights before mixing."""
    participation = None if schedule is EVERYONE else {"schedule": schedule}
    training = train({"name": "gossip", "participation": participation}, 3, **PARTS)
    task, batches = loaded("gossip")
    models = [task.build_model(0) for _ in range(3)]
    for step in range(len(batches[0])):
        present = schedule[step % len(schedule)]
        samples = [batches[node][step].samples if node in present else 0 for node in range(3)]
        before = [flat(model.parameters()) for model in models]
        for node in present:
            mixed = sum(before[other] if other in present else before[node] for other in range(3)) / 3
            if samples[node]:
                batch, scale = batches[node][step], samples[node] * len(present) / sum(samples)
                mixed -= task.spec.lr * scale * gradient(models[node], batch.inputs, batch.targets)
            set_weights(models[node], mixed)
    mean = sum(flat(model.parameters()) for model in models) / 3
    close(training.weights, mean)

    # After the last epoch, the mean over all nodes was evaluated, also over those that never trained.
    set_weights(models[0], mean)
    test = task.data.test
    with torch.no_grad():
        loss = nll_loss(models[0](torch.from_numpy(test.inputs)), torch.from_numpy(test.labels))
    assert training.results[0].test_loss == pytest.approx(loss.item(), rel=1e-4)


def test_late_epochs_need_no_earlier_ones() -> None:
    """As in a run that resumes there."""
    rounds = Rounds(participation=Participation(schedule=[[0], [1]]), steps=3)
    participants = Participants(rounds, RngFactory(0), lambda _: Partition([np.arange(5)] * 2, batch=5))
    assert participants.round(9000, 0, "join") == Round(2999, frozenset({1}))
