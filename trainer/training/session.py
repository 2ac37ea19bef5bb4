"""The training loop that strategies share: batches, evaluation, checkpoints, metrics.

A strategy's file holds its algorithm; everything that strategies share is here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import asdict
from statistics import fmean
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from trainer.aggregation.base import Aggregation
from trainer.aggregation.mean import MeanAggregation
from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError
from trainer.comm.probe import probe_links
from trainer.comm.stragglers import attribute_stragglers
from trainer.core.clock import Span
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.result import TrainResult, listed_waits
from trainer.core.strategy import Init, Uneven, Weighting
from trainer.core.trace import Kind, encode_trace, trace_path
from trainer.core.tracer import Tracer
from trainer.spec.noise_scale import unmeasured_reason
from trainer.spec.output_limits import OutputLimits
from trainer.spec.traces import untraced_reason
from trainer.training.aggregator import Aggregator
from trainer.training.checkpointing import BEGINNING, Checkpoint, Checkpointer
from trainer.training.evaluation import Evaluation, check_loss
from trainer.training.faults import FaultInjector
from trainer.training.limits import wait_for_limits
from trainer.training.loader import Batch, BatchLoader
from trainer.training.lr_schedule import Target, learning_rate, scheduled_rate
from trainer.training.memory import Activations, reset_peak_memory
from trainer.training.metrics import StepProgress, TrainingMetrics
from trainer.training.noise import GradientNoise
from trainer.training.replica import Replica
from trainer.training.task import Task

MEAN = MeanAggregation()
Own = TypeVar("Own", bound=Replica)


class Session:
    """One rank's training: a strategy calls `start`, then iterates over `epochs` and `batches`.

    The session evaluates, reports, writes checkpoints and takes the time. All ranks have to iterate over
    the same epochs.

    Attributes:
        rank: this rank, 0 … size - 1.
        size: the number of ranks. The communicator of a subgroup has a rank and a size of its own.
        comm: the communicator of all ranks.
        clock: the rank's clock; time within `with session.clock.phase("compute")` counts as compute.
        task: the run's data and model.
        spec: the run's spec, with its fields: `session.spec.lr`.
        timeout_s: the longest wait for another rank, in seconds.
        shared: what the strategy's `shared_state` returned; None unless the ranks are forked.
        peers: communicator of the ranks whose replicas hold the same weights as this one's; None where the
            model is partitioned. The session averages BatchNorm statistics over it.
    """

    def __init__(
        self, context: NodeContext, task: Task, events: EventWriter, comm: Communicator, shared: Any = None
    ) -> None:
        self.rank, self.size, self.timeout_s = context.rank, context.size, context.timeout_s
        self.comm, self.clock, self.shared = comm, comm.clock, shared
        self.task, self.spec = task, task.spec
        self._context, self._events = context, events
        data, parts, strategy = task.data, task.spec.num_replicas, task.spec.strategy
        self._replica_number = strategy.replica_of(context.rank, context.size)
        self._reports_samples = strategy.reports_samples(context.rank, context.size)
        self.peers: Communicator | None = None if strategy.partitions_model else comm
        self._loader = self._batch_loader()
        test_part = (self._replica_number % parts, parts) if strategy.partitions_model else None
        self.evaluate = Evaluation(data.test, task.spec.loss, comm, test_part)
        self._aggregator = Aggregator(comm, task.spec, task.rngs, data.classes, context.rank)
        self._metrics = TrainingMetrics(data, parts, events)
        # The strategy's state: what all ranks hold alike, which a rank that returns receives, and its own.
        self._common, self._own = SimpleNamespace(), SimpleNamespace()
        self._restored: dict[str, dict[str, Any]] = {}  # both, from a checkpoint
        self._checkpointer = Checkpointer(
            context, task, events, comm, self._metrics, lambda: (vars(self._common), vars(self._own))
        )
        self._faults = FaultInjector(context, task.spec, events, comm.clock)
        self._resumed_at = BEGINNING
        self._read: tuple[Checkpoint | None] | None = None
        self._replica: Replica  # from `start` on
        self._started = False
        self._epoch = 0  # the present one
        self._evaluates_final_weights = False
        self._staleness: Sequence[int] = ()
        self._continues = context.membership is not None
        self._returned = bool(context.incarnation)  # this rank, while the others were training
        self._uncovered = self._returned  # the partitions of the epochs before it returned
        self._joining: list[int] = []  # ranks that have returned before the present epoch

    def _batch_loader(self) -> BatchLoader:
        task, spec, device = self.task, self.spec, self.comm.device
        sees = spec.strategy.sees_inputs(self.rank, self.size)
        augment = spec.augmentation.build(task.data.scale, device) if sees else None
        number, parts, shared = self._replica_number, spec.num_replicas, task.split(device)
        return BatchLoader(task.data.train, spec, task.rngs, number, parts, augment, sees, shared)

    def replica(self, weights_seed: int = 0) -> Replica:
        """Build this rank's copy of the model, with its optimizer.

        Args:
            weights_seed: ranks with the same number start from the same weights, together with the run's
                seed.
        """
        model = self.task.build_model(self._replica_number, weights_seed, self.comm.device)
        return Replica(model, self.task, self.clock)

    def replica_of(self, kind: type[Own], *arguments: Any) -> Own:
        """Like `replica`, of a kind of its own.

        Args:
            kind: a class of replicas. It gets the torch module, the task, the communicator and `arguments`.
        """
        model = self.task.build_model(self._replica_number, device=self.comm.device)
        make: Any = kind
        replica: Own = make(model, self.task, self.comm, *arguments)
        return replica

    def common_state(self, **values: Tensor | int) -> SimpleNamespace:
        """The state that all ranks hold alike beside the weights, such as a velocity or a count of steps.

        Call it once, between `start` and `epochs`. Checkpoints contain it. A rank that returns receives the
        weights and this state from the others, before the epoch in which it joins them.

        Args:
            values: float32 of shape (n,), or whole numbers below 2²⁴; the same on all ranks.

        Returns:
            An object with these values as its attributes, or those of the checkpoint from which the run
            resumes. The strategy reads and sets them.
        """
        self._common = SimpleNamespace(**self._restored.get("common", values))
        return self._common

    def own_state(self, **values: Any) -> SimpleNamespace:
        """The state that this rank has to itself beside its replica, such as what it has sent.

        Call it once, between `start` and `epochs`. Checkpoints contain it.

        Args:
            values: tensors, numbers, None, and lists of them.

        Returns:
            As `common_state`.
        """
        self._own = SimpleNamespace(**self._restored.get("own", values))
        return self._own

    def restarting(self) -> Span:
        """A `with` block in which a resumed run starts again what was in flight at the checkpoint.

        The bytes of these exchanges have been counted before. What was sent is part of `own_state`.
        """
        return self.clock.phase("evaluate")

    def _checkpoint(self) -> Checkpoint | None:
        """The checkpoint from which the run resumes, read once. Every rank calls it."""
        if self._read is None:  # not a cached_property, which has one lock for the threads of all ranks
            self._read = (self._checkpointer.latest_common(),)
        return self._read[0]

    def saved(self, name: str) -> Any:
        """A value of `replica.state()` in the checkpoint from which the run resumes; None without one.

        For what must be known before the replica is built. Every rank calls it.
        """
        checkpoint = self._checkpoint()
        return checkpoint and checkpoint.state.get("replica", {}).get(name)

    def start(
        self, replica: Replica, init: Init | None = None, warm_up: Callable[[Batch], object] | None = None
    ) -> None:
        """Start the clock on all ranks at once; resume from the last checkpoint, if there is one.

        A rank that has returned starts alone: it receives the others' weights before its first epoch.

        Args:
            replica: the one to train, evaluate and checkpoint.
            init: "broadcast" sends rank 0's weights to all ranks. With "independent" or None each keeps its
                own.
            warm_up: called with one batch before a checkpoint is loaded, for libraries that finish their
                set-up in the first step.
        """
        self._replica, self._started = replica, True
        if self.spec.strategy.synchronous:
            replica.synchronise_norms(self.comm)
        checkpoint, self._read = self._checkpoint(), None
        if checkpoint:
            if warm_up:
                warm_up(next(self._loader.batches(1))[0])
            self._resumed_at = self._checkpointer.restore(checkpoint, replica)
            common, own = checkpoint.state["strategy"]
            self._restored = {
                "common": _on_device(common, self.comm.device),
                "own": _on_device(own, self.comm.device),
            }
        if unmeasured_reason(self.spec) is None:  # not of passes of the warm-up
            replica.noise = GradientNoise(self.size if self.spec.strategy.full_gradients else 1)
        wait_for_limits(self._context, self._events)
        self._probe_links()
        reset_peak_memory()
        if not self._returned:
            self.comm.barrier()
        self._events.write("train_start", parameters=replica.parameter_count)
        self.clock.start()
        self._start_trace(complete=checkpoint is None)
        self._faults.started(self.steps_taken)
        self._checkpointer.watch_for_stop(self._resumed_at)
        if self._returned:
            self._joining = [self.rank]
            return
        if init == "broadcast" and not checkpoint:
            self._broadcast_weights()

    def _start_trace(self, complete: bool) -> None:
        """Record a trace from now on, if the run has traces. complete: training begins now."""
        spec, clock = self.spec, self.clock
        if untraced_reason(spec) is None and spec.trace != "none" and self._context.out_dir:
            limit = OutputLimits.of(spec).trace_records
            clock.tracer = Tracer(
                clock.cpu_seconds, clock.booked_until, spec.trace, range(self.size), limit, complete
            )

    def _mark(self, kind: Literal[Kind.EPOCH, Kind.STEP], number: int = -1) -> None:
        """Record that an epoch begins or a step ends."""
        if tracer := self.clock.tracer:
            tracer.mark(kind, self.clock.booked_until, number)

    def _write_trace(self) -> None:
        """Write the trace, once the clock has stopped."""
        tracer, self.clock.tracer = self.clock.tracer, None
        if tracer and self._context.out_dir:
            trace = tracer.finished(
                self.clock.booked_until, self.task.key, self.rank, self._context.transport
            )
            trace_path(self._context.out_dir, self.rank).write_bytes(encode_trace(trace))

    def _probe_links(self) -> None:
        """Measure the links between ranks, outside of the training time.

        Ranks that continue without a lost one send each other no single messages.
        """
        if self.comm.size > 1 and self.comm.has_links and not self._continues:
            differ = self.spec.link is not None and self.spec.link.differ
            for found in probe_links(self.comm, all_pairs=differ):
                self._events.write("link", **asdict(found))

    def _broadcast_weights(self) -> None:
        """Replace all ranks' weights by rank 0's."""
        weights = self._replica.weights()
        self.comm.broadcast(weights, root=0)
        self._replica.set_weights(weights)

    def averaging_weight(self, weighting: Weighting | None) -> int:
        """The weight of this rank in an average over ranks.

        Args:
            weighting: "size" returns the number of samples that this rank has trained on since the last
                call of `averaged`, with repetitions. "equal" returns 1, but 0 for a rank without samples in
                a run where not every rank takes part in each round. None always returns 1.
        """
        if weighting is None:
            return 1
        samples = self._metrics.samples_since_average
        if weighting == "size":
            return samples
        return 1 if self.spec.strategy.rounds is None else min(samples, 1)

    def aggregate(self, weights: Tensor, weight: float, rule: Aggregation = MEAN) -> Tensor:
        """What the weights of all ranks become, the same on every rank; every rank calls it.

        Args:
            weights: those of this rank, float32, shape (n,).
            weight: see `averaging_weight`.
            rule: the mean is that of `comm.weighted_mean`. Other rules leave out ranks of weight 0, and
                those that have trained on no samples since the last call of `averaged`. If too few are
                left, the ranks keep the weights of the last average.
        """
        trained = self._metrics.samples_since_average > 0
        return self._aggregator.weights(weights, weight, trained, self.steps_taken, rule)

    def takes_plain_mean(self, rule: Aggregation) -> bool:
        """Whether gradients are averaged as they are: the rule is the mean, and no node is Byzantine."""
        return self._aggregator.plain(rule)

    def sent_gradient(self, gradient: Tensor, samples: int) -> Tensor:
        """What this rank sends as its gradient, shape (n,). Every rank calls it in every step.

        Args:
            gradient: the mean over its samples of the step; 0 without samples.
            samples: how many these are; 0 on a server.
        """
        return self._aggregator.gradient(gradient, samples, self.steps_taken)

    def aggregate_gradients(self, gradients: Tensor, samples: Sequence[int], rule: Aggregation) -> Tensor:
        """The gradient of shape (n,) that follows from those of the ranks.

        Args:
            gradients: what the ranks have sent, shape (ranks, n).
            samples: the samples of each rank in the step, by which the rule weights; ranks with 0 do not
                count.
        """
        return self._aggregator.of_gradients(gradients, samples, rule)

    def averaged(self) -> None:
        """Count the samples of `averaging_weight` from 0: the ranks have averaged their weights."""
        self._metrics.samples_since_average = 0

    def _average_buffers(self) -> None:
        """Average BatchNorm statistics over the ranks, weighted by samples: gradients do not carry them."""
        buffers = self._replica.flat_buffers()
        if len(buffers) and self.peers:
            mean = self.peers.weighted_mean(buffers, self.averaging_weight("size"))
            self._replica.set_flat_buffers(mean)
            self.averaged()

    def epochs(
        self,
        *,
        evaluate: Literal["replicas", "local", "average", "server"] | Callable[[], Tensor] = "replicas",
        weighting: Weighting | None = "equal",
        aggregation: Aggregation = MEAN,
    ) -> Iterator[int]:
        """The run's epochs, 1-based, until the target accuracy is reached, if there is one.

        Sets the learning rate before each step, and evaluates and reports after each epoch. Evaluation is
        not part of the measured time. All ranks wait for the slowest before it, inside the measured time:
        where nodes share cores, a rank that evaluates would slow down one that still trains.

        Args:
            evaluate: the model that is evaluated after an epoch. "replicas": the weights that all ranks
                hold; each evaluates its share of the test split. "local": each rank's own weights, on the
                whole test split. "average": what `aggregate` makes of all ranks' weights; then each rank
                continues with its own. "server": the server's weights, which all ranks have in the end;
                before, each continues with its own parameters. A function: the weights that it returns, the
                same on all ranks, as with "average".
            weighting: how the average is weighted, see `averaging_weight`.
            aggregation: the rule of the average.
        """
        spec, replica = self.spec, self._replica
        target = Target(spec.target_accuracy, spec.patience)
        for accuracy in self._metrics.accuracies:  # in epochs before a checkpoint
            target.reached(accuracy)
        first = self._resumed_at.epochs + 1
        if self._returned:
            first = self._share_position(first)
        for epoch in range(first, spec.epochs + 1):
            if not (self._returned and epoch == first):
                self._joining = self.comm.admit()
                if self._joining:
                    self._share_position(epoch)
            self._epoch = epoch
            replica.set_lr(learning_rate(spec, epoch))
            self._faults.at_epoch(epoch)
            self._mark(Kind.EPOCH, epoch)
            yield epoch
            if evaluate in ("replicas", "server"):
                self._average_buffers()
            self.comm.barrier()
            if self._evaluate_epoch(epoch, target, evaluate, weighting, aggregation):
                return
            self._checkpointer.after_epoch(epoch, replica)

    def _evaluate_epoch(
        self,
        epoch: int,
        target: Target,
        evaluate: str | Callable[[], Tensor],
        weighting: Weighting | None,
        aggregation: Aggregation,
    ) -> bool:
        """Evaluate after an epoch and report it. Returns whether the target accuracy is reached."""
        replica, train_s = self._replica, self.clock.train_s
        self._metrics.measure_peak_memory()
        loss = None if self.is_server or replica.loss is None else replica.loss.item()
        with self.clock.phase("evaluate"):
            consensus: dict[str, float] = {}
            own = None if evaluate in ("replicas", "local") else replica.weights()
            if evaluate == "server":
                self._broadcast_weights()
            elif own is not None:
                weight = self.averaging_weight(weighting)
                mean = evaluate() if callable(evaluate) else self.aggregate(own, weight, aggregation)
                consensus["consensus_distance"] = self._rms((own - mean).norm())
                replica.set_weights(mean)
            accuracy, test_loss = self._metrics.evaluated = self.evaluate(
                replica, alone=evaluate == "local"
            )
            reached = target.reached(accuracy)  # the same on all ranks, or the strategy has no target
            ended = reached or epoch == self.spec.epochs
            if own is not None and not (evaluate == "server" and ended):
                replica.set_weights(own)
            self._metrics.report(
                "epoch",
                epoch=epoch,
                epochs=self.spec.epochs,
                train_s=train_s,
                loss=loss,
                accuracy=accuracy,
                test_loss=test_loss,
                lr=replica.lr,
                target_reached=reached,
                **consensus,
                **(replica.noise.taken() if replica.noise else {}),
            )
            replica.loss = None  # the next epoch's, if this rank trains in it
            self.comm.barrier()
        return reached

    def _share_position(self, epoch: int) -> int:
        """Let a rank that has returned take over the epoch, the weights and the state of the others.

        Returns:
            The epoch that all are at.
        """
        epoch = self._caught_up_count(epoch)
        self._replica.set_weights(self._caught_up(self._replica.weights()))
        for name, value in vars(self._common).items():
            take = self._caught_up_count if isinstance(value, int) else self._caught_up
            setattr(self._common, name, take(value))
        return epoch

    def _caught_up(self, values: Tensor) -> Tensor:
        """Another rank's values on a rank that has returned before this epoch; elsewhere `values` itself.

        Args:
            values: float32, shape (n,), the same on all other ranks.
        """
        while self._joining:
            source = next((rank for rank in self.comm.parent_ranks if rank not in self._joining), None)
            if source is None:
                raise CommunicationError("no node is left that has the weights")
            # Not a broadcast, which ends the run if its source is lost.
            found = values.clone() if self.rank == source else torch.zeros_like(values)
            self.comm.all_reduce(found, "sum")
            if source in self.comm.parent_ranks:
                return found if self.rank in self._joining else values
        return values

    def _caught_up_count(self, count: int) -> int:
        """Like `_caught_up`, for one whole number below 2²⁴."""
        return int(self._caught_up(torch.tensor([float(count)])).item())

    def _rms(self, value: Tensor) -> float:
        """The root mean square over ranks of one number each."""
        square = value.square().reshape(1)
        self.comm.all_reduce(square, "mean")
        return square.sqrt().item()

    @property
    def is_server(self) -> bool:
        """Whether this rank is a parameter server: it has no samples, no batches and no loss."""
        return self.rank < self.spec.strategy.servers

    def steps(self, epoch: int) -> list[int]:
        """The number of `batches` of each replica in this epoch."""
        return self._loader.steps(epoch)

    def synchronous_steps(self, epoch: int, uneven: Uneven) -> int:
        """The number of `synchronous_batches` in this epoch, the same on all ranks."""
        return self._loader.synchronous_steps(epoch, uneven)

    def samples_in_step(self, epoch: int, step: int, uneven: Uneven) -> Sequence[int]:
        """The samples of each replica in a step of `synchronous_batches`. step: 1-based."""
        return self._loader.in_step(epoch, step, uneven)

    def server_steps(
        self, steps: Iterable[object], marked: bool = True, count: int | None = None
    ) -> Iterator[int]:
        """The steps of a parameter server, 1-based, which it takes with the workers' gradients.

        Args:
            steps: one item per step of the epoch.
            marked: whether their ends are recorded here in the trace.
            count: how many steps these are, if no worker is lost; None: `len(steps)`.
        """
        length = len(cast("Sized", steps)) if count is None else count
        for step, _ in enumerate(steps, start=1):
            self._faults.before_step(self.steps_taken)
            self._replica.set_lr(scheduled_rate(self.spec, self._epoch, step, length))
            yield step
            self._metrics.steps += 1
            if marked:
                self._mark(Kind.STEP)
            self._faults.after_step()

    @property
    def steps_taken(self) -> int:
        """The steps of this rank since the start of the run, those before a checkpoint included."""
        return self._metrics.steps

    def batches(self, epoch: int) -> Iterator[Batch]:
        """This rank's batches of the epoch, each sample once. Ranks can have different numbers of them."""
        return self._timed(epoch, self._loader.batches(epoch, self._skip(epoch)), "join")

    def synchronous_batches(self, epoch: int, uneven: Uneven) -> Iterator[Batch]:
        """Like `batches`, but equally many on every rank.

        Use it where every step has an exchange that all ranks take part in.

        Args:
            uneven: when this rank has fewer samples than others. "join": the remaining batches have no
                samples that count (`batch.samples` is 0). "drop": all ranks stop with the first. "pad":
                the rank repeats samples.
        """
        batches = self._loader.synchronous_batches(epoch, uneven, self._skip(epoch))
        return self._timed(epoch, batches, uneven)

    def _skip(self, epoch: int) -> int:
        """Steps of the epoch that were taken before the checkpoint from which this run resumed."""
        return self._resumed_at.steps if epoch == self._resumed_at.epochs + 1 else 0

    def _timed(
        self, epoch: int, batches: Iterator[tuple[Batch, np.ndarray]], uneven: Uneven
    ) -> Iterator[Batch]:
        metrics, replica = self._metrics, self._replica
        if self._uncovered:
            with self.clock.phase("evaluate"):
                for missed in range(1, epoch):
                    metrics.cover(self._loader.samples_by_part(missed, uneven))
            self._uncovered = False
        progress = StepProgress(epoch, self.spec.epochs, replica, self._events)
        while True:
            with self.clock.phase("data"):
                batch, indices = next(batches, (None, None))
            if batch is None or indices is None:
                break
            self._faults.before_step(metrics.steps)
            if not metrics.samples_since_average:
                self._aggregator.begin_round(replica)
            batch = self._aggregator.trained_on(batch)
            replica.set_lr(scheduled_rate(self.spec, epoch, batch.step, batch.steps))
            metrics.epoch_indices.append(indices)
            metrics.samples_since_average += batch.samples
            if batch.round and batch.samples:
                metrics.rounds.add(batch.round.number)
            if replica.activation_bytes is None and batch.samples:  # every step keeps the same amount
                with Activations() as activations:
                    yield batch
                replica.activation_bytes = activations.peak_bytes
            else:
                yield batch
            metrics.steps += 1
            self._mark(Kind.STEP)
            self._faults.after_step()
            metrics.samples += len(indices) if self._reports_samples else 0
            progress.after_step(batch, len(indices))
            self._checkpointer.after_step(epoch, batch, replica)
        if replica.loss is not None:
            check_loss(replica.loss.item(), f"in epoch {epoch}")
        if self._reports_samples:
            with self.clock.phase("evaluate"):
                metrics.report_partition(epoch, self.spec.strategy.rounds is not None)
                # Of a run that continues without a lost rank, any rank may be left, so all report it.
                if self._replica_number == 0 or self._continues:
                    samples = self._loader.samples_by_part(epoch, uneven)
                    metrics.report_coverage(epoch, samples, uneven, each=self._continues)
        metrics.epoch_indices = []

    def report_staleness(self, staleness: Sequence[int]) -> None:
        """Record the staleness of each gradient that this rank pushed, for the result.

        Args:
            staleness: updates by others between the pull of the weights and the push of the gradient.
        """
        self._staleness = staleness

    def evaluate_final_weights(self) -> None:
        """Evaluate once more after training: the weights changed after the last epoch was evaluated.

        The accuracy of the last epoch, which is this node's own, becomes `local_accuracy`.
        """
        self._evaluates_final_weights = True

    def result(self) -> TrainResult:
        """Stop the clock and collect the metrics. Every rank calls it.

        Raises:
            RuntimeError: The strategy has started no replica.
            ExchangeError: It has never waited for an exchange that it has started.
        """
        if not self._started:
            raise RuntimeError("`train` has returned without a call of session.start(replica)")
        self.comm.check_waited()
        self._faults.ended()
        self.clock.stop()
        self._checkpointer.close()
        self._events.write("train_end")
        self._write_trace()
        # Ranks that were lost have taken the times of their exchanges with them.
        attributed = not self.comm.changed
        wait_s = attribute_stragglers(self.comm) if attributed else {}
        spec, replica, metrics, bytes_to = self.spec, self._replica, self._metrics, self.comm.bytes_to
        # CPU time means nothing where several threads share it, or where the host waits for its GPU.
        if spec.threads_for(self.rank) == 1 and not spec.on_gpu:
            self.clock.book_cpu_contention()
        state_bytes = replica.state_bytes  # before full_weights receives other ranks' partitions
        choices, dropped = replica.choices_of_experts or (None, None)
        return TrainResult(
            steps=metrics.steps,
            samples=metrics.samples,
            train_s=self.clock.train_s,
            work_cpu_s=None if spec.on_gpu else self.clock.work_cpu_s,
            seconds=self.clock.booked,
            bytes_sent=self.comm.bytes_sent,
            parameters=replica.parameter_count,
            peak_memory_mb=metrics.peak_memory_mb,
            staleness_mean=fmean(self._staleness) if self._staleness else None,
            staleness_max=max(self._staleness, default=None),
            state_bytes=state_bytes,
            activation_bytes=replica.activation_bytes,
            blocks=replica.blocks,
            expert_choices=choices,
            dropped_choices=dropped,
            bytes_to=[bytes_to[rank] for rank in range(self.size)] if bytes_to else None,
            aggregations_without_effect=self._aggregator.without_effect or None,
            wait_s_by_rank=listed_waits({rank: round(each, 6) for rank, each in wait_s.items()}, self.size)
            if attributed and self.comm.size > 1
            else None,
            **self._learned(),
        )

    def _learned(self) -> dict[str, Any]:
        """The fields of the result that say what the model has learned. Saves the final weights."""
        spec, replica = self.spec, self._replica
        # A worker of a server takes no step, and a rank may be absent in all rounds.
        unused = replica.unused_fields - ({"clip_norm"} if spec.strategy.servers else set())
        if unused and self._metrics.samples:
            raise RuntimeError(
                f"{' and '.join(sorted(unused))} had no effect, because the strategy computes gradients or "
                "takes steps without replica.backward and replica.step; leave the fields out"
            )
        accuracy, test_loss = self._metrics.evaluated
        local_accuracy = None
        if self._evaluates_final_weights:
            local_accuracy = accuracy if self._metrics.samples else None  # of a model that has trained
            accuracy, test_loss = self.evaluate(replica, alone=False)
        full_weights = replica.full_weights()
        weights = None if full_weights is None else full_weights.cpu().numpy()
        if weights is not None and spec.save_weights and self.rank == 0 and self._context.out_dir:
            np.save(self._context.out_dir / "weights.npy", weights)
        return {
            "accuracy": accuracy,
            "test_loss": test_loss,
            "test_samples": self.evaluate.samples,
            "chance_accuracy": self.evaluate.chance,
            "local_accuracy": local_accuracy,
            "weights_digest": None
            if weights is None
            else hashlib.sha256(weights.tobytes()).hexdigest()[:16],
        }


def _on_device(value: Any, device: str) -> Any:
    """A value of a strategy's state whose tensors were loaded into main memory."""
    match value:
        case Tensor():
            return value.to(device)
        case list():
            return [_on_device(each, device) for each in value]
        case dict():
            return {name: _on_device(each, device) for name, each in value.items()}
    return value
