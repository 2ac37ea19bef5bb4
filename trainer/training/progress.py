"""Progress: how far a rank has come within an epoch, told now and then."""

from __future__ import annotations

import time

from trainer.core.events import EventWriter
from trainer.training.evaluation import check_loss
from trainer.training.loader import Batch
from trainer.training.replica import Replica

EVERY_S = 0.5


class Progress:
    """One rank's in one epoch."""

    def __init__(self, epoch: int, epochs: int, replica: Replica, events: EventWriter) -> None:
        self._epoch, self._epochs, self._replica, self._events = epoch, epochs, replica, events
        self._told, self._samples = time.perf_counter(), 0

    def after(self, batch: Batch, samples: int) -> None:
        """A step has been taken with so many samples. Raises Diverged, now and then, if it led nowhere."""
        self._samples += samples
        now = time.perf_counter()
        if now - self._told <= EVERY_S:
            return
        if self._replica.loss is not None:  # else another rank has it
            self._tell(batch, self._replica.loss.item(), self._samples / (now - self._told))
        self._told, self._samples = now, 0

    def _tell(self, batch: Batch, loss: float, samples_per_s: float) -> None:
        check_loss(loss, f"in epoch {self._epoch}, step {batch.step}")
        self._events.write(
            "step",
            epoch=self._epoch,
            epochs=self._epochs,
            step=batch.step,
            steps=batch.steps,
            loss=loss,
            accuracy=self._replica.batch_accuracy,
            samples_per_s=samples_per_s,
        )
