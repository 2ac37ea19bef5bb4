"""The training loop that strategies share: replicas, timed batches, evaluation, reports.

A strategy's file keeps the algorithm; what every strategy does alike is here.
"""

from __future__ import annotations

import hashlib
import resource
import sys
import time
from collections.abc import Iterator
from math import isfinite

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from trainer.clock import Clock
from trainer.comm.base import Communicator, book_waits
from trainer.context import NodeContext
from trainer.data.certificate import Certifier, PartRecord, as_fields
from trainer.data.feed import Batch, Feed
from trainer.events import EventWriter
from trainer.result import Diverged, TrainResult
from trainer.task import Task

EVALUATION_BATCH = 1000
PROGRESS_EVERY_S = 0.5
MAXRSS_PER_MIB = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere


class Replica:
    """One node's copy of the model, its optimiser, and flat views of its weights and gradient."""

    def __init__(self, model: nn.Module, task: Task, clock: Clock) -> None:
        self.model = model
        self.loss = torch.zeros(())  # of the last batch
        self._output = self._labels = torch.zeros(0)
        self._clock = clock
        self._parameters = list(model.parameters())
        self._state = [*self._parameters, *(b for b in model.buffers() if b.is_floating_point())]
        self._optimizer = task.spec.optimizer.build(self._parameters, task.spec.lr)

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        """The gradient of the batch's mean loss, times `weight`, into the parameters' `.grad`."""
        with self._clock.phase("compute"):
            self._optimizer.zero_grad()
            output = self.model(batch.images)
            loss = nll_loss(output, batch.labels)
            (loss if weight == 1.0 else loss * weight).backward()
            if weight:  # a batch without weight is no sample of this rank's
                self.loss = loss.detach()
                self._output, self._labels = output.detach(), batch.labels

    @property
    def batch_accuracy(self) -> float:
        """Share of the last batch that the model had right, 0 … 1. Costs nothing until it is asked for."""
        return (self._output.argmax(dim=1) == self._labels).float().mean().item()

    def step(self) -> None:
        """Move the weights along the gradient, as the optimiser would."""
        with self._clock.phase("compute"):
            self._optimizer.step()

    def share(self, weights: list[Tensor]) -> None:
        """From now on use these tensors, in the order of parameters and buffers, as the weights."""
        for mine, shared in zip([*self._parameters, *self.model.buffers()], weights, strict=True):
            mine.data = shared.data

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self._parameters)

    @property
    def shapes(self) -> list[torch.Size]:
        """Of the parameters, in the order in which they are in the flat gradient."""
        return [p.shape for p in self._parameters]

    def gradient(self) -> Tensor:
        """A copy of the gradient, flat: float32, shape (parameters,)."""
        return _flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters])

    def set_gradient(self, flat: Tensor) -> None:
        """Replace the gradient by a flat one of shape (parameters,)."""
        for parameter in self._parameters:
            if parameter.grad is None:  # it took no part in the loss
                parameter.grad = torch.zeros_like(parameter)
        _unflatten(flat, [p.grad for p in self._parameters if p.grad is not None])

    def weights(self) -> Tensor:
        """A copy of parameters and floating-point buffers, flat: float32, shape (state,)."""
        return _flat(self._state)

    def set_weights(self, flat: Tensor) -> None:
        """Replace parameters and floating-point buffers by flat ones of shape (state,)."""
        _unflatten(flat, self._state)


def _flat(tensors: list[Tensor]) -> Tensor:
    # reshape and not view: the weights are channels_last, the flat form is in logical order.
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def _unflatten(flat: Tensor, tensors: list[Tensor]) -> None:
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view(tensor.shape))


