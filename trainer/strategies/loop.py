"""The training loop that strategies share: timed batches, evaluation, reports.

A strategy's file keeps the algorithm; what every strategy does alike is here.
"""

from __future__ import annotations

import hashlib
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import fmean
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from trainer.clock import Clock
from trainer.comm.base import Communicator, book_waits
from trainer.context import NodeContext
from trainer.data.certificate import Certifier, PartRecord, as_fields
from trainer.data.feed import Batch, Feed
from trainer.events import EventWriter
from trainer.result import Diverged, TrainResult
from trainer.strategies.base import Init, Uneven, Weighting
from trainer.strategies.replica import Replica
from trainer.task import Task

EVALUATION_BATCH = 1000
PROGRESS_EVERY_S = 0.5
MAXRSS_PER_MIB = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere


class Loop:
    """One rank's training, from meeting the others to its result."""

    def __init__(
        self, context: NodeContext, task: Task, events: EventWriter, comm: Communicator | None = None
    ) -> None:
        """comm: what to use instead of meeting the other ranks over the run's transport."""
        self.clock = comm.clock if comm else Clock(cpu=context.cpu_clock)
        self.comm = comm or context.connect(self.clock)
        self._context, self._task, self._events = context, task, events
        data, device, parts = task.data, self.comm.device, task.spec.parts
        # Among those who train, who count from 0 as they would without servers: a worker has the samples,
        # their order and the dropout that the rank of its number has in other strategies.
        self._worker = (context.rank - task.spec.strategy.servers) % context.size
        self._feed = Feed(data.train, task.spec, task.streams, self._worker, parts, device)
        self._train_labels, self._classes = data.train.labels, data.classes
        self._test_images = torch.from_numpy(data.test.images).to(device)
        self._test_labels = torch.from_numpy(data.test.labels).to(device)
        self._labels_fed = np.zeros(self._classes, dtype=np.int64)
        self._certifier = Certifier(len(data.train.labels), parts)
        self._steps = self._samples = 0
        self._evaluated = (0.0, 0.0)  # accuracy and loss after the last epoch

    def replica(self, weights_of: int = 0) -> Replica:
        """A fresh replica. Ranks that name the same `weights_of` start from the same weights."""
        model = self._task.build_model(self._worker, weights_of, self.comm.device)
        return Replica(model, self._task, self.clock)

    def start(self, replica: Replica, init: Init | None = None) -> None:
        """Start the clock, on all ranks at once. init: what they do first so as to begin alike, or not."""
        if self._task.spec.strategy.in_step:
            replica.synchronise_norms(self.comm)
        self.comm.barrier()
        self._events.write("train_start", parameters=replica.parameters)
        self.clock.start()
        if init == "broadcast":
            self._take_over_weights(replica)

    def _take_over_weights(self, replica: Replica) -> None:
        """Give every rank the weights of rank 0."""
        weights = replica.weights()
        self.comm.broadcast(weights, root=0)
        replica.set_weights(weights)

    def weight(self, weighting: Weighting, *epochs: int) -> float:
        """What this node counts in an average over nodes: 1.0, or by its samples in these epochs.

        The weights of all ranks have the mean 1.
        """
        if weighting == "equal":
            return 1.0
        sizes = np.sum([self._feed.sizes(epoch) for epoch in epochs], axis=0)
        return float(sizes[self._worker] / sizes.mean())

    def mean_weights(self, replica: Replica, weight: float = 1.0) -> Tensor:
        """The weighted mean of all ranks' weights, flat: float32, shape (state,)."""
        weights = replica.weights().mul_(weight)
        self.comm.all_reduce(weights, "mean")
        return weights

    def _average_statistics(self, replica: Replica) -> None:
        """Let all ranks have the mean of the statistics of those who train: gradients do not carry them."""
        statistics = replica.statistics()
        if len(statistics):
            self.comm.all_reduce(statistics.mul_(not self.serves), "sum")
            replica.set_statistics(statistics.div_(self._task.spec.parts))

    def epochs(
        self,
        replica: Replica,
        *,
        model: Literal["same", "own", "mean", "server"] = "same",
        weighting: Weighting = "equal",
    ) -> Iterator[int]:
        """The run's epochs, 1-based; each is evaluated and reported when it is done.

        Evaluation is a time-out for all ranks, outside the measured time: where nodes share cores, a
        rank that evaluates would slow down one that still trains. All wait for the slowest before it,
        inside the measured time, or a run would be faster than the machine allows. So do models that
        gradients alone keep the same (or the server's) average their statistics there. model: which one is
        evaluated. The same on all ranks: each takes a share of the test split; its own: every rank
        evaluates on the whole of it; the (weighted) mean of all: it is formed for that, outside the
        measured time, and every rank goes on with its own; the server's: all get it for that, likewise
        outside, and go on with it.
        """
        spec = self._task.spec
        for epoch in range(1, spec.epochs + 1):
            yield epoch
            if model in ("same", "server"):
                self._average_statistics(replica)
            self.comm.barrier()
            train_s = self.clock.train_s
            loss = None if self.serves else replica.loss.item()
            with self.clock.phase("evaluate"):
                apart: dict[str, float] = {}
                if model == "mean":
                    own, mean = replica.weights(), self.mean_weights(replica, self.weight(weighting, epoch))
                    apart["consensus_distance"] = self._rms((own - mean).norm())
                    replica.set_weights(mean)
                elif model == "server":
                    self._take_over_weights(replica)
                accuracy, test_loss = self._evaluated = self.evaluate(replica, alone=model == "own")
                if model == "mean":
                    replica.set_weights(own)
                self._events.write(
                    "epoch",
                    epoch=epoch,
                    epochs=spec.epochs,
                    train_s=train_s,
                    loss=loss,
                    accuracy=accuracy,
                    test_loss=test_loss,
                    **apart,
                )
                self.comm.barrier()

    def _rms(self, value: Tensor) -> float:
        """The root of the ranks' mean square of a number each."""
        square = value.square().reshape(1)
        self.comm.all_reduce(square, "mean")
        return square.sqrt().item()

    @property
    def serves(self) -> bool:
        """Whether this rank is a server: it trains on nothing itself, and has no batches and no loss."""
        return self._context.rank < self._task.spec.strategy.servers

    def steps(self, epoch: int) -> list[int]:
        """How many `batches` each of those who train has."""
        return self._feed.steps(epoch)

    def steps_together(self, epoch: int, uneven: Uneven) -> int:
        """How many `batches_in_step` there are."""
        return self._feed.steps_together(epoch, uneven)

    def served(self, steps: int) -> Iterator[int]:
        """A server's steps, 1-based, which it takes with the gradients of others."""
        for step in range(1, steps + 1):
            yield step
            self._steps += 1

    def batches(self, epoch: int, replica: Replica) -> Iterator[Batch]:
        """This rank's batches of the epoch, each sample once."""
        return self._timed(epoch, replica, self._feed.batches(epoch), "join")

    def batches_in_step(self, epoch: int, replica: Replica, uneven: Uneven) -> Iterator[Batch]:
        """As `batches`, with the same number of steps on every rank."""
        return self._timed(epoch, replica, self._feed.batches_in_step(epoch, uneven), uneven)

    def _timed(
        self, epoch: int, replica: Replica, feed: Iterator[tuple[Batch, np.ndarray]], uneven: Uneven
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
            self._certify(epoch, np.concatenate(fed), uneven)

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

    def _certify(self, epoch: int, fed: np.ndarray, uneven: Uneven) -> None:
        record = PartRecord.of(epoch, fed, self._train_labels, self._classes, self._labels_fed)
        self._labels_fed += record.labels
        self._events.write("part", **as_fields(record))
        if self._worker == 0:
            split = self._certifier.epoch(epoch, self._feed.fed(epoch, uneven), uneven)
            self._events.write("split", **as_fields(split))

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

    def result(
        self, replica: Replica, *, averaged: bool = False, staleness: Sequence[int] = ()
    ) -> TrainResult:
        """Stop the clock and settle the accounts.

        averaged: the weights have changed since the last epoch was evaluated, which was of this node's
        own model. staleness: of each gradient that this node has sent, where that may differ.
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
            staleness_mean=fmean(staleness) if staleness else None,
            staleness_max=max(staleness, default=None),
        )


def _check(loss: float, where: str) -> None:
    if not isfinite(loss):
        raise Diverged(f"the loss is {loss} {where}; a smaller lr may help")
