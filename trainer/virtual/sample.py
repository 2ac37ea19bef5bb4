"""The replica that a sampled run measures: what a step of it costs, all ranks pay."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch

from trainer.core.clock import Clock
from trainer.training.loader import Batch
from trainer.training.memory import Activations
from trainer.training.partition import StepSizes
from trainer.training.replica import Moment, Replica
from trainer.training.task import Task
from trainer.virtual.clock import StepCosts
from trainer.virtual.options import VirtualOptions

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
            costs: of a step, with `shares`; None: they are measured.
        """
        self._task = task
        self._replica = Replica(task.build_model(0), task, Clock())
        self._gradients: dict[int, Gradient] = {}
        self.gradient(task.spec.batch_per_replica)
        update_s = _measured(self._replica.step)
        self.costs = costs or StepCosts(
            lambda samples: self.gradient(samples).seconds, update_s, shares(task, self._replica)
        )
        self.model = task.build_model(0).to("meta")
        self.state_bytes = self._replica.state_bytes
        self.optimizer_state = self._replica.optimizer_state().numel()

    def gradient(self, samples: int) -> Gradient:
        """What the gradient of a batch of so many samples costs."""
        if samples not in self._gradients:
            batch = _batch(self._task, samples)
            with torch.enable_grad(), Activations() as activations:
                self._replica.backward(batch)
            with torch.enable_grad():
                seconds = _measured(lambda: self._replica.backward(batch))
            self._gradients[samples] = Gradient(seconds, activations.peak_bytes)
        return self._gradients[samples]


def given_costs(task: Task, options: VirtualOptions) -> StepCosts | None:
    """The costs of a step that options give; None: they are measured."""
    if (costs := StepCosts.given(options)) is None:
        return None
    return replace(costs, shares=shares(task, Replica(task.build_model(0), task, Clock())))


def shares(task: Task, replica: Replica) -> Mapping[Hashable, float]:
    """The share of the CPU time of the passes that is over by each moment in them, in their order.

    It is measured where exchanges start in a backward pass; elsewhere there is none.
    """
    if not task.spec.strategy.overlaps_backward:
        return {}
    batch, passes = _batch(task, task.spec.batch_per_replica), list[dict[Moment, float]]()
    times: dict[Moment, float] = {}
    replica.listen(lambda moment: times.setdefault(moment, time.thread_time()), blocks=True)
    for _ in range(1 + REPETITIONS):
        times.clear()
        started = time.thread_time()
        with torch.enable_grad():
            replica.backward(batch)
        took = time.thread_time() - started
        passes.append({moment: (at - started) / took for moment, at in times.items()})
    replica.listen(None)
    return {moment: median(each[moment] for each in passes[1:]) for moment in passes[0]}


def _batch(task: Task, samples: int) -> Batch:
    """The first samples of the training split, from the start again if it has fewer."""
    split = task.split("cpu")
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
