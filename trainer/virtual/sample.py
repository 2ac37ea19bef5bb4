"""The replica that a sampled run measures: what a step of it costs, all ranks pay."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch

from trainer.core.clock import Clock
from trainer.training.loader import Batch
from trainer.training.memory import Activations
from trainer.training.partition import StepSizes
from trainer.training.replica import Replica
from trainer.training.task import Task
from trainer.virtual.clock import StepCosts

REPETITIONS = 5  # of a measurement, after one that does not count


class Gradient(NamedTuple):
    """What the gradient of a batch costs. seconds: CPU time. activation_bytes: see TrainResult."""

    seconds: float
    activation_bytes: int


class Sample:
    """A replica with values, on which the steps of all others are measured.

    Each number of samples in a batch is measured when the first rank has such a batch. Ranks run in
    simulated time, in which a measurement takes none.

    Attributes:
        costs: of a step.
        model: the model on torch's device `meta`: all ranks share it, since it has no values.
        state_bytes: see TrainResult, after a step.
        optimizer_state: the number of values in `Replica.optimizer_state`, after a step.
    """

    def __init__(self, task: Task, costs: StepCosts | None = None) -> None:
        """
        Args:
            costs: of a step; None: they are measured.
        """
        self._task = task
        self._replica = Replica(task.build_model(0), task, Clock())
        self._gradients: dict[int, Gradient] = {}
        self.gradient(task.spec.batch_per_replica)
        update_s = _measured(self._replica.step)
        self.costs = costs or StepCosts(lambda samples: self.gradient(samples).seconds, update_s)
        self.model = task.build_model(0).to("meta")
        self.state_bytes = self._replica.state_bytes
        self.optimizer_state = self._replica.optimizer_state().numel()

    def gradient(self, samples: int) -> Gradient:
        """What the gradient of a batch of so many samples costs."""
        if samples not in self._gradients:
            batch = self._batch(samples)
            with torch.enable_grad(), Activations() as activations:
                self._replica.backward(batch)
            with torch.enable_grad():
                seconds = _measured(lambda: self._replica.backward(batch))
            self._gradients[samples] = Gradient(seconds, activations.peak_bytes)
        return self._gradients[samples]

    def _batch(self, samples: int) -> Batch:
        """The first samples of the training split, from the start again if it has fewer."""
        split = self._task.split("cpu")
        chosen = torch.arange(samples) % len(split.targets)
        inputs = split.inputs.index_select(0, chosen)
        if inputs.ndim == 4:
            inputs = inputs.permute(0, 3, 1, 2)
        return Batch(inputs, split.targets.index_select(0, chosen), 0, StepSizes([samples]), 1, 1)


def _measured(work: Callable[[], object]) -> float:
    """The median CPU time of this thread for the work, in seconds."""
    work()
    seconds = []
    for _ in range(REPETITIONS):
        started = time.thread_time()
        work()
        seconds.append(time.thread_time() - started)
    return median(seconds)
