"""Attempts: a run's events told apart by how often torchrun had started the ranks before. Imports no torch.

A run that is never started again has one attempt. Of several one counts: the first that all ranks have
finished, else the last. Its events are a whole account: a rank that goes on from a checkpoint tells again
what is in it, and one that does not has begun anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from trainer.core.events import EXIT_REPORTS, Event


class Tally:
    """Which rank has said which kind of word in which attempt: no more is kept, however long a run is.

    Takes events in the order in which each rank wrote them; ranks may be interleaved in any way.
    """

    def __init__(self, ranks: int) -> None:
        self._everyone = set(range(ranks))
        self._now: dict[int, int] = {}  # by rank: the attempt that it is in
        self._said: list[dict[str, set[int]]] = [{}]  # by attempt and kind: the ranks
        self.finished: int | None = None  # the attempt in which every rank has given its result

    def add(self, event: Event) -> int:
        """Take one event; the attempt that it is of."""
        if event.kind == "start":
            self._now[event.rank] = event.fields.get("attempt", 0)
        attempt: int = event.fields.get("attempt", self._now.get(event.rank, 0))
        while len(self._said) <= attempt:
            self._said.append({})
        self._said[attempt].setdefault(event.kind, set()).add(event.rank)
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
        return set().union(*(self._said[attempt].get(kind, ()) for kind in kinds))

    @property
    def counts(self) -> int:
        """The number of the attempt that counts, from 0."""
        return len(self._said) - 1 if self.finished is None else self.finished

    def silent(self, attempt: int) -> list[int]:
        """The ranks that were up and left without a last word: they were killed, or still run."""
        return sorted(self._kinds(attempt, "start") - self._kinds(attempt, *EXIT_REPORTS))

    def killed(self, attempt: int) -> list[int]:
        """The ranks that were killed for all that is known; their agents may have left a word for them."""
        return sorted({*self.silent(attempt), *self._kinds(attempt, "died")})

    def absent(self, attempt: int) -> list[int]:
        """The ranks that never came up."""
        return sorted(self._everyone - self._kinds(attempt, "start"))


class Attempts(Tally):
    """A tally with the events themselves: of a run that has ended."""

    def __init__(self, ranks: int, events: Iterable[Event] = ()) -> None:
        super().__init__(ranks)
        self._events: defaultdict[int, list[Event]] = defaultdict(list)
        for event in events:
            self.add(event)

    def add(self, event: Event) -> int:
        attempt = super().add(event)
        self._events[attempt].append(event)
        return attempt

    def of(self, attempt: int) -> list[Event]:
        """The events of one attempt, as they came."""
        return self._events[attempt]
