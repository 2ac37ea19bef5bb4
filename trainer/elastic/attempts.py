"""Attempts: a run's events told apart by how often torchrun had started the ranks before. Imports no torch.

A run that is never started again has one attempt. Of several one counts: the first that all ranks have
finished, else the last. Its events are a whole account: a rank that goes on from a snapshot tells again
what is in it, and one that does not has begun anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainer.events import LAST_WORDS, Event


class Attempts:
    """Takes events in the order in which each rank wrote them; ranks may be interleaved in any way."""

    def __init__(self, ranks: int, events: Iterable[Event] = ()) -> None:
        self._everyone = set(range(ranks))
        self._now: dict[int, int] = {}  # by rank: the attempt that it is in
        self._events: list[list[Event]] = [[]]
        self.finished: int | None = None  # the attempt in which every rank has given its result
        for event in events:
            self.add(event)

    def add(self, event: Event) -> int:
        """Take one event; the attempt that it is of."""
        if event.kind == "start":
            self._now[event.rank] = event.fields.get("attempt", 0)
        attempt: int = event.fields.get("attempt", self._now.get(event.rank, 0))
        while len(self._events) <= attempt:
            self._events.append([])
        self._events[attempt].append(event)
        if event.kind == "done" and self.finished is None:
            # A rank says so after the last meeting, to which each has come with its result. Where they are
            # in different files, the others' may be heard of later.
            self._finish(attempt)
        elif event.kind == "result" and self.finished is None and self._kinds(attempt, "done"):
            self._finish(attempt)
        return attempt

    def _finish(self, attempt: int) -> None:
        if self._kinds(attempt, "result") == self._everyone:
            self.finished = attempt

    def _kinds(self, attempt: int, *kinds: str) -> set[int]:
        """The ranks that have reported any of these."""
        return {event.rank for event in self._events[attempt] if event.kind in kinds}

    @property
    def counts(self) -> int:
        """The number of the attempt that counts, from 0."""
        return len(self._events) - 1 if self.finished is None else self.finished

    def of(self, attempt: int) -> list[Event]:
        """The events of one attempt, as they came."""
        return self._events[attempt]

    def silent(self, attempt: int) -> list[int]:
        """The ranks that were up and left without a last word: they were killed, or still run."""
        return sorted(self._kinds(attempt, "start") - self._kinds(attempt, *LAST_WORDS))

    def killed(self, attempt: int) -> list[int]:
        """The ranks that were killed for all that is known; their agents may have left a word for them."""
        return sorted({*self.silent(attempt), *self._kinds(attempt, "died")})

    def absent(self, attempt: int) -> list[int]:
        """The ranks that never came up."""
        return sorted(self._everyone - self._kinds(attempt, "start"))
