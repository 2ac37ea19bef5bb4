"""The batch loader: a rank's samples as batches, gathered from memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np
import torch
from torch import Tensor

from trainer.core.rng import RngFactory
from trainer.core.strategy import Uneven
from trainer.data.augmentations.base import Augment
from trainer.data.base import Array, Indices, Split
from trainer.spec.run_spec import RunSpec
from trainer.training.partition import partition, partition_number


class StepSizes(tuple[int, ...]):
    """The samples of each part in a step."""

    @cached_property
    def total(self) -> int:
        """Those of all parts. Every rank asks for it in every step."""
        return sum(self)


@dataclass(frozen=True)
class Batch:
    """A batch of samples.

    Attributes:
        inputs: shape (batch, …); images are float32, channels_last. Where the rank does not see inputs,
            they are those of no sample.
        targets: shape (batch, …); classes are int64, shape (batch,).
        part: the number of this batch's part, from 0.
        in_step: the samples of each part in this step. A part without samples left has 0, and its batch
            one sample that does not count.
        step: the number of this step in the epoch, 1-based.
        steps: the steps of the epoch.
    """

    inputs: Tensor
    targets: Tensor
    part: int
    in_step: StepSizes
    step: int
    steps: int

    @property
    def samples(self) -> int:
        """The samples of this batch that count."""
        return self.in_step[self.part]

    @property
    def share(self) -> float:
        """This batch's fraction of the samples of all parts in this step, 0 … 1."""
        return self.samples / self.in_step.total


class Partition:
    """The parts of an epoch's samples, and their batches."""

    def __init__(self, parts: list[Indices], batch: int) -> None:
        """batch: samples per step of each part."""
        self.parts, self._batch = parts, batch
        self.sizes = [len(part) for part in parts]
        self.steps = [ceil(size / batch) for size in self.sizes]
        self._in_step: dict[tuple[int, Uneven], StepSizes] = {}

    def in_step(self, step: int, uneven: Uneven) -> StepSizes:
        """The samples of each part in a step, 0-based."""
        if (step, uneven) not in self._in_step:
            sizes, batch = self.sizes, self._batch
            if uneven != "join":
                sizes = [min(sizes) if uneven == "drop" else max(sizes)] * len(sizes)
            self._in_step[step, uneven] = StepSizes(
                min(max(part - step * batch, 0), batch) for part in sizes
            )
        return self._in_step[step, uneven]


class PartitionedSplit:
    """The training split and its partition, which the ranks of a process share.

    The samples are on `device`, where batches are gathered: they are copied to a GPU once.
    """

    def __init__(
        self, train: Split, spec: RunSpec, rngs: RngFactory, size: int, device: str = "cpu"
    ) -> None:
        """size: the number of parts."""
        self.train, self.size, self.device = train, size, device
        self._spec, self._rngs = spec, rngs
        self.targets = torch.from_numpy(train.targets).to(device)
        self._lock = threading.Lock()
        self._inputs: Tensor | None = None
        self._partitions: dict[int, Partition] = {}  # by number

    @property
    def inputs(self) -> Tensor:
        """All samples as they are gathered, see `stored`."""
        with self._lock:
            if self._inputs is None:
                self._inputs = self.stored(self.train.inputs)
            return self._inputs

    def stored(self, inputs: Array) -> Tensor:
        """Inputs on the device: images as (samples, height, width, channels), so that batches are
        channels_last."""
        tensor = torch.from_numpy(inputs)
        if tensor.ndim == 4:
            tensor = tensor.permute(0, 2, 3, 1).contiguous()
        return tensor.to(self.device)

    def partition(self, epoch: int) -> Partition:
        """The partition of `epoch` (1-based). Raises DataError."""
        number = partition_number(self._spec, epoch)
        with self._lock:
            if number not in self._partitions:
                newest = max(self._partitions, default=0)
                self._partitions = {key: kept for key, kept in self._partitions.items() if key == newest}
                parts = partition(self._spec, self._rngs, self.train.labels, self.size, epoch)
                self._partitions[number] = Partition(parts, self._spec.batch_per_replica)
            return self._partitions[number]


