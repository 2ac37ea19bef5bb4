"""Nodes that train in plain torch, for references that share no code with a strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from tests.unit.training import SMALL
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import Batch, BatchLoader
from trainer.training.task import Task

PARTS: dict[str, Any] = {"partitioner": "quantity", "epochs": 3}  # unequal


def close(left: Any, right: Any) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


def task_of(strategy: str, ranks: int, **fields: Any) -> Task:
    run = {**SMALL, "strategy": strategy, "nodes": ranks, "transport": "memory", **fields}
    return Task(RunSpec.model_validate(run), Path())


def loaded(strategy: str, nodes: int = 3, **fields: Any) -> tuple[Task, list[list[Batch]]]:
    """The task of a run in which all nodes take part, and the batches of each."""
    task = task_of(strategy, nodes, **{**PARTS, **fields})
    loaders = [BatchLoader(task.data.train, task.spec, task.rngs, node, nodes) for node in range(nodes)]
    epochs = range(1, task.spec.epochs + 1)
    return task, [[batch for e in epochs for batch, _ in each.synchronous_batches(e)] for each in loaders]


def flat(tensors: Any) -> Tensor:
    return torch.cat([each.detach().flatten() for each in tensors])


def set_weights(model: torch.nn.Module, weights: Tensor) -> None:
    torch.nn.utils.vector_to_parameters(weights.clone(), model.parameters())


def gradient(model: torch.nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return flat(torch.autograd.grad(nll_loss(model(inputs), targets), [*model.parameters()]))


class Nodes:
    """Nodes in float64, on the batches of a run.

    Attributes:
        x: the weights of each, which start alike.
        steps: those of the run.
    """

    def __init__(self, strategy: str, count: int = 3, **fields: Any) -> None:
        self.task, self._batches = loaded(strategy, count, **fields)
        self._model = self.task.build_model(0).double()
        start = flat(self._model.parameters())
        self.x = [start.clone() for _ in range(count)]
        self.steps = len(self._batches[0])

    def samples(self, node: int, step: int) -> int:
        return self._batches[node][step].samples

    def gradient(self, node: int, step: int, at: Tensor) -> Tensor:
        """The gradient of a node's batch, steps from 0, at some weights; 0 without samples."""
        batch = self._batches[node][step]
        if not batch.samples:
            return torch.zeros_like(at)
        set_weights(self._model, at)
        return gradient(self._model, batch.inputs.double(), batch.targets)

    def test_loss(self, at: Tensor) -> float:
        """The loss on the test split at some weights."""
        test = self.task.data.test
        set_weights(self._model, at)
        with torch.no_grad():
            output = self._model(torch.from_numpy(test.inputs).double())
        return nll_loss(output, torch.from_numpy(test.labels)).item()

    def descend(self, step: int) -> None:
        """A step of plain SGD on each node."""
        for node, x in enumerate(self.x):
            x -= self.task.spec.lr * self.gradient(node, step, x)


def mean(vectors: list[Tensor], weights: list[int] | None = None) -> Tensor:
    weights = weights or [1] * len(vectors)
    return sum(w * v for w, v in zip(weights, vectors, strict=True)) / sum(weights)
