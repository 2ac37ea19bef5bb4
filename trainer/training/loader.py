"""The feed: a rank's samples as batches, gathered from memory, and the record of what was fed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from trainer.core.rng import RngFactory
from trainer.core.strategy import Uneven
from trainer.data.augmentations.base import Augment
from trainer.data.base import Images, Indices, Split
from trainer.spec.run_spec import RunSpec
from trainer.training.partition import parts_of, split_number


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


class BatchLoader:
    """One part of the training split, epoch by epoch. Every rank knows the whole split.

    The samples lie on `device`, where batches are gathered: to a GPU they travel once, and not in steps.
    """

    def __init__(
        self,
        train: Split,
        spec: RunSpec,
        rngs: RngFactory,
        rank: int,
        size: int,
        device: str = "cpu",
        augment: Augment | None = None,
    ) -> None:
        """rank, size: among those who train. A server's lies beyond them: it has no part, no batch.

        augment: what changes a batch's images; all who have the same `rank` get the same ones.
        """
        self._train, self._device = train, device
        self._labels = torch.from_numpy(train.labels).to(device)
        self._spec, self._rngs = spec, rngs
        self._rank, self._size, self._augment = rank, size, augment
        self._parts: tuple[int, list[Indices]] | None = None
        trains = rank < size
        self._transforms_images = (
            trains and spec.strategy.uses_partition and spec.partitioner.transforms_images
        )
        self._own: Indices | None = None  # the samples whose images are kept, ascending; None: all
        self._images = self._laid_out(
            train.images if trains and not self._transforms_images else train.images[:0]
        )
        self.parts(1)  # before the clock starts; a split that cannot be made ends the run here

    def parts(self, epoch: int) -> list[Indices]:
        """The samples of every node in `epoch` (1-based), whose batches are fed before the next one's."""
        number = split_number(self._spec, epoch)
        if self._parts is None or self._parts[0] != number:
            parts = parts_of(self._spec, self._rngs, self._train.labels, self._size, epoch)
            self._parts = (number, parts)
            if self._transforms_images:
                self._distort(number, parts[self._rank])
        return self._parts[1]

    def _distort(self, number: int, own: Indices) -> None:
        """Keep this rank's part alone, as the partitioner lets it see it: once, not in every epoch."""
        rng = self._rngs.generator("distort", self._rank, number)
        images = self._spec.partitioner.transform_images(
            self._train.images[own], self._rank, self._size, rng
        )
        self._own, self._images = own, self._laid_out(images)

    def _laid_out(self, images: Images) -> Tensor:
        # As (samples, height, width, channels): a gathered batch is then channels_last as it is.
        return torch.from_numpy(images).permute(0, 2, 3, 1).contiguous().to(self._device)

    def order(self, epoch: int) -> Indices:
        """This rank's samples in the order in which it trains on them."""
        return self._order(epoch, self._rank)

    def _order(self, epoch: int, rank: int) -> Indices:
        return self._rngs.generator("order", rank, epoch).permutation(self.parts(epoch)[rank])

    def sizes(self, epoch: int) -> list[int]:
        """Samples in every node's part."""
        return [len(part) for part in self.parts(epoch)]

    def steps(self, epoch: int) -> list[int]:
        """Batches of every node."""
        return [ceil(size / self._spec.batch_per_replica) for size in self.sizes(epoch)]

    def steps_together(self, epoch: int, uneven: Uneven = "join") -> int:
        """Steps of every node in `batches_in_step`."""
        steps = self.steps(epoch)
        return min(steps) if uneven == "drop" else max(steps)

    def fed(self, epoch: int, uneven: Uneven = "join") -> list[Indices]:
        """The samples that each rank feeds in `epoch`, where uneven parts are dealt with so."""
        if uneven == "join":
            return self.parts(epoch)
        sizes = self.sizes(epoch)
        return [_evened(self._order(epoch, rank), sizes, uneven) for rank in range(self._size)]

    def batches(self, epoch: int, skip: int = 0) -> Iterator[tuple[Batch, Indices]]:
        """This rank's batches and the samples in them; the last batch holds what is left.

        skip: how many at the beginning have been fed already.
        """
        order, size = self.order(epoch), self._spec.batch_per_replica
        steps = self.steps(epoch)[self._rank]
        for step in range(skip, steps):
            fed = order[step * size : (step + 1) * size]
            yield self._gather(fed, 1 / self._size, epoch, step + 1, steps), fed

    def batches_in_step(
        self, epoch: int, uneven: Uneven = "join", skip: int = 0
    ) -> Iterator[tuple[Batch, Indices]]:
        """As `batches`, but every rank takes as many steps as the one with the most samples.

        Weighted by its `share`, the ranks' mean gradient is the mean over all samples of the step. A
        rank whose samples are used up goes through the step with one sample of share 0.
        """
        sizes, size = self.sizes(epoch), self._spec.batch_per_replica
        order = _evened(self.order(epoch), sizes, uneven)
        part_sizes = np.array(sizes if uneven == "join" else [len(order)] * self._size)
        steps = self.steps_together(epoch, uneven)
        for step in range(skip, steps):
            synchronous = np.clip(part_sizes - step * size, 0, size)
            fed = order[step * size : (step + 1) * size]
            share = float(synchronous[self._rank] / synchronous.sum())
            yield self._gather(fed if len(fed) else order[:1], share, epoch, step + 1, steps), fed

    def _gather(self, indices: Indices, share: float, epoch: int, step: int, steps: int) -> Batch:
        chosen = torch.from_numpy(indices).to(self._device)
        places = chosen if self._own is None else torch.from_numpy(np.searchsorted(self._own, indices))
        images = self._images.index_select(0, places.to(self._device)).permute(0, 3, 1, 2)
        if self._augment:
            images = self._augment(images, self._rngs.generator("augment", self._rank, epoch, step))
        return Batch(images, self._labels.index_select(0, chosen), share, step, steps)


def _evened(order: Indices, sizes: list[int], uneven: Uneven) -> Indices:
    """A rank's samples, in order, cut down to the smallest part or repeated up to the largest."""
    if uneven == "join":
        return order
    return np.resize(order, min(sizes) if uneven == "drop" else max(sizes))  # it repeats what it is given