class BatchLoader:
    """Batches of one rank's part of the training split. Every rank knows the whole partition."""

    def __init__(
        self,
        train: Split,
        spec: RunSpec,
        rngs: RngFactory,
        rank: int,
        size: int,
        augment: Augment | None = None,
        sees_inputs: bool = True,
        shared: PartitionedSplit | None = None,
    ) -> None:
        """
        Args:
            train: the training split.
            rank, size: index of this part, and number of parts. A server has rank >= size, and no batches.
            augment: changes a batch's inputs; equal ranks get equal inputs.
            sees_inputs: whether batches have inputs; otherwise they have targets only.
            shared: the split that this rank shares with others of its process; None: it is alone.
        """
        self._split = shared or PartitionedSplit(train, spec, rngs, size)
        self._spec, self._rngs = spec, rngs
        self._rank, self._size, self._augment = rank, size, augment
        self._sees_inputs = sees_inputs and rank < size
        self._transforms_images = (
            self._sees_inputs and spec.strategy.uses_partition and spec.partitioner.transforms_images
        )
        stores_all = self._sees_inputs and not self._transforms_images
        self._inputs = self._split.inputs if stores_all else self._split.stored(train.inputs[:0])
        # The images that this rank's partitioner has transformed: the number of the partition, its samples,
        # ascending, and their inputs.
        self._transformed: tuple[int, Indices, Tensor] | None = None
        self.parts(1)  # before the clock starts; raises if the partition is not possible

    def parts(self, epoch: int) -> list[Indices]:
        """The samples of every part in `epoch` (1-based)."""
        parts = self._split.partition(epoch).parts
        number = partition_number(self._spec, epoch)
        if self._transforms_images and (self._transformed is None or self._transformed[0] != number):
            own = parts[self._rank]
            rng = self._rngs.generator("distort", self._rank, number)
            images = self._spec.partitioner.transform_images(
                self._split.train.inputs[own], self._rank, self._size, rng
            )
            self._transformed = number, own, self._split.stored(images)
        return parts

    def order(self, epoch: int) -> Indices:
        """This rank's samples in training order."""
        return self._order(epoch, self._rank)

    def _order(self, epoch: int, rank: int) -> Indices:
        return self._rngs.generator("order", rank, epoch).permutation(self.parts(epoch)[rank])

    def sizes(self, epoch: int) -> list[int]:
        """Number of samples in each part."""
        return self._split.partition(epoch).sizes

    def steps(self, epoch: int) -> list[int]:
        """Number of batches of each part."""
        return self._split.partition(epoch).steps

    def synchronous_steps(self, epoch: int, uneven: Uneven = "join") -> int:
        """Number of `synchronous_batches`."""
        steps = self.steps(epoch)
        return min(steps) if uneven == "drop" else max(steps)

    def samples_by_part(self, epoch: int, uneven: Uneven = "join") -> list[Indices]:
        """The samples that are trained on in `epoch`, with this policy for uneven parts."""
        if uneven == "join":
            return self.parts(epoch)
        sizes = self.sizes(epoch)
        return [_equalised(self._order(epoch, rank), sizes, uneven) for rank in range(self._size)]

    def batches(self, epoch: int, skip: int = 0) -> Iterator[tuple[Batch, Indices]]:
        """This rank's batches and their sample indices; the last batch may be smaller.

        skip: number of batches to leave out at the start.
        """
        order, size = self.order(epoch), self._spec.batch_per_replica
        whole = self._split.partition(epoch)
        steps = whole.steps[self._rank]
        for step in range(skip, steps):
            indices = order[step * size : (step + 1) * size]
            in_step = whole.in_step(step, "join")
            yield self._gather(indices, in_step, epoch, step + 1, steps), indices

    def synchronous_batches(
        self, epoch: int, uneven: Uneven = "join", skip: int = 0
    ) -> Iterator[tuple[Batch, Indices]]:
        """Like `batches`, with equally many steps on every rank.

        The sum over ranks of share × gradient is the mean over all samples of the step. With "join" a rank
        without samples left takes part with one sample of share 0: the first of its last batch, which it
        does not read again. A rank that resumes in such a step reads one.
        """
        size = self._spec.batch_per_replica
        order = _equalised(self.order(epoch), self.sizes(epoch), uneven)
        steps, whole = self.synchronous_steps(epoch, uneven), self._split.partition(epoch)
        batch: Batch | None = None
        for step in range(skip, steps):
            indices, in_step = order[step * size : (step + 1) * size], whole.in_step(step, uneven)
            if batch is None or len(indices):
                shown = indices if len(indices) else order[:1]
                batch = self._gather(shown, in_step, epoch, step + 1, steps)
            else:
                inputs, targets = batch.inputs[:1], batch.targets[:1]
                batch = replace(batch, inputs=inputs, targets=targets, in_step=in_step, step=step + 1)
            yield batch, indices

    def _gather(self, indices: Indices, in_step: StepSizes, epoch: int, step: int, steps: int) -> Batch:
        split, device = self._split, self._split.device
        samples = torch.from_numpy(indices).to(device)
        if self._transformed:
            _, stored, own = self._transformed
            inputs = own.index_select(0, torch.from_numpy(np.searchsorted(stored, indices)).to(device))
        else:
            inputs = self._inputs.index_select(0, samples) if self._sees_inputs else self._inputs
        if inputs.ndim == 4:
            inputs = inputs.permute(0, 3, 1, 2)
        if self._augment:
            inputs = self._augment(inputs, self._rngs.generator("augment", self._rank, epoch, step))
        return Batch(inputs, split.targets.index_select(0, samples), self._rank, in_step, step, steps)


def _equalised(order: Indices, sizes: list[int], uneven: Uneven) -> Indices:
    """A rank's samples, in order, truncated to the smallest part or repeated up to the largest."""
    if uneven == "join":
        return order
    return np.resize(order, min(sizes) if uneven == "drop" else max(sizes))  # repeats its input
