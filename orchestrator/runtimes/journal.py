"""The events of a run, each read and checked once."""

from __future__ import annotations

from pathlib import Path

from orchestrator.results.store import write_atomic
from trainer.core.events import Event, EventReader, in_order


class Journal:
    """Keeps the events that a reader finds.

    Attributes:
        events: all that were read.
    """

    def __init__(self, reader: EventReader) -> None:
        self._reader, self.events = reader, list[Event]()
        self._told = 0  # of the events, by `untold`

    @property
    def has_given_up(self) -> bool:
        """Whether it reads no more of some file, because there is too much in it."""
        return self._reader.has_given_up

    def read(self) -> list[Event]:
        """The events since the last call."""
        events = self._reader.new()
        self.events += events
        return events

    def untold(self) -> list[Event]:
        """The events that no earlier call has returned."""
        told, self._told = self._told, len(self.events)
        return self.events[told:]

    def write(self, path: Path) -> list[Event]:
        """Write all events in their order, see `in_order`. Returns them."""
        events = in_order(self.events)
        write_atomic(path, "".join(event.to_line() + "\n" for event in events))
        return events
