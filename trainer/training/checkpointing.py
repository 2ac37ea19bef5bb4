"""The keeper of a run's checkpoints: one rank's part in taking them, and in going on from the last."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.comm.base import Communicator
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.spec.run_spec import RunSpec
from trainer.training.checkpoint_store import CheckpointError, Checkpoints, Position
from trainer.training.loader import Batch
from trainer.training.metrics import TrainingMetrics
from trainer.training.replica import Replica

BEGINNING = Position(0, 0)
NONE = -1.0  # in place of a position's number


@dataclass(frozen=True)
class Checkpoint:
    """One that was read. taken: seconds since 1970."""

    position: Position
    state: dict[str, Any]
    taken: float


class Checkpointer:
    """Keeps what a run of this spec asks for, which may be nothing.

    What is in a checkpoint: the replica, the rank's accounts, its clock and its traffic. So the seconds and
    bytes of a run that went on are those of the work that is in its weights, and of no other. What it takes
    to write a checkpoint is in the next one's clock: of the one that a run goes on from it is lost.
    """

    def __init__(
        self,
        context: NodeContext,
        spec: RunSpec,
        events: EventWriter,
        comm: Communicator,
        metrics: TrainingMetrics,
    ) -> None:
        """Raises CheckpointError if checkpoints are asked for and there is no place for them."""
        self._spec, self._events, self._comm, self._metrics = spec, events, comm, metrics
        if spec.checkpoints and context.checkpoint_dir is None:
            raise CheckpointError(
                "the run takes checkpoints, and SHARDYARD_CHECKPOINTS names no place for them"
            )
        directory = context.checkpoint_dir or Path()  # of no use to a run that takes none
        self._store = Checkpoints(directory, spec.key, context.rank, context.size)
        if spec.checkpoints:
            self._store.open()

    def last_good(self) -> Checkpoint | None:
        """The newest checkpoint that every rank has intact; None: the run begins at its beginning.

        Called on every rank at once: each proposes its own newest, and goes back to the oldest that is
        proposed, until all propose the same.
        """
        if not self._spec.checkpoints:
            return None
        proposed = self._newest(float("inf"))
        while True:
            number = proposed.position.number if proposed else NONE
            mine = torch.tensor([number], dtype=torch.float64, device=self._comm.device)
            proposals = self._comm.all_gather_float64(mine)
            oldest = proposals.min().item()
            if proposals.max().item() == oldest:
                # What lies beyond is of an attempt that is forgotten.
                self._store.keep(proposed.position if proposed else None)
                return proposed
            if proposed and number > oldest:
                self._skip(proposed.position, "not every rank has it intact")
                proposed = self._newest(oldest)

    def _newest(self, most: float) -> Checkpoint | None:
        """This rank's newest intact checkpoint whose number is at most so large."""
        for position in self._store.positions():
            if position.number <= most:
                try:
                    return Checkpoint(position, *self._store.read(position))
                except CheckpointError as error:
                    self._skip(position, str(error))
        return None

    def _skip(self, position: Position, cause: str) -> None:
        self._events.write("checkpoint_skipped", epoch=position.epochs, step=position.steps, cause=cause)

    def go_on(self, checkpoint: Checkpoint, replica: Replica) -> Position:
        """Make all as it was when the checkpoint was taken; where that was. Raises CheckpointError."""
        position, state = checkpoint.position, checkpoint.state
        self._events.write(
            "resumed",
            epoch=position.epochs,
            step=position.steps,
            age_s=time.time() - checkpoint.taken,
            times=self._store.note_resumed() if self._comm.rank == 0 else None,
        )
        try:
            replica.restore(state["replica"])
            self._metrics.restore(state["accounts"])
            self._comm.clock.restore(state["clock"])
            self._comm.traffic.restore(state["traffic"])
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"what is in the checkpoint after epoch {position.epochs} and {position.steps} steps does "
                f"not fit this run ({type(error).__name__}: {error}); "
                f"remove {self._store.directory} to begin anew"
            ) from error
        return position

    def after_step(self, epoch: int, batch: Batch, replica: Replica) -> None:
        """Take a checkpoint if it is time; none after the last step of all."""
        every = self._spec.checkpoint_steps
        more = epoch < self._spec.epochs or batch.step < batch.steps
        if every and self._metrics.steps % every == 0 and more:
            self._take(Position(epoch - 1, batch.step), replica)

    def after_epoch(self, epoch: int, replica: Replica) -> None:
        """The same once an epoch has been evaluated."""
        every = self._spec.checkpoint_epochs
        if every and epoch % every == 0 and epoch < self._spec.epochs:
            self._take(Position(epoch, 0), replica)

    def _take(self, position: Position, replica: Replica) -> None:
        clock = self._comm.clock
        with clock.phase("checkpoint") as span:
            state = {
                "replica": replica.state(),
                "accounts": self._metrics.state(),
                "clock": clock.state(),
                "traffic": self._comm.traffic.state(),
            }
            written = self._store.write(position, state)
        self._comm.barrier()  # an older one is of use as long as a rank has not got this one
        with clock.phase("checkpoint"):
            self._store.keep(position)
        where = {"epoch": position.epochs, "step": position.steps}
        self._events.write("checkpoint", **where, bytes=written, seconds=span.left - span.entered)
