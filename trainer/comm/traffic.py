"""Traffic: the bytes that a rank sent, and when it entered and left each exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Traffic:
    """What one rank sent, and the times of its exchanges in seconds of the clock.

    Attributes:
        bytes_sent: Payload bytes that leave this rank at the bandwidth-optimal cost of each collective.
            For n bytes and P ranks: all-reduce 2n(P-1)/P, reduce-scatter n(P-1)/P, all-gather n(P-1),
            all-to-all n(P-1)/P, gather n on all ranks but the root, broadcast n(P-1) on the root, shift
            and send n. Protocol headers, and bytes that a library's algorithm sends beyond the optimum, do
            not count.
        bytes_to: The part of `bytes_sent` sent by `send` and `isend`, by receiver.
        collectives: (entered, left) of every collective, in order.
        shifts: (entered, left, source) of every shift.
        sends: (started, receiver) of every send.
        send_waits: (entered, left, receiver, index) of every wait for a send to complete. index: the
            number of that send among those to the receiver, from 0.
        receives: (entered, left, sender, asked) of every receive. asked: when it began; before `entered` if
            it was started and waited for later.
        starts: when each non-blocking collective was started, in order.
        start_waits: (entered, left, index, completed) of every wait for one. index: its place in `starts`;
            completed: when it was complete, None if that is not known.
    """

    bytes_sent: float = 0.0
    bytes_to: Counter[int] = field(default_factory=Counter)
    collectives: list[tuple[float, float]] = field(default_factory=list)
    shifts: list[tuple[float, float, int]] = field(default_factory=list)
    sends: list[tuple[float, int]] = field(default_factory=list)
    send_waits: list[tuple[float, float, int, int]] = field(default_factory=list)
    receives: list[tuple[float, float, int, float]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    start_waits: list[tuple[float, float, int, float | None]] = field(default_factory=list)
    _send_counts: Counter[int] = field(default_factory=Counter)

    def state(self) -> dict[str, Any]:
        """All fields as plain values for a checkpoint. The lists are not copied."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state` that another process saved."""
        for name, value in state.items():
            setattr(self, name, Counter(value) if isinstance(value, dict) else value)

    def record_send(self, at: float, to: int, payload: int) -> int:
        """Record the start of a send of `payload` bytes. Returns its number among the sends to `to`."""
        self.bytes_sent += payload
        self.bytes_to[to] += payload
        self.sends.append((at, to))
        self._send_counts[to] += 1
        return self._send_counts[to] - 1