class Loop:
    """One rank's training, from meeting the others to its result."""

    def __init__(
        self, context: NodeContext, task: Task, events: EventWriter, comm: Communicator | None = None
    ) -> None:
        """comm: what to use instead of meeting the other ranks over the run's transport."""
        self.clock = comm.clock if comm else Clock(cpu=context.cpu_clock)
        self.comm = comm or context.connect(self.clock)
        self._context, self._task, self._events = context, task, events
        data, device = task.data, self.comm.device
        self._feed = Feed(data.train, task.spec, task.streams, context.rank, context.size, device)
        self._train_labels, self._classes = data.train.labels, data.classes
        self._test_images = torch.from_numpy(data.test.images).to(device)
        self._test_labels = torch.from_numpy(data.test.labels).to(device)
        self._labels_fed = np.zeros(self._classes, dtype=np.int64)
        self._certifier = Certifier(len(data.train.labels), context.size)
        self._steps = self._samples = 0
        self._evaluated = (0.0, 0.0)  # accuracy and loss after the last epoch

    def replica(self, weights_of: int = 0) -> Replica:
        """A fresh replica. Ranks that name the same `weights_of` start from the same weights."""
        model = self._task.build_model(self._context.rank, weights_of, self.comm.device)
        return Replica(model, self._task, self.clock)

    def start(self, replica: Replica) -> None:
        """Start the clock, on all ranks at once."""
        self.comm.barrier()
        self._events.write("train_start", parameters=replica.parameters)
        self.clock.start()

    def epochs(self, replica: Replica, *, own_model: bool = False) -> Iterator[int]:
        """The run's epochs, 1-based; each is evaluated and reported when it is done.

        Evaluation is a time-out for all ranks, outside the measured time: where nodes share cores, a
        rank that evaluates would slow down one that still trains. All wait for the slowest before it,
        inside the measured time, or a run would be faster than the machine allows. own_model: the
        ranks' models differ, so every rank evaluates its own on the whole test split; otherwise each
        takes a share.
        """
        spec = self._task.spec
        for epoch in range(1, spec.epochs + 1):
            yield epoch
            self.comm.barrier()
            train_s, loss = self.clock.train_s, replica.loss.item()
            with self.clock.phase("evaluate"):
                accuracy, test_loss = self._evaluated = self.evaluate(replica, alone=own_model)
                self._events.write(
                    "epoch",
                    epoch=epoch,
                    epochs=spec.epochs,
                    train_s=train_s,
                    loss=loss,
                    accuracy=accuracy,
                    test_loss=test_loss,
                )
                self.comm.barrier()

    def batches(self, epoch: int, replica: Replica) -> Iterator[Batch]:
        """This rank's batches of the epoch, each sample once."""
        return self._timed(epoch, replica, self._feed.batches(epoch))

    def batches_in_step(self, epoch: int, replica: Replica) -> Iterator[Batch]:
        """As `batches`, with the same number of steps on every rank."""
        return self._timed(epoch, replica, self._feed.batches_in_step(epoch))

    def _timed(
        self, epoch: int, replica: Replica, feed: Iterator[tuple[Batch, np.ndarray]]
    ) -> Iterator[Batch]:
        reported, samples = time.perf_counter(), 0
        fed: list[np.ndarray] = []
        while True:
            with self.clock.phase("data"):
                batch, indices = next(feed, (None, None))
            if batch is None or indices is None:
                break
            fed.append(indices)
            yield batch
            self._steps += 1
            self._samples += len(indices)
            samples += len(indices)
            now = time.perf_counter()
            if now - reported > PROGRESS_EVERY_S:
                self._progress(epoch, batch, replica, samples / (now - reported))
                reported, samples = now, 0
        _check(replica.loss.item(), f"in epoch {epoch}")
        with self.clock.phase("evaluate"):
            self._certify(epoch, np.concatenate(fed))

    def _progress(self, epoch: int, batch: Batch, replica: Replica, samples_per_s: float) -> None:
        loss = replica.loss.item()
        _check(loss, f"in epoch {epoch}, step {batch.step}")
        self._events.write(
            "step",
            epoch=epoch,
            epochs=self._task.spec.epochs,
            step=batch.step,
            steps=batch.steps,
            loss=loss,
            accuracy=replica.batch_accuracy,
            samples_per_s=samples_per_s,
        )

    def _certify(self, epoch: int, fed: np.ndarray) -> None:
        record = PartRecord.of(epoch, fed, self._train_labels, self._classes, self._labels_fed)
        self._labels_fed += record.labels
        self._events.write("part", **as_fields(record))
        if self._context.rank == 0:
            self._events.write("split", **as_fields(self._certifier.epoch(epoch, self._feed.parts(epoch))))

    @torch.no_grad()
    def evaluate(self, replica: Replica, *, alone: bool) -> tuple[float, float]:
        """Accuracy (0 … 1) and mean loss on the whole test split, exact: nothing padded, nothing dropped.

        alone: on this rank only; otherwise every rank takes a share and the counts are summed.
        """
        rank, size = (0, 1) if alone else (self.comm.rank, self.comm.size)
        total = len(self._test_labels)
        share = slice(rank * total // size, (rank + 1) * total // size)
        images, labels = self._test_images[share], self._test_labels[share]
        counts = torch.zeros(2, device=self.comm.device)
        replica.model.eval()
        for x, y in zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
            output = replica.model(x.contiguous(memory_format=torch.channels_last))
            counts[0] += (output.argmax(dim=1) == y).sum()
            counts[1] += nll_loss(output, y, reduction="sum")
        replica.model.train()
        if size > 1:
            self.comm.all_reduce(counts, "sum")
        _check(counts[1].item(), "on the test split")
        return counts[0].item() / total, counts[1].item() / total

    def result(self, replica: Replica, *, averaged: bool = False) -> TrainResult:
        """Stop the clock and settle the accounts.

        averaged: the weights have changed since the last epoch was evaluated, which was of this node's
        own model.
        """
        self.clock.stop()
        self._events.write("train_end")
        book_waits(self.comm)
        spec = self._task.spec
        # CPU time tells nothing where several threads share it, or where the host waits for its GPU.
        if spec.threads == 1 and not spec.on_gpu:
            self.clock.book_no_core()
        accuracy, test_loss = self.evaluate(replica, alone=False) if averaged else self._evaluated
        weights = replica.weights().cpu().numpy()
        if spec.save_weights and self._context.rank == 0 and self._context.out_dir:
            np.save(self._context.out_dir / "weights.npy", weights)
        return TrainResult(
            steps=self._steps,
            samples=self._samples,
            train_s=self.clock.train_s,
            work_cpu_s=None if spec.on_gpu else self.clock.work_cpu_s,
            seconds={phase: round(seconds, 6) for phase, seconds in self.clock.seconds.items()},
            bytes_sent=self.comm.traffic.bytes_sent,
            accuracy=accuracy,
            test_loss=test_loss,
            own_accuracy=self._evaluated[0] if averaged else None,
            weights_digest=hashlib.sha256(weights.tobytes()).hexdigest()[:16],
            parameters=replica.parameters,
            peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MAXRSS_PER_MIB,
        )


def _check(loss: float, where: str) -> None:
    if not isfinite(loss):
        raise Diverged(f"the loss is {loss} {where}; a smaller lr may help")
