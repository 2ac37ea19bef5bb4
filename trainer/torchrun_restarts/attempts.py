"""Attempts: the events of a run, grouped by how often torchrun had restarted the ranks. Imports no torch.

A run without restarts has one attempt. Of several, one counts: the first in which all ranks finished, else
the last. Its events are complete: a rank that resumes from a checkpoint first repeats the events of what is
in it, and one that does not resume starts over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from trainer.core.event_schema import EXIT_REPORTS
from trainer.core.events import Event


class AttemptTracker:
    """Tracks which rank has reported which kinds of events in which attempt, in constant memory.

    Events of one rank have to be added in order; those of different ranks may be interleaved in any way.

    Attributes:
        finished: the attempt in which every rank has reported its result, if there is one.
    """

    def __init__(self, ranks: int) -> None:
        self._everyone = set(range(ranks))
        self._attempt_of: dict[int, int] = {}  # by rank
        self._ranks: list[dict[str, set[int]]] = [{}]  # by attempt and kind
        self.finished: int | None = None

    def add(self, event: Event) -> int:
        """Add one event. Returns the attempt that it belongs to."""
        if event.kind == "start":
            self._attempt_of[event.rank] = event.fields.get("attempt", 0)
        attempt: int = event.fields.get("attempt", self._attempt_of.get(event.rank, 0))
        while len(self._ranks) <= attempt:
            self._ranks.append({})
        self._ranks[attempt].setdefault(event.kind, set()).add(event.rank)
        if event.kind == "done" and self.finished is None:
            # A rank reports this after the exit barrier, which all ranks enter with their results. Results
            # in other ranks' files may be read later.
            self._finish(attempt)
        elif event.kind == "result" and self.finished is None and self._with(attempt, "done"):
            self._finish(attempt)
        return attempt

    def _finish(self, attempt: int) -> None:
        if self._with(attempt, "result") == self._everyone:
            self.finished = attempt

    def _with(self, attempt: int, *kinds: str) -> set[int]:
        """The ranks that have reported any of these kinds."""
        return set().union(*(self._ranks[attempt].get(kind, ()) for kind in kinds))

    @property
    def effective(self) -> int:
        """The number of the attempt that counts, from 0; also how often ranks were restarted before it."""
        return len(self._ranks) - 1 if self.finished is None else self.finished

    def without_exit_report(self, attempt: int) -> list[int]:
        """The ranks that started and have written no exit report: they were killed, or still run."""
        return sorted(self._with(attempt, "start") - self._with(attempt, *EXIT_REPORTS))

    def killed(self, attempt: int) -> list[int]:
        """The ranks without an exit report of their own; their torchrun agents may have written one."""
        return sorted({*self.without_exit_report(attempt), *self._with(attempt, "died")})

    def not_started(self, attempt: int) -> list[int]:
        """The ranks that have reported no start."""
        return sorted(self._everyone - self._with(attempt, "start"))


class Attempts(AttemptTracker):
    """A tracker that keeps the events, for a run that has ended.

    Attributes:
        ranks: how many there are.
    """

    def __init__(self, ranks: int, events: Iterable[Event] = ()) -> None:
        super().__init__(ranks)
        self.ranks = ranks
        self._events: defaultdict[int, list[Event]] = defaultdict(list)
        for event in events:
            self.add(event)

    def add(self, event: Event) -> int:
        attempt = super().add(event)
        self._events[attempt].append(event)
        return attempt

    def events_of(self, attempt: int) -> list[Event]:
        """The events of one attempt, in the order in which they were added."""
        return self._events[attempt]
