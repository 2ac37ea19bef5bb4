"""What a rank sent, and when it met the others: the Communicator's books."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Traffic:
    """What this rank sent, and when it met the others. Times are in seconds of the clock.

    bytes_sent: payload bytes that leave this rank at the bandwidth-optimal cost of each collective
    for n bytes and P ranks: all-reduce 2n(P-1)/P, reduce-scatter n(P-1)/P, all-gather n(P-1), all-to-all
    n(P-1)/P, gather n from all but the root, broadcast n(P-1) from the root, shift and send n. Protocol
    headers and what a library's algorithm sends beyond that are not in it.
    bytes_to: of them, those of `send` and `isend`, by the rank that they went to.
    meetings: (entered, left) of every collective, in order. shifts: the same of every shift, and the rank
    whose buffer it waited for. posts: (time, receiver) of every send, when it was begun. deliveries:
    (entered, left, receiver, which of the sends to it, from 0) of every wait for the end of a send.
    receipts: (entered, left, sender) of every receive.
    """

    bytes_sent: float = 0.0
    bytes_to: Counter[int] = field(default_factory=Counter)
    meetings: list[tuple[float, float]] = field(default_factory=list)
    shifts: list[tuple[float, float, int]] = field(default_factory=list)
    posts: list[tuple[float, int]] = field(default_factory=list)
    deliveries: list[tuple[float, float, int, int]] = field(default_factory=list)
    receipts: list[tuple[float, float, int]] = field(default_factory=list)
    _posted: Counter[int] = field(default_factory=Counter)

    def state(self) -> dict[str, Any]:
        """All of it, as plain values; to be written down before anything else is sent."""
        books = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: dict(book) if isinstance(book, Counter) else book for name, book in books.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` has given in another process."""
        for name, book in state.items():
            setattr(self, name, Counter(book) if isinstance(book, dict) else book)

    def post(self, at: float, to: int, payload: int) -> int:
        """A send of so many bytes has begun. Returns which of the sends to that rank it is, from 0."""
        self.bytes_sent += payload
        self.bytes_to[to] += payload
        self.posts.append((at, to))
        self._posted[to] += 1
        return self._posted[to] - 1
