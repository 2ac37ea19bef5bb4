"""Learning-rate schedule and target accuracy: pure functions of the spec, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.spec.run_spec import RunSpec


def learning_rate(run: RunSpec, epoch: int) -> float:
    """The learning rate of an epoch, 1-based, which a schedule multiplies in each step.

    Let P be the number of batches that all ranks take at once. lr_scaling: linear gives lr · P (Goyal et
    al. 2017, "Accurate, Large Minibatch SGD", Sec. 2.1), sqrt gives lr · √P (Krizhevsky 2014, "One weird
    trick for parallelizing convolutional neural networks", Sec. 3.2). Warm-up (Goyal et al., Sec. 2.2)
    raises the rate epoch by epoch, as torch's LinearLR: from lr, the serial rate, in the first epoch, in
    equal steps, to the scaled rate in epoch warm_up_epochs + 1. With none, where the two rates are the
    same, it raises the rate from lr / P. With P = 1, where these are the same, too, and Goyal et al. have
    no warm-up, the rate of epoch e is lr · e / (warm_up_epochs + 1).
    """
    times = run.batch_multiplier
    factor = {"none": 1.0, "linear": times, "sqrt": sqrt(times)}[run.lr_scaling]
    scaled = run.lr * factor
    if epoch > run.warm_up_epochs:
        return scaled
    rise = times if run.lr_scaling == "none" else factor  # of the rate during warm-up
    if times == 1:
        rise = run.warm_up_epochs + 1
    return scaled * (1 + (rise - 1) * (epoch - 1) / run.warm_up_epochs) / rise


def scheduled_rate(run: RunSpec, epoch: int, step: int, steps: int) -> float:
    """The learning rate of a step of an epoch with so many steps; epoch and step are 1-based.

    Each epoch has an equal share of the schedule, as if all had as many steps as this one. So a schedule
    ends with the last step also where epochs differ in length, and nothing must be known of later ones.
    """
    at, length = (epoch - 1) * steps + step - 1, run.epochs * steps
    return learning_rate(run, epoch) * run.lr_schedule.after_warm_up(at, length, run.epochs)


@dataclass
class Target:
    """The test accuracy, 0 … 1, at which training ends; None: train all epochs.

    patience: consecutive epochs that must reach it. streak: consecutive epochs that have.
    """

    accuracy: float | None
    patience: int
    streak: int = 0

    def reached(self, accuracy: float) -> bool:
        """Record the test accuracy of an epoch; whether training ends."""
        if self.accuracy is None:
            return False
        self.streak = self.streak + 1 if accuracy >= self.accuracy else 0
        return self.streak >= self.patience
