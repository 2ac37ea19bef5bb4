"""A session without data, model or peers, for strategies that do not train. Imports no torch."""

from __future__ import annotations

from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.result import TrainResult
from trainer.training.limits import wait_for_limits


class BareSession:
    """Stands in for `Session` in strategies whose `trains` is False."""

    def __init__(self, context: NodeContext, events: EventWriter) -> None:
        self.rank = context.rank
        self._context = context
        self.clock = Clock()
        self._events = events

    def start(self) -> None:
        """Start the clock."""
        wait_for_limits(self._context, self._events)
        self._events.write("train_start", parameters=0)
        self.clock.start()

    def result(self) -> TrainResult:
        """Stop the clock. Returns a result that has only times."""
        self.clock.stop()
        self._events.write("train_end")
        return TrainResult(
            steps=0,
            samples=0,
            train_s=self.clock.train_s,
            work_cpu_s=0.0,
            seconds=self.clock.seconds,
            bytes_sent=0.0,
        )
