"""A rank's training metrics: progress within an epoch, and the data of certificate and result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainer.core.events import EventWriter
from trainer.data.base import Data, Indices
from trainer.data.certificate import CoverageTracker, partition_record
from trainer.training.evaluation import check_loss
from trainer.training.loader import Batch
from trainer.training.memory import peak_memory_mb
from trainer.training.replica import Replica

PROGRESS_INTERVAL_S = 0.5


class TrainingMetrics:
    """One rank's metrics. Events about an epoch are kept, so that a resumed run can write them again."""

    def __init__(self, data: Data, parts: int, events: EventWriter) -> None:
        """parts: the number of parts of the training split's partition."""
        self._labels, self._classes, self._data = data.train.labels, data.classes, data.digest
        self._events = events
        self._label_counts = np.zeros(data.classes, dtype=np.int64)  # of all samples trained on so far
        self._coverage = CoverageTracker(len(self._labels), parts)
        self._reported: list[tuple[str, dict[str, Any]]] = []
        self.steps = self.samples = 0
        self.samples_since_average = 0
        self.epoch_indices: list[Indices] = []  # samples trained on in this epoch, by batch
        self.rounds: set[int] = set()  # of this epoch, in which this rank has trained
        self.peak_memory_mb: float | None = None
        self.evaluated = (0.0, 0.0)  # accuracy and loss after the last epoch

    def report(self, kind: str, **fields: Any) -> None:
        """Write an event about an epoch."""
        self._events.write(kind, **fields)
        self._reported.append((kind, fields))

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy after each epoch so far, 0 … 1."""
        return [fields["accuracy"] for kind, fields in self._reported if kind == "epoch"]

    def measure_peak_memory(self) -> None:
        """Measure once, at the end of the first epoch: evaluation uses larger batches."""
        if self.peak_memory_mb is None:
            self.peak_memory_mb = peak_memory_mb()

    def report_partition(self, epoch: int, in_rounds: bool) -> None:
        """Report the samples that this rank has trained on in the epoch.

        in_rounds: whether to report in how many rounds.
        """
        indices = np.concatenate([np.zeros(0, dtype=np.int64), *self.epoch_indices])
        record = partition_record(
            epoch,
            indices,
            self._labels,
            self._classes,
            self._label_counts,
            len(self.rounds) if in_rounds else None,
            self._data,
        )
        self.rounds.clear()
        self._label_counts += record.labels
        self.report("partition", **record.model_dump(exclude_none=True))

    def cover(self, parts: list[Indices]) -> None:
        """Add the partitions of an epoch in which this rank was lost, so that its reports include them."""
        self._coverage.add(parts)

    def report_coverage(self, epoch: int, parts: list[Indices], uneven: str, each: bool) -> None:
        """Report how the partition covers the training set. each: whether to list every part."""
        record = self._coverage.epoch(epoch, parts, uneven, each)
        self.report("coverage", **record.model_dump(exclude_none=True))

    def state(self) -> dict[str, Any]:
        """All metrics, as plain values and tensors."""
        return {
            "label_counts": torch.from_numpy(self._label_counts),
            "seen": torch.from_numpy(packed(self._coverage.seen)),
            "reported": self._reported,
            "steps": self.steps,
            "samples": self.samples,
            "samples_since_average": self.samples_since_average,
            "epoch_indices": [torch.from_numpy(np.concatenate(self.epoch_indices))]
            if self.epoch_indices
            else [],
            "rounds": sorted(self.rounds),
            "peak_memory_mb": self.peak_memory_mb,
            "evaluated": self.evaluated,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state` of another process, and write its events again."""
        self._label_counts = state["label_counts"].numpy()
        self._coverage.seen = unpacked(state["seen"].numpy(), len(self._labels))
        self._reported = [*state["reported"]]
        self.steps, self.samples = state["steps"], state["samples"]
        self.samples_since_average = state["samples_since_average"]
        self.epoch_indices = [indices.numpy() for indices in state["epoch_indices"]]
        self.rounds = {*state["rounds"]}
        self.peak_memory_mb, self.evaluated = state["peak_memory_mb"], state["evaluated"]
        for kind, fields in self._reported:
            self._events.write_quietly(kind, **fields)


def packed(seen: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Rows of flags as bits. numpy gives an array without rows another number of dimensions."""
    return np.packbits(seen, axis=1) if len(seen) else np.zeros((0, 1), dtype=np.uint8)


def unpacked(bits: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.bool_]:
    """The rows, each of so many flags."""
    found = np.unpackbits(bits, axis=1, count=count) if len(bits) else np.zeros((0, count))
    return found.astype(bool)


class StepProgress:
    """Writes a `step` event every half second of an epoch."""

    def __init__(self, epoch: int, epochs: int, replica: Replica, events: EventWriter) -> None:
        self._epoch, self._epochs, self._replica, self._events = epoch, epochs, replica, events
        self._written_at, self._samples = time.perf_counter(), 0

    def after_step(self, batch: Batch, samples: int) -> None:
        """Raises Diverged if the loss is not finite. Checked only when an event is due."""
        self._samples += samples
        now = time.perf_counter()
        if now - self._written_at <= PROGRESS_INTERVAL_S:
            return
        if self._replica.loss is not None:  # else another rank has the loss
            self._write(batch, self._replica.loss.item(), self._samples / (now - self._written_at))
        self._written_at, self._samples = now, 0

    def _write(self, batch: Batch, loss: float, samples_per_s: float) -> None:
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
