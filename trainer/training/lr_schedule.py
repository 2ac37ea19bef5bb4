"""How fast a run learns, and when it has learned enough: pure, from its spec. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.spec.run_spec import RunSpec


def learning_rate(run: RunSpec, epoch: int) -> float:
    """The optimiser's in an epoch, 1-based. P: the run's batches at once; with 1 it is `lr` throughout.

    Scaled with the batch: linear, lr · P, after Goyal et al. 2017 ("Accurate, Large Minibatch SGD", Sec.
    2.1); sqrt, lr · √P, after Krizhevsky 2014 ("One weird trick for parallelizing convolutional neural
    networks", Sec. 3.2). It warms up gradually (Goyal et al., Sec. 2.2), here from epoch to epoch as with
    torch's LinearLR: from a P-th in the first one in equal steps to the whole in epoch warm_up_epochs + 1.
    """
    times = run.batch_multiplier
    scaled = run.lr * {"none": 1.0, "linear": times, "sqrt": sqrt(times)}[run.lr_scaling]
    if epoch > run.warm_up_epochs:
        return scaled
    return scaled * (1 + (times - 1) * (epoch - 1) / run.warm_up_epochs) / times


@dataclass
class Target:
    """The test accuracy, 0 … 1, at which training ends; None: it goes on to its last epoch.

    It has to be reached in `patience` epochs in a row. streak: in how many it has been, up to the last.
    """

    accuracy: float | None
    patience: int
    streak: int = 0

    def reached(self, accuracy: float) -> bool:
        """Take note of the test accuracy after an epoch; whether it has been enough for long enough."""
        if self.accuracy is None:
            return False
        self.streak = self.streak + 1 if accuracy >= self.accuracy else 0
        return self.streak >= self.patience
