"""The feed: a rank's samples as batches, gathered from memory, and the record of what was fed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from trainer.data.base import Indices, Split
from trainer.data.survey import parts_of, split_number
from trainer.spec import RunSpec
from trainer.streams import Streams


@dataclass(frozen=True)
class Batch:
    """images: (batch, channels, height, width) float32, channels_last. labels: (batch,) int64.

    share: of all samples that the nodes train on in this step, those that are in this batch, 0 … 1.
    """

    images: Tensor
    labels: Tensor
    share: float
    step: int  # 1-based
    steps: int


class Feed:
    """One rank's part of the training split, epoch by epoch. Every rank knows the whole split.

    The samples lie on `device`, where batches are gathered: to a GPU they travel once, and not in steps.
    """

    def __init__(
        self, train: Split, spec: RunSpec, streams: Streams, rank: int, size: int, device: str = "cpu"
    ) -> None:
        # Kept as (samples, height, width, channels): a gathered batch is then channels_last as it is.
        self._images = torch.from_numpy(train.images).permute(0, 2, 3, 1).contiguous().to(device)
        self._labels = torch.from_numpy(train.labels).to(device)
        self._numpy_labels = train.labels
        self._spec, self._streams = spec, streams
        self._rank, self._size = rank, size
        self._parts: tuple[int, list[Indices]] | None = None

    def parts(self, epoch: int) -> list[Indices]:
        """The samples of every node in `epoch` (1-based)."""
        number = split_number(self._spec, epoch)
        if self._parts is None or self._parts[0] != number:
            parts = parts_of(self._spec, self._streams, self._numpy_labels, self._size, epoch)
            self._parts = (number, parts)
        return self._parts[1]

    def order(self, epoch: int) -> Indices:
        """This rank's samples in the order in which it trains on them."""
        return self._streams.rng("order", self._rank, epoch).permutation(self.parts(epoch)[self._rank])

    def batches(self, epoch: int) -> Iterator[tuple[Batch, Indices]]:
        """This rank's batches and the samples in them; the last batch holds what is left."""
        order, size = self.order(epoch), self._spec.batch_size
        steps = ceil(len(order) / size)
        for step in range(steps):
            fed = order[step * size : (step + 1) * size]
            yield self._gather(fed, 1 / self._size, step + 1, steps), fed

    def batches_in_step(self, epoch: int) -> Iterator[tuple[Batch, Indices]]:
        """As `batches`, but every rank takes as many steps as the one with the most samples.

        Weighted by its `share`, the ranks' mean gradient is the mean over all samples of the step. A
        rank whose samples are used up goes through the step with one sample of share 0.
        """
        order, size = self.order(epoch), self._spec.batch_size
        part_sizes = np.array([len(part) for part in self.parts(epoch)])
        steps = ceil(part_sizes.max() / size)
        for step in range(steps):
            in_step = np.clip(part_sizes - step * size, 0, size)
            fed = order[step * size : (step + 1) * size]
            share = float(in_step[self._rank] / in_step.sum())
            yield self._gather(fed if len(fed) else order[:1], share, step + 1, steps), fed

    def _gather(self, indices: Indices, share: float, step: int, steps: int) -> Batch:
        chosen = torch.from_numpy(indices).to(self._images.device)
        images = self._images.index_select(0, chosen).permute(0, 3, 1, 2)
        return Batch(images, self._labels.index_select(0, chosen), share, step, steps)
