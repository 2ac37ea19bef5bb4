"""A stage: one rank's part of a model that is cut into a chain of parts, and the way from part to part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from trainer.comm.base import Communicator, SendRequest
from trainer.core.clock import Clock
from trainer.models.shapes import input_shapes
from trainer.models.split_points import balanced_split_points, stage_blocks
from trainer.parallel.schedules import Pass
from trainer.training.loader import Batch
from trainer.training.profile import profile
from trainer.training.replica import Replica, channels_last, joined
from trainer.training.task import Task


def cut(
    task: Task, comm: Communicator, parts: int, split_points: Sequence[str] | None, micro_batches: int
) -> list[str]:
    """The cuts between `parts` parts; None: balanced by the time that blocks take for a micro-batch.

    Every rank calls it, before the clock runs. Rank 0 measures, so that all cut alike.
    """
    names = task.spec.model.names
    if split_points is not None or parts == 1:
        return list(split_points or ())
    seconds = torch.zeros(len(names), device=comm.device)
    if comm.rank == 0:
        train, samples = task.data.train, task.spec.batch_per_replica // micro_batches
        images, labels = torch.from_numpy(train.images[:samples]), torch.from_numpy(train.labels[:samples])
        measured = profile(task.build_model(0).named_children(), images, labels)
        seconds.copy_(torch.tensor([block.seconds for block in measured]))
    comm.broadcast(seconds, root=0)
    return balanced_split_points(names, seconds.tolist(), parts)


class Stage(Replica):
    """A part of the model, its optimiser, and the activations and gradients that come and go.

    The loss of a step is the mean over the whole batch: a micro-batch's is the sum over its samples,
    divided by all of them, so that the gradients of micro-batches of any size add up to the batch's.
    """

    def __init__(
        self, task: Task, clock: Clock, comm: Communicator, split_points: Sequence[str], replica: int
    ) -> None:
        """comm: of those that hold one copy of the model, in the order of their parts. replica: the copy's
        number, by which its dropout draws."""
        names = task.spec.model.names
        self.number, self.stages = comm.rank, comm.size
        self._blocks = stage_blocks(names, split_points)[self.number]
        super().__init__(task.build_model(replica, device=comm.device, only=self._blocks), task, clock)
        self._comm = comm
        self._first, self._last = self.number == 0, self.number == self.stages - 1
        classes = task.data.classes
        shapes = [*input_shapes(task.spec.model, task.data.train.images.shape[1:], classes), (classes,)]
        self._enters = shapes[names.index(self._blocks[0])]
        self._leaves = shapes[names.index(self._blocks[-1]) + 1]
        self._sizes = _sizes(task, split_points)
        if not self._last:
            self.loss = None
        self._on_the_way: dict[int, tuple[Tensor, Tensor]] = {}  # by micro-batch: what came in and went out
        self._sendings: list[SendRequest] = []

    @property
    def blocks(self) -> list[str]:
        return self._blocks

    def begin(self, batch: Batch, micro_batches: int, weight: float = 1.0) -> int:
        """Take up a batch; returns in how many micro-batches, none of them empty. weight: of its loss."""
        self._optimizer.zero_grad()
        self._count(bool(weight))
        number = min(micro_batches, len(batch.labels))
        self._images, self._labels_of = batch.images.tensor_split(number), batch.labels.tensor_split(number)
        self._samples, self._weight = len(batch.labels), weight
        if self._last:
            self._losses: list[Tensor] = []
            self._outputs: list[Tensor] = []
        return number

    def go(self, this: Pass) -> None:
        """Let one micro-batch through this stage."""
        if this.forward:
            self._forward(this.micro_batch)
        else:
            self._backward(this.micro_batch)

    def _forward(self, number: int) -> None:
        labels = self._labels_of[number]
        x = self._images[number] if self._first else self._receive(len(labels)).requires_grad_()
        with self._clock.phase("compute"):
            output = self.model(x)
            if self._last:
                self._outputs.append(output.detach())
                output = nll_loss(output, labels, reduction="sum") / self._samples
                self._losses.append(output.detach())
        self._on_the_way[number] = x, output
        if not self._last:
            self._send(output, self.number + 1)

    def _backward(self, number: int) -> None:
        x, output = self._on_the_way.pop(number)
        gradient = None
        if not self._last:
            gradient = torch.empty(output.shape, device=self._comm.device)
            self._comm.recv(gradient.view(-1), self.number + 1)
        with self._clock.phase("compute"):
            if output.requires_grad:  # images need no gradient, and a first stage may have no weights
                if gradient is None and self._weight != 1.0:
                    output = output * self._weight
                output.backward(gradient)
        if not self._first:
            self._send(cast("Tensor", x.grad), self.number - 1)

    def _receive(self, samples: int) -> Tensor:
        """The activations of so many samples, from the stage before."""
        buffer = torch.empty(samples, *self._enters, device=self._comm.device)
        self._comm.recv(buffer.view(-1), self.number - 1)
        return channels_last(buffer)

    def _send(self, tensor: Tensor, to: int) -> None:
        self._sendings.append(self._comm.isend(tensor.detach().reshape(-1), to))

    def _sent(self) -> None:
        """Wait until all that was sent has left."""
        for sending in self._sendings:
            sending.wait()
        self._sendings.clear()

    def end(self) -> None:
        """After the last pass of a batch: nothing is on the way any more."""
        self._sent()
        if self._last and self._weight:  # a batch without weight is no sample of this copy's
            with self._clock.phase("compute"):
                self.loss = torch.stack(self._losses).sum()
                self._output, self._labels = torch.cat(self._outputs), torch.cat(self._labels_of)

    def predict(self, images: Tensor) -> Tensor | None:
        """As of the whole model; every stage calls it, and the last one knows."""
        output: Tensor = self.model(images if self._first else self._receive(len(images)))
        if self._last:
            return output
        self._send(output, self.number + 1)
        self._sent()
        return None

    def full_weights(self) -> Tensor | None:
        """As of the whole model, on the first stage; every stage calls it."""
        if not self._first:
            self._comm.send(self.weights(), to=0)
            return None
        halves = [self.halves()]
        for stage, (parameters, statistics) in enumerate(self._sizes[1:], start=1):
            state = torch.empty(parameters + statistics, device=self._comm.device)
            self._comm.recv(state, source=stage)
            halves.append((state[:parameters], state[parameters:]))
        return joined(halves)


def _sizes(task: Task, split_points: Sequence[str]) -> list[tuple[int, int]]:
    """Of every part: numbers in its parameters, and in its statistics. No part is built in memory."""
    shape, classes = task.data.train.images.shape[1:], task.data.classes
    with torch.device("meta"):
        blocks = dict(task.spec.model.blocks(shape, classes, torch.Generator("cpu")))
    return [
        (
            sum(p.numel() for name in part for p in blocks[name].parameters()),
            sum(b.numel() for name in part for b in blocks[name].buffers() if b.is_floating_point()),
        )
        for part in stage_blocks(task.spec.model.names, split_points)
    ]
