"""Checkpointing: one rank's part in writing a run's checkpoints and in resuming from the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.comm.base import Communicator
from trainer.comm.traffic import Traffic
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.training.checkpoint_store import CheckpointError, CheckpointStore, Position
from trainer.training.loader import Batch
from trainer.training.metrics import TrainingMetrics
from trainer.training.replica import Replica
from trainer.training.stopping import StopAgreement, Stopped
from trainer.training.task import Task

BEGINNING = Position(0, 0)
NO_POSITION = -1.0


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read. written_at: seconds since 1970."""

    position: Position
    state: dict[str, Any]
    written_at: float


class Checkpointer:
    """Writes and restores checkpoints at the spec's intervals; does nothing if it has none.

    A checkpoint holds the rank's replica, metrics, clock and traffic, and the strategy's state. So the
    seconds and bytes of a resumed run are those of the work in its weights. The time to write a checkpoint
    is in the clock of the next one, so it is lost for the checkpoint from which a run resumes.
    """

    def __init__(
        self,
        context: NodeContext,
        task: Task,
        events: EventWriter,
        comm: Communicator,
        metrics: TrainingMetrics,
        strategy_state: Callable[[], tuple[dict[str, Any], ...]],
    ) -> None:
        """
        Args:
            strategy_state: the state of the strategy beside the replica.

        Raises:
            CheckpointError: Checkpoints are requested, and the context has no directory for them.
        """
        spec = task.spec
        self._spec, self._events, self._comm, self._metrics = spec, events, comm, metrics
        self._strategy_state = strategy_state
        if spec.checkpoints and context.checkpoint_dir is None:
            raise CheckpointError("the run writes checkpoints, but SHARDYARD_CHECKPOINTS is not set")
        directory = context.checkpoint_dir or Path()  # unused without checkpoints
        self._store = CheckpointStore(directory, task.key, context.rank, context.size)
        if spec.checkpoints:
            self._store.open()
        self._timeout_s = context.timeout_s
        self._stop: StopAgreement | None = None
        if spec.checkpoints and context.stop_dir:
            self._stop = StopAgreement(context.stop_dir, context.rank, context.size)

    @property
    def _stops_between_steps(self) -> bool:
        """Whether the run can stop between two steps: ranks of some strategies do not step together."""
        return "steps" in self._spec.strategy.checkpoint_intervals

    def watch_for_stop(self, position: Position) -> None:
        """Let the run stop at a checkpoint if that is requested from outside. Training begins here."""
        if self._stop:
            self._stop.watch(self._metrics.steps if self._stops_between_steps else position.epochs)

    def close(self) -> None:
        """End the watch for a request to stop."""
        if self._stop:
            self._stop.close()

    def latest_common(self) -> Checkpoint | None:
        """The newest checkpoint that every rank has intact; None: the run starts from the beginning.

        Every rank calls it. Each proposes its newest checkpoint; while proposals differ, ranks with a newer
        one go back to the oldest proposal or beyond.
        """
        if not self._spec.checkpoints:
            return None
        proposed = self._newest(float("inf"))
        while True:
            number = proposed.position.number if proposed else NO_POSITION
            mine = torch.tensor([number], dtype=torch.float64, device=self._comm.device)
            proposals = self._comm.all_gather_float64(mine)
            oldest = proposals.min().item()
            if proposals.max().item() == oldest:
                # Later checkpoints belong to an abandoned attempt.
                self._store.prune(proposed.position if proposed else None)
                return proposed
            if proposed and number > oldest:
                self._skip(proposed.position, "some rank does not have it intact")
                proposed = self._newest(oldest)

    def _newest(self, most: float) -> Checkpoint | None:
        """This rank's newest intact checkpoint whose position number is at most `most`."""
        for position in self._store.positions():
            if position.number <= most:
                try:
                    return Checkpoint(position, *self._store.read(position))
                except CheckpointError as error:
                    self._skip(position, str(error))
        return None

    def _skip(self, position: Position, cause: str) -> None:
        self._events.write("checkpoint_skipped", epoch=position.epochs, step=position.steps, cause=cause)

    def restore(self, checkpoint: Checkpoint, replica: Replica) -> Position:
        """Restore replica, metrics, clock and traffic. Returns the position. Raises CheckpointError."""
        position, state = checkpoint.position, checkpoint.state
        try:
            self._events.write(
                "resumed",
                epoch=position.epochs,
                step=position.steps,
                age_s=time.time() - checkpoint.written_at,
                times=self._store.record_resumption() if self._comm.rank == 0 else None,
                steps_taken=state["metrics"]["steps"],
            )
            replica.restore(state["replica"])
            self._metrics.restore(state["metrics"])
            self._comm.clock.restore(state["clock"])
            for traffic, saved in zip(_traffic_of(self._comm), state["traffic"], strict=True):
                traffic.restore(saved)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint after epoch {position.epochs} and {position.steps} steps does not fit "
                f"this run ({type(error).__name__}: {error}); remove {self._store.directory} to start again"
            ) from error
        return position

    def after_step(self, epoch: int, batch: Batch, replica: Replica) -> None:
        """Write a checkpoint if one is due; none after the last step of the run.

        Raises Stopped after the checkpoint at which the run stops.
        """
        every, steps = self._spec.checkpoint_steps, self._metrics.steps
        if epoch < self._spec.epochs or batch.step < batch.steps:
            stops = self._stops_between_steps and self._stops_at(steps)
            due = every is not None and steps % every == 0
            self._checkpoint(due, stops, Position(epoch - 1, batch.step), replica)

    def after_epoch(self, epoch: int, replica: Replica) -> None:
        """Like `after_step`, once an epoch has been evaluated."""
        every = self._spec.checkpoint_epochs
        if epoch < self._spec.epochs:
            stops = not self._stops_between_steps and self._stops_at(epoch)
            due = every is not None and epoch % every == 0
            self._checkpoint(due, stops, Position(epoch, 0), replica)

    def _stops_at(self, point: int) -> bool:
        """Whether all ranks stop here, after so many steps or epochs."""
        stop = self._stop
        if stop is None or not stop.bounds(point):
            return False
        if not stop.agreed:  # no part of training
            self._comm.clock.stop()
            stop.wait(self._timeout_s)
            self._comm.clock.start()
        return stop.stops(point)

    def _checkpoint(self, due: bool, stops: bool, position: Position, replica: Replica) -> None:
        if due or stops:
            self._write(position, replica)
        if stops and self._stop:
            raise Stopped(self._stop.saved())

    def _write(self, position: Position, replica: Replica) -> None:
        clock = self._comm.clock
        with clock.phase("checkpoint") as span:
            state = {
                "replica": replica.state(),
                "metrics": self._metrics.state(),
                "clock": clock.state(),
                "strategy": self._strategy_state(),
                "traffic": [traffic.state() for traffic in _traffic_of(self._comm)],
            }
            written = self._store.write(position, state)
        self._comm.barrier()  # the previous one is needed until every rank has this one
        with clock.phase("checkpoint"):
            self._store.prune(position)
        where = {"epoch": position.epochs, "step": position.steps}
        self._events.write("checkpoint", **where, bytes=written, seconds=span.left - span.entered)


def _traffic_of(comm: Communicator) -> list[Traffic]:
    """The traffic of a communicator and of its subgroups, in the order in which they were made."""
    return [comm.traffic, *(each for subgroup in comm.subgroups for each in _traffic_of(subgroup))]
