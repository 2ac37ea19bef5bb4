"""A rank's accounts of its training: what it has done so far, as certificate and result will say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trainer.core.events import EventWriter
from trainer.data.base import Indices, Labels
from trainer.data.certificate import CoverageTracker, PartitionRecord
from trainer.training.peak_memory import peak_memory_mb


class TrainingMetrics:
    """One rank's. What it tells of an epoch is an event, and kept, so that it can be told again."""

    def __init__(self, labels: Labels, classes: int, parts: int, events: EventWriter) -> None:
        """labels: of the training split, shape (samples,). parts: into which it is split."""
        self._labels, self._classes = labels, classes
        self._events = events
        self._labels_fed = np.zeros(classes, dtype=np.int64)
        self._certifier = CoverageTracker(len(labels), parts)
        self._told: list[tuple[str, dict[str, Any]]] = []
        self.steps = self.samples = 0
        self.fed: list[Indices] = []  # in this epoch
        self.peak_memory_mb: float | None = None
        self.evaluated = (0.0, 0.0)  # accuracy and loss after the last epoch

    def tell(self, kind: str, **fields: Any) -> None:
        """An event about an epoch."""
        self._events.write(kind, **fields)
        self._told.append((kind, fields))

    @property
    def accuracies(self) -> list[float]:
        """After each epoch so far, 0 … 1."""
        return [fields["accuracy"] for kind, fields in self._told if kind == "epoch"]

    def note_peak_memory(self) -> None:
        """At the end of an epoch, before evaluation, which takes more samples at a time."""
        if self.peak_memory_mb is None:
            self.peak_memory_mb = peak_memory_mb()

    def certify_part(self, epoch: int) -> None:
        """Tell which samples this rank has really fed in the epoch."""
        fed = np.concatenate(self.fed)
        record = PartitionRecord.of(epoch, fed, self._labels, self._classes, self._labels_fed)
        self._labels_fed += record.labels
        self.tell("partition", **record.model_dump())

    def certify_split(self, epoch: int, parts: list[Indices], uneven: str) -> None:
        """Tell how the samples were to lie over the nodes."""
        self.tell("coverage", **self._certifier.epoch(epoch, parts, uneven).model_dump())

    def state(self) -> dict[str, Any]:
        """All of it, as plain values and tensors."""
        return {
            "labels_fed": torch.from_numpy(self._labels_fed),
            "seen": torch.from_numpy(np.packbits(self._certifier.seen, axis=1)),
            "told": self._told,
            "steps": self.steps,
            "samples": self.samples,
            "fed": [torch.from_numpy(np.concatenate(self.fed))] if self.fed else [],
            "peak_memory_mb": self.peak_memory_mb,
            "evaluated": self.evaluated,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` has given in another process, and tell again what had been told."""
        self._labels_fed = state["labels_fed"].numpy()
        seen = np.unpackbits(state["seen"].numpy(), axis=1, count=len(self._labels))
        self._certifier.seen = seen.astype(bool)
        self._told = [*state["told"]]
        self.steps, self.samples = state["steps"], state["samples"]
        self.fed = [indices.numpy() for indices in state["fed"]]
        self.peak_memory_mb, self.evaluated = state["peak_memory_mb"], state["evaluated"]
        for kind, fields in self._told:
            self._events.write_quietly(kind, **fields)
