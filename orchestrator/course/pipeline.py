"""Stages of a pipeline for checks of schedules: they compute, and record the order of the work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

Work = tuple[Literal["forward", "backward"], int]  # and the micro-batch


class Pipeline:
    """A model of P stages x ← tanh(x W), each with W of shape (d, d), and a loss: the mean of ½|x − t|².

    Attributes:
        weights: the weights of each stage. work: the work of each stage, in order. held: most micro-batches
        that a stage has held the input of at once, between their forward and their backward pass.
    """

    def __init__(self, stages: int, width: int = 3) -> None:
        rng = np.random.default_rng(0)
        self.weights = [rng.normal(size=(width, width)) for _ in range(stages)]
        self.work: list[list[Work]] = [[] for _ in range(stages)]
        self.held = [0] * stages
        self._inputs: list[dict[int, np.ndarray]] = [{} for _ in range(stages)]

    def stage(self, rank: int) -> SimpleNamespace:
        """What a student's code gets of a stage: `forward`, `backward` and `loss_gradient`."""
        weights, held = self.weights[rank], self._inputs[rank]

        def forward(micro_batch: int, x: Any) -> np.ndarray:
            x = _matrix(x, len(weights))
            if micro_batch in held:
                raise ValueError(f"micro-batch {micro_batch} has had its forward pass")
            held[micro_batch] = x
            self.held[rank] = max(self.held[rank], len(held))
            self.work[rank].append(("forward", int(micro_batch)))
            return np.asarray(np.tanh(x @ weights))

        def backward(micro_batch: int, dy: Any) -> list[np.ndarray]:
            if micro_batch not in held:
                raise ValueError(f"micro-batch {micro_batch} has had no forward pass, or its backward pass")
            x = held.pop(micro_batch)
            self.work[rank].append(("backward", int(micro_batch)))
            dx, dw = _backward(x, weights, _matrix(dy, len(weights)))
            return [dx, dw]

        def loss_gradient(y: Any, targets: Any) -> np.ndarray:
            y, t = _matrix(y, len(weights)), _matrix(targets, len(weights))
            if y.shape != t.shape:
                raise ValueError(f"outputs of shape {y.shape}, targets of shape {t.shape}")
            return np.asarray((y - t) / len(y))

        return SimpleNamespace(forward=forward, backward=backward, loss_gradient=loss_gradient)

    def gradients(self, inputs: np.ndarray, targets: np.ndarray) -> list[np.ndarray]:
        """The gradient of the mean loss over a whole batch, for each stage."""
        x, stashed = inputs, []
        for weights in self.weights:
            stashed.append(x)
            x = np.tanh(x @ weights)
        dy, found = (x - targets) / len(x), []
        for before, weights in zip(reversed(stashed), reversed(self.weights), strict=True):
            dy, dw = _backward(before, weights, dy)
            found.append(dw)
        return found[::-1]

    def bubble(self) -> float:
        """Idle share of the stages, 0 … 1, if every pass takes one unit of time and messages take none.

        Each stage works in its recorded order. A forward pass needs that of the stage before, a backward
        pass that of the stage after.
        """
        stages, ends = len(self.weights), dict[tuple[int, Work], int]()
        position, free = [0] * stages, [0] * stages
        progress = True
        while progress:
            progress = False
            for stage, work in enumerate(self.work):
                while position[stage] < len(work):
                    each = work[position[stage]]
                    other = stage - 1 if each[0] == "forward" else stage + 1
                    needed = 0 <= other < stages
                    if needed and (other, each) not in ends:
                        break
                    free[stage] = max(free[stage], ends[other, each] if needed else 0) + 1
                    ends[stage, each] = free[stage]
                    position[stage] += 1
                    progress = True
        total = max(free)
        return 1 - sum(map(len, self.work)) / (stages * total) if total else 0.0


def _matrix(values: Any, width: int) -> np.ndarray:
    array = np.array(values, dtype=float)
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(f"shape {array.shape}: must be (samples, {width})")
    return array


def _backward(x: np.ndarray, weights: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the input and the weights of tanh(x W)."""
    inner = dy * (1 - np.tanh(x @ weights) ** 2)
    return inner @ weights.T, x.T @ inner
