"""The training loop that strategies share: timed batches, evaluation, reports.

A strategy's file keeps the algorithm; what every strategy does alike is here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Literal

import numpy as np
from torch import Tensor

from trainer.comm.base import Communicator
from trainer.comm.stragglers import attribute_stragglers
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.result import TrainResult
from trainer.core.strategy import Init, Uneven, Weighting
from trainer.training.activations import Activations
from trainer.training.checkpointing import BEGINNING, Checkpointer
from trainer.training.evaluation import Evaluation, check_loss
from trainer.training.loader import Batch, BatchLoader
from trainer.training.lr_schedule import Target, learning_rate
from trainer.training.metrics import TrainingMetrics
from trainer.training.peak_memory import restart_peak_memory
from trainer.training.progress import Progress
from trainer.training.replica import Replica
from trainer.training.task import Task

MOST_WAITED_FOR = 256  # ranks that a result lists: it is an event, and has to stay below 8 KiB


class Session:
    """One rank's training, from meeting the others to its result."""

    def __init__(
        self, context: NodeContext, task: Task, events: EventWriter, comm: Communicator | None = None
    ) -> None:
        """comm: what to use instead of meeting the other ranks over the run's transport."""
        self.clock = comm.clock if comm else Clock(cpu=context.cpu_clock)
        self.comm = comm or context.connect(self.clock)
        self._context, self._task, self._events = context, task, events
        data, device, parts, strategy = (
            task.data,
            self.comm.device,
            task.spec.num_replicas,
            task.spec.strategy,
        )
        self._replica = strategy.replica_of(context.rank, context.size)
        self._reports_samples = strategy.reports_samples(context.rank, context.size)
        # Who holds the same weights as this rank: other parts of a model have other ones.
        self.peers: Communicator | None = None if strategy.partitions_model else self.comm
        sees = strategy.sees_images(context.rank, context.size)
        augment = task.spec.augmentation.build(data.scale, device) if sees else None
        self._loader = BatchLoader(data.train, task.spec, task.rngs, self._replica, parts, device, augment)
        shares = (
            (self._replica % parts, parts) if strategy.partitions_model else (context.rank, context.size)
        )
        self.evaluate = Evaluation(data.test, self.comm, *shares)
        self._metrics = TrainingMetrics(data.train.labels, data.classes, parts, events)
        self._checkpointer = Checkpointer(context, task.spec, events, self.comm, self._metrics)
        self._begun = BEGINNING  # where this process has begun

    def replica(self, weights_of: int = 0) -> Replica:
        """A fresh replica. Ranks that name the same `weights_of` start from the same weights."""
        model = self._task.build_model(self._replica, weights_of, self.comm.device)
        return Replica(model, self._task, self.clock)

    def start(
        self, replica: Replica, init: Init | None = None, settle: Callable[[Batch], object] | None = None
    ) -> None:
        """Start the clock, on all ranks at once; go on from the last checkpoint, if there is one.

        init: what they do first so as to begin alike, or not. settle: what a run that goes on first does
        with some batch, where a library finds its form in the first step.
        """
        if self._task.spec.strategy.synchronous:
            replica.synchronise_norms(self.comm)
        checkpoint = self._checkpointer.last_good()
        if checkpoint:
            if settle:
                settle(next(self._loader.batches(1))[0])
            self._begun = self._checkpointer.go_on(checkpoint, replica)
        restart_peak_memory()
        self.comm.barrier()
        self._events.write("train_start", parameters=replica.parameters)
        self.clock.start()
        if init == "broadcast" and not checkpoint:
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
        sizes = np.sum([self._loader.sizes(epoch) for epoch in epochs], axis=0)
        return float(sizes[self._replica] / sizes.mean())

    def mean_weights(self, replica: Replica, weight: float = 1.0) -> Tensor:
        """The weighted mean of all ranks' weights, flat: float32, shape (state,)."""
        weights = replica.weights().mul_(weight)
        self.comm.all_reduce(weights, "mean")
        return weights

    def _average_statistics(self, replica: Replica) -> None:
        """Let peers have the mean of the statistics of those who train: gradients do not carry them."""
        statistics = replica.statistics()
        if len(statistics) and self.peers:
            self.peers.all_reduce(statistics.mul_(not self.serves), "sum")
            replica.set_statistics(statistics.div_(self._task.spec.num_replicas))

    def epochs(
        self,
        replica: Replica,
        *,
        model: Literal["same", "own", "mean", "server"] = "same",
        weighting: Weighting = "equal",
    ) -> Iterator[int]:
        """The run's epochs, 1-based, until it has reached its target accuracy, if it has one.

        Each begins with its learning rate, and is evaluated and reported when it is done.

        Evaluation is a time-out for all ranks, outside the measured time: where nodes share cores, a
        rank that evaluates would slow down one that still trains. All wait for the slowest before it,
        inside the measured time, or a run would be faster than the machine allows. So do models that
        gradients alone keep the same (or the server's) average their statistics there. model: which one is
        evaluated. The same on all ranks: each takes a share of the test split (all that hold one copy take
        it together); its own: every rank evaluates on the whole of it; the (weighted) mean of all: it is
        formed for that, outside the measured time, and every rank goes on with its own; the server's: all
        get it for that, likewise outside, and go on with it.
        """
        spec = self._task.spec
        target = Target(spec.target_accuracy, spec.patience)
        for accuracy in self._metrics.accuracies:  # in epochs before a checkpoint
            target.reached(accuracy)
        for epoch in range(self._begun.epochs + 1, spec.epochs + 1):
            lr = learning_rate(spec, epoch)
            replica.set_lr(lr)
            yield epoch
            if model in ("same", "server"):
                self._average_statistics(replica)
            self.comm.barrier()
            train_s = self.clock.train_s
            self._metrics.note_peak_memory()
            loss = None if self.serves or replica.loss is None else replica.loss.item()
            with self.clock.phase("evaluate"):
                apart: dict[str, float] = {}
                if model == "mean":
                    own, mean = replica.weights(), self.mean_weights(replica, self.weight(weighting, epoch))
                    apart["consensus_distance"] = self._rms((own - mean).norm())
                    replica.set_weights(mean)
                elif model == "server":
                    self._take_over_weights(replica)
                accuracy, test_loss = self._metrics.evaluated = self.evaluate(replica, alone=model == "own")
                if model == "mean":
                    replica.set_weights(own)
                reached = target.reached(accuracy)  # the same on all ranks, or the strategy has no target
                self._metrics.tell(
                    "epoch",
                    epoch=epoch,
                    epochs=spec.epochs,
                    train_s=train_s,
                    loss=loss,
                    accuracy=accuracy,
                    test_loss=test_loss,
                    lr=lr,
                    target_reached=reached,
                    **apart,
                )
                self.comm.barrier()
            if reached:
                return
            self._checkpointer.after_epoch(epoch, replica)

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
        return self._loader.steps(epoch)

    def steps_together(self, epoch: int, uneven: Uneven) -> int:
        """How many `batches_in_step` there are."""
        return self._loader.steps_together(epoch, uneven)

    def served(self, steps: int) -> Iterator[int]:
        """A server's steps, 1-based, which it takes with the gradients of others."""
        for step in range(1, steps + 1):
            yield step
            self._metrics.steps += 1

    @property
    def steps_taken(self) -> int:
        """By this rank, in the whole run so far."""
        return self._metrics.steps

    def batches(self, epoch: int, replica: Replica) -> Iterator[Batch]:
        """This rank's batches of the epoch, each sample once."""
        return self._timed(epoch, replica, self._loader.batches(epoch, self._skip(epoch)), "join")

    def batches_in_step(self, epoch: int, replica: Replica, uneven: Uneven) -> Iterator[Batch]:
        """As `batches`, with the same number of steps on every rank."""
        loader = self._loader.batches_in_step(epoch, uneven, self._skip(epoch))
        return self._timed(epoch, replica, loader, uneven)

    def _skip(self, epoch: int) -> int:
        """Steps of the epoch that were taken before the checkpoint that this run goes on from."""
        return self._begun.steps if epoch == self._begun.epochs + 1 else 0

    def _timed(
        self, epoch: int, replica: Replica, loader: Iterator[tuple[Batch, np.ndarray]], uneven: Uneven
    ) -> Iterator[Batch]:
        metrics = self._metrics
        progress = Progress(epoch, self._task.spec.epochs, replica, self._events)
        while True:
            with self.clock.phase("data"):
                batch, indices = next(loader, (None, None))
            if batch is None or indices is None:
                break
            metrics.fed.append(indices)
            if metrics.steps == 0:  # all steps keep as much
                with Activations() as activations:
                    yield batch
                replica.activation_bytes = activations.most_bytes
            else:
                yield batch
            metrics.steps += 1
            metrics.samples += len(indices) if self._reports_samples else 0
            progress.after(batch, len(indices))
            self._checkpointer.after_step(epoch, batch, replica)
        if replica.loss is not None:
            check_loss(replica.loss.item(), f"in epoch {epoch}")
        if self._reports_samples:
            with self.clock.phase("evaluate"):
                metrics.certify_part(epoch)
                if self._replica == 0:
                    metrics.certify_split(epoch, self._loader.fed(epoch, uneven), uneven)
        metrics.fed = []

    def result(
        self, replica: Replica, *, averaged: bool = False, staleness: Sequence[int] = ()
    ) -> TrainResult:
        """Stop the clock and settle the accounts.

        averaged: the weights have changed since the last epoch was evaluated, which was of this node's
        own model. staleness: of each gradient that this node has sent, where that may differ.
        """
        self.clock.stop()
        self._events.write("train_end")
        wait_s_by_rank = attribute_stragglers(self.comm)
        spec, metrics, bytes_to = self._task.spec, self._metrics, self.comm.bytes_to
        # CPU time tells nothing where several threads share it, or where the host waits for its GPU.
        if spec.threads_for(self._context.rank) == 1 and not spec.on_gpu:
            self.clock.book_cpu_contention()
        accuracy, test_loss = self.evaluate(replica, alone=False) if averaged else metrics.evaluated
        state_bytes = replica.state_bytes  # before others send what they have
        whole = replica.whole_weights()
        weights = None if whole is None else whole.cpu().numpy()
        if weights is not None and spec.save_weights and self._context.rank == 0 and self._context.out_dir:
            np.save(self._context.out_dir / "weights.npy", weights)
        return TrainResult(
            steps=metrics.steps,
            samples=metrics.samples,
            train_s=self.clock.train_s,
            work_cpu_s=None if spec.on_gpu else self.clock.work_cpu_s,
            seconds=self.clock.booked,
            bytes_sent=self.comm.bytes_sent,
            accuracy=accuracy,
            test_loss=test_loss,
            local_accuracy=metrics.evaluated[0] if averaged else None,
            weights_digest=None if weights is None else hashlib.sha256(weights.tobytes()).hexdigest()[:16],
            parameters=replica.parameters,
            peak_memory_mb=metrics.peak_memory_mb or 0.0,
            staleness_mean=fmean(staleness) if staleness else None,
            staleness_max=max(staleness, default=None),
            state_bytes=state_bytes,
            activation_bytes=replica.activation_bytes,
            blocks=replica.blocks,
            bytes_to=[bytes_to[rank] for rank in range(self.comm.size)] if bytes_to else None,
            wait_s_by_rank=[round(seconds, 6) for seconds in wait_s_by_rank]
            if 1 < self.comm.size <= MOST_WAITED_FOR
            else None,
        )
