"""When each packet arrives, and which ones are lost. Pure: the caller passes the time, in seconds."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import inf
from random import Random

from trainer.spec.link import Links, Path

QUEUE_BYTES = 16 * 2**20  # that wait for one wire; TCP sends at most 4 MiB ahead on a connection
PACKET_S = 0.0005  # that a wire takes for one packet, which small packets behind it wait for
HEADER_BYTES = 40  # of IPv4 and TCP
MIN_MTU, MAX_MTU = 1500, 65_000


class Wire:
    """A first-in, first-out queue with a constant rate: a token bucket whose burst is one packet."""

    def __init__(self, mbit: float | None) -> None:
        self.bytes_per_s = inf if mbit is None else mbit * 1e6 / 8
        self._free_at = -inf

    def is_full(self, now: float) -> bool:
        """Whether QUEUE_BYTES wait for the wire."""
        return (self._free_at - now) * self.bytes_per_s > QUEUE_BYTES if self.bytes_per_s < inf else False

    def seconds(self, size: int) -> float:
        """That the wire takes for this many bytes."""
        return size / self.bytes_per_s

    def send(self, begin: float, end: float, size: int) -> float:
        """Send a packet whose first byte is there at `begin`, and its last one at `end`.

        Returns:
            When its last byte has left.
        """
        self._free_at = max(end, max(begin, self._free_at) + self.seconds(size))
        return self._free_at


@dataclass
class _Direction:
    """The path from one node to another. wire: the wire on which packets leave."""

    path: Path
    wire: Wire
    random: Random
    arrived_at: float = -inf  # the last packet


class Shaper:
    """Delays and drops the packets of one run.

    Attributes:
        delivered, lost: packets, lost as the spec requests. overflowed: packets that found a full queue.
    """

    def __init__(self, links: Links, nodes: int, seed: int) -> None:
        """
        Args:
            links: the links of the run.
            nodes: how many there are.
            seed: the seed of jitter and loss.
        """
        self._links, self._nodes, self._seed = links, nodes, seed
        self._directions: dict[tuple[int, int], _Direction] = {}
        # Arrival of the last byte, order, receiver, packet, and the arrival of its first byte at the
        # receiver's interface; None if it has passed that, or has a wire of its own.
        self._waiting: list[tuple[float, int, int, bytes, float | None]] = []
        self._order = count()
        self.delivered = self.lost = self.overflowed = 0

    @cached_property
    def _interfaces(self) -> list[tuple[Wire, Wire]]:
        """The wires on which each node sends and receives."""
        rates = [self._links.interface_mbit(node) for node in range(self._nodes)]
        return [(Wire(rate), Wire(rate)) for rate in rates]

    def _direction(self, source: int, to: int) -> _Direction:
        found = self._directions.get((source, to))
        if found is None:
            path = self._links.path(source, to)
            wire = Wire(path.bandwidth_mbit) if path.separate else self._interfaces[source][0]
            random = Random(f"{self._seed}/{source}/{to}")
            found = self._directions[source, to] = _Direction(path, wire, random)
        return found

    def segment_bytes(self, source: int, to: int) -> int:
        """The largest TCP segment from one node to another, so that a packet takes about PACKET_S."""
        mbit = self._links.path(source, to).bandwidth_mbit
        size = MAX_MTU if mbit is None else int(mbit * 1e6 / 8 * PACKET_S)
        return min(max(size, MIN_MTU), MAX_MTU) - HEADER_BYTES

    def offer(self, now: float, source: int, to: int, packet: bytes) -> None:
        """Take a packet that node `source` has sent to node `to`; both are nodes of the run."""
        direction = self._direction(source, to)
        path, size = direction.path, len(packet)
        if direction.wire.is_full(now):
            self.overflowed += 1
            return
        sent = direction.wire.send(now, now, size)
        if path.loss and direction.random.random() < path.loss:
            self.lost += 1
            return
        latency = path.latency_ms
        if path.jitter_ms:
            latency += direction.random.uniform(-path.jitter_ms, path.jitter_ms)
        # Packets stay in order: TCP takes others for lost.
        direction.arrived_at = max(direction.arrived_at, sent + latency / 1000)
        begin = None if path.separate else direction.arrived_at - direction.wire.seconds(size)
        heapq.heappush(self._waiting, (direction.arrived_at, next(self._order), to, packet, begin))

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """The packets that have arrived by now, in order, each with its receiver."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            at, order, to, packet, begin = heapq.heappop(waiting)
            if begin is not None:
                done = self._interfaces[to][1].send(begin, at, len(packet))
                if done > now:
                    heapq.heappush(waiting, (done, order, to, packet, None))
                    continue
            self.delivered += 1
            yield to, packet

    @property
    def next_at(self) -> float | None:
        """When the next packet is due; None if none is waiting."""
        return self._waiting[0][0] if self._waiting else None
