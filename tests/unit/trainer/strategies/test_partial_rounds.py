"""Strategies whose rounds not every rank takes part in, against loops in plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import nll_loss

from orchestrator.execution.run_result import certify
from tests.unit.threads import together
from tests.unit.trainer.strategies.test_strategies import (
    PLAIN_DILOCO,
    PLAIN_FEDOPT,
    PLAIN_FEDPROX,
    Weights,
    close,
)
from tests.unit.training import SMALL, train
from trainer.comm.base import Communicator
from trainer.core.participation import Participation, Round, Rounds
from trainer.core.rng import RngFactory
from trainer.spec.run_spec import RunSpec
from trainer.strategies.gossip import mix, neighbours
from trainer.training.loader import Batch, BatchLoader
from trainer.training.participants import Participants
from trainer.training.partition import Partition
from trainer.training.task import Task

SCHEDULE = [[0, 2], [1], [0, 1, 2], [2]]
H = 5  # 7 steps per epoch: rounds begin in the middle of an epoch
PARTS = {"partitioner": "quantity", "epochs": 3}  # unequal


def loaded(strategy: str) -> tuple[RunSpec, Task, list[list[Batch]]]:
    """A run on three nodes in which all take part, its task, and the batches of each node."""
    run = {**SMALL, **PARTS, "strategy": strategy, "nodes": 3, "transport": "memory"}
    spec = RunSpec.model_validate(run)
    task = Task(spec, Path())
    loaders = [BatchLoader(task.data.train, spec, task.rngs, rank, 3) for rank in range(3)]
    epochs = range(1, spec.epochs + 1)
    return (
        spec,
        task,
        [[batch for epoch in epochs for batch, _ in each.synchronous_batches(epoch)] for each in loaders],
    )


def parameters(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def reference(steps_per_round: int | None, weighting: str) -> tuple[np.ndarray, list[list[int]]]:
    """Local SGD of the nodes in SCHEDULE. Returns the weights, and the samples of each node and epoch."""
    spec, task, batches = loaded("local_sgd")
    model = task.build_model(0)
    in_epoch = len(batches[0]) // spec.epochs
    counts = [[0] * spec.epochs for _ in range(3)]
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    length = steps_per_round or len(batches[0])
    for number, first in enumerate(range(0, len(batches[0]), length)):
        total, weights = torch.zeros_like(start), 0
        for node in SCHEDULE[number % len(SCHEDULE)]:
            torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
            samples = 0
            for step in range(first, min(first + length, len(batches[0]))):
                batch = batches[node][step]
                if not batch.samples:
                    continue
                samples += batch.samples
                counts[node][step // in_epoch] += batch.samples
                gradients = torch.autograd.grad(
                    nll_loss(model(batch.inputs), batch.targets), [*model.parameters()]
                )
                with torch.no_grad():
                    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                        parameter -= spec.lr * gradient
            n = samples if weighting == "size" else min(samples, 1)
            total += n * torch.nn.utils.parameters_to_vector(model.parameters()).detach()
            weights += n
        if weights:
            start = total / weights
    return start.numpy(), counts


@pytest.mark.parametrize("weighting", ["size", "equal"])
@pytest.mark.parametrize(
    "strategy", [{"name": "local_sgd"}, PLAIN_DILOCO, PLAIN_FEDOPT, PLAIN_FEDPROX], ids=lambda s: s["name"]
)
def test_rounds_equal_reference(strategy: dict[str, Any], weighting: str) -> None:
    form = {**strategy, "local_steps": H, "weighting": weighting, "participation": {"schedule": SCHEDULE}}
    training = train(form, 3, **PARTS)
    weights, counts = reference(H, weighting)
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


def test_the_certificate_counts_rounds() -> None:
    participation = {"schedule": [[0, 1], [1], [1, 2], [1]]}
    form = {"name": "local_sgd", "local_steps": 2, "participation": participation}
    training = train(form, 3)  # 4 steps per epoch, so 2 rounds
    certificate = certify([event for events in training.events for event in events])
    assert certificate is not None
    rounds = {(part.rank, part.epoch): part.rounds for part in certificate.parts}
    assert rounds == {(0, 1): 1, (1, 1): 2, (2, 1): 0, (0, 2): 0, (1, 2): 2, (2, 2): 1}
    empty = next(part for part in certificate.parts if not part.samples)
    assert empty.js_divergence is None
    # A rank that has not trained in an epoch has no loss there.
    points = [event for events in training.events for event in events if event.kind == "epoch"]
    losses = {(point.rank, point.fields["epoch"]): point.fields["loss"] for point in points}
    assert {at for at, loss in losses.items() if loss is None} == {(2, 1), (0, 2)}


def test_one_shot_averages_the_nodes_of_its_only_round() -> None:
    training = train({"name": "one_shot", "participation": {"schedule": SCHEDULE}}, 3, **PARTS)
    close(training.weights, reference(None, "equal")[0])
    assert training.results[1].samples == 0


@pytest.mark.parametrize("present", [{0, 1, 3}, {2}, {0, 1, 2, 3, 4}])
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_gossip_without_some_nodes_keeps_the_mean(graph: Any, present: set[int]) -> None:
    start = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)

    def body(comm: Communicator) -> np.ndarray:
        replica: Any = Weights(torch.from_numpy(start[comm.rank].copy()))
        mix(replica, comm, neighbours(graph, 5), Round(0, frozenset(present)))
        found: np.ndarray = replica.weights().numpy()
        return found

    mixed = np.stack(together(5, body))
    np.testing.assert_allclose(mixed.mean(axis=0), start.mean(axis=0), atol=1e-6)
    absent = [rank for rank in range(5) if rank not in present]
    np.testing.assert_array_equal(mixed[absent], start[absent])
    if graph == "ring" and present == {0, 1, 3}:
        np.testing.assert_allclose(mixed[0], (2 * start[0] + start[1]) / 3, rtol=1e-5)


def test_gossip_without_some_nodes_equals_reference() -> None:
    """D-PSGD on 3 nodes with unequal parts in plain torch. Node 2 never takes part."""
    schedule = [[0, 1], [1]]
    training = train({"name": "gossip", "participation": {"schedule": schedule}}, 3, **PARTS)
    spec, task, batches = loaded("gossip")
    models = [task.build_model(0) for _ in range(3)]
    for step in range(len(batches[0])):
        present = schedule[step % 2]
        samples = [batches[node][step].samples if node in present else 0 for node in range(3)]
        gradients = {
            node: torch.autograd.grad(
                nll_loss(models[node](batches[node][step].inputs), batches[node][step].targets),
                [*models[node].parameters()],
            )
            for node in present
            if samples[node]
        }
        flat = [parameters(model) for model in models]
        for node in present:
            around = [flat[other] if other in present else flat[node] for other in range(3)]
            mixed = sum(around) / 3
            if node in gradients:
                scale = samples[node] * len(present) / sum(samples)
                mixed = mixed - spec.lr * scale * torch.cat([g.flatten() for g in gradients[node]])
            torch.nn.utils.vector_to_parameters(mixed, models[node].parameters())
    mean = sum(map(parameters, models)) / 3
    close(training.weights, mean.numpy())

    # After the last epoch, the mean over all nodes was evaluated, also over those that never trained.
    torch.nn.utils.vector_to_parameters(mean, models[0].parameters())
    test = task.data.test
    with torch.no_grad():
        loss = nll_loss(models[0](torch.from_numpy(test.inputs)), torch.from_numpy(test.labels))
    assert training.results[0].test_loss == pytest.approx(loss.item(), rel=1e-4)


def test_a_node_that_never_trains_has_no_local_accuracy() -> None:
    training = train({"name": "one_shot", "participation": {"schedule": [[0]]}}, 2)
    trained, absent = training.results
    assert trained.local_accuracy is not None
    assert absent.local_accuracy is None
    assert trained.accuracy == absent.accuracy


def test_late_epochs_need_no_earlier_ones() -> None:
    """As in a run that resumes there."""
    rounds = Rounds(participation=Participation(schedule=[[0], [1]]), steps=3)
    participants = Participants(rounds, RngFactory(0), lambda _: Partition([np.arange(5)] * 2, batch=5))
    assert participants.round(9000, 0, "join") == Round(2999, frozenset({1}))
