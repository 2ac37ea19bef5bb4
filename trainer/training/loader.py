"""The batch loader: a rank's samples as batches, gathered from memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import nan

import numpy as np
import torch
from torch import Tensor

from trainer.core.participation import Round
from trainer.core.rng import RngFactory
from trainer.core.strategy import Uneven
from trainer.data.augmentations.base import Augment
from trainer.data.base import Array, DataError, Indices, Split
from trainer.spec.batches import batch_error, warm_up_error
from trainer.spec.run_spec import RunSpec
from trainer.training.participants import Participants
from trainer.training.partition import Partition, StepSizes, partition, partition_number


@dataclass(frozen=True)
class Batch:
    """A batch of samples.

    Attributes:
        inputs: shape (batch, …); images are float32, in the model's memory format. Where the rank does not
            see inputs, they are those of no sample.
        targets: shape (batch, …); classes are int64, shape (batch,).
        part: the number of this batch's part, from 0.
        in_step: the samples of each part in this step. A part without samples left has 0, and its batch
            one sample that does not count. So has a part that does not take part in the round.
        round: the round of this step; None if all parts take part in every step.
        weights: the weights of each part's samples in this step, added up; None: all samples count alike.
        step: the number of this step in the epoch, 1-based.
        steps: the steps of the epoch.
    """

    inputs: Tensor
    targets: Tensor
    part: int
    in_step: StepSizes
    step: int
    steps: int
    round: Round | None = None
    weights: list[float] | None = None

    @property
    def samples(self) -> int:
        """The samples of this batch that count."""
        return self.in_step[self.part]

    @property
    def share(self) -> float:
        """This batch's fraction of all samples of this step, or of their weights, 0 … 1.

        nan if no sample of the step has a weight: its mean loss is nan, too.
        """
        if self.weights is None:
            return self.samples / self.in_step.total
        total = sum(self.weights)
        return self.weights[self.part] / total if total else nan


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
                sizes = [len(part) for part in parts]
                if reason := batch_error(self._spec, sizes) or warm_up_error(self._spec, sizes):
                    raise DataError(reason)
                self._partitions[number] = Partition(parts, self._spec.batch_per_replica)
            return self._partitions[number]

    @cached_property
    def weights(self) -> Array | None:
        """The weight of each sample in the loss, float64; None: all count alike."""
        weights = self._spec.loss.weights(self.targets)
        return None if weights is None else weights.double().cpu().numpy()

    @cached_property
    def participants(self) -> Participants | None:
        """Who takes part in each step; None: all parts do. Raises DataError."""
        rounds = self._spec.strategy.rounds
        return Participants(rounds, self._rngs, self.partition) if rounds else None


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
        return self._split.partition(epoch).synchronous_steps(uneven)

    def in_step(self, epoch: int, step: int, uneven: Uneven) -> StepSizes:
        """The samples of each part in a step, 1-based."""
        return self._in_step(epoch, step - 1, uneven)[0]

    def samples_by_part(self, epoch: int, uneven: Uneven = "join") -> list[Indices]:
        """The samples that are trained on in `epoch`, with this policy for uneven parts."""
        if uneven == "join" and not self._split.participants:
            return self.parts(epoch)
        sizes = self.sizes(epoch)
        orders = [_equalised(self._order(epoch, rank), sizes, uneven) for rank in range(self._size)]
        if not self._split.participants:
            return orders
        size = self._spec.batch_per_replica
        steps = range(0, self.synchronous_steps(epoch, uneven) * size, size)
        taken = [self._in_step(epoch, step, uneven)[0] for step in range(len(steps))]
        return [
            np.concatenate([order[at : at + each[rank]] for at, each in zip(steps, taken, strict=True)])
            for rank, order in enumerate(orders)
        ]

    def _in_step(self, epoch: int, step: int, uneven: Uneven) -> tuple[StepSizes, Round | None]:
        """The samples of each part in a step, 0-based, and the round of the step."""
        participants = self._split.participants
        if participants is None:
            return self._split.partition(epoch).in_step(step, uneven), None
        return participants.in_step(epoch, step, uneven), participants.round(epoch, step, uneven)

    def batches(self, epoch: int, skip: int = 0) -> Iterator[tuple[Batch, Indices]]:
        """This rank's batches and their sample indices; the last batch may be smaller.

        skip: number of batches to leave out at the start.
        """
        order, size = self.order(epoch), self._spec.batch_per_replica
        steps = self.steps(epoch)[self._rank]
        for step in range(skip, steps):
            in_step, round_ = self._in_step(epoch, step, "join")
            if own := in_step[self._rank]:
                indices = order[step * size : step * size + own]
                inputs, targets = self._gather(indices, epoch, step + 1)
                yield Batch(inputs, targets, self._rank, in_step, step + 1, steps, round_), indices

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
        steps = self.synchronous_steps(epoch, uneven)
        weights = self._weights_of_parts(epoch, uneven)
        gathered: tuple[Tensor, Tensor] | None = None
        for step in range(skip, steps):
            in_step, round_ = self._in_step(epoch, step, uneven)
            indices = order[step * size : step * size + in_step[self._rank]]
            if gathered is None or len(indices):
                gathered = self._gather(indices if len(indices) else order[:1], epoch, step + 1)
            else:
                gathered = gathered[0][:1], gathered[1][:1]
            of_parts = None
            if weights is not None:
                at = step * size
                of_parts = [each[at + n] - each[at] for each, n in zip(weights, in_step, strict=True)]
            yield Batch(*gathered, self._rank, in_step, step + 1, steps, round_, of_parts), indices

    def _weights_of_parts(self, epoch: int, uneven: Uneven) -> list[Array] | None:
        """Of each part, the weight of its first n samples in training order, for each n; or None.

        Arrays go on after the last sample, as steps do in which a part has none left.
        """
        weights, sizes = self._split.weights, self.sizes(epoch)
        if weights is None:
            return None
        length = self.synchronous_steps(epoch, uneven) * self._spec.batch_per_replica
        sums = []
        for rank in range(self._size):
            order = _equalised(self._order(epoch, rank), sizes, uneven)
            of_samples = np.concatenate([[0.0], weights[order].cumsum()])
            sums.append(np.pad(of_samples, (0, max(0, length + 1 - len(of_samples))), mode="edge"))
        return sums

    def _gather(self, indices: Indices, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples. step: 1-based, for the augmentation."""
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
        if inputs.ndim == 4 and not self._spec.model.channels_last:
            inputs = inputs.contiguous()
        return inputs, split.targets.index_select(0, samples)


def _equalised(order: Indices, sizes: list[int], uneven: Uneven) -> Indices:
    """A rank's samples, in order, truncated to the smallest part or repeated up to the largest."""
    if uneven == "join":
        return order
    return np.resize(order, min(sizes) if uneven == "drop" else max(sizes))  # repeats its input
