"""A network between the ranks of a check: it carries and counts their messages."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from orchestrator.course.student import Waiting

Send = Callable[[int, Any], None]
Recv = Callable[[int], Any]


class Network:
    """Messages between ranks. A send returns at once; a receive waits for the next message in order.

    Attributes:
        sent: bytes that each rank has sent. messages: (sender, receiver, bytes) of each, in order.
    """

    def __init__(self, size: int, change: int | None = None) -> None:
        """change: number of a message, from 0, to whose values 1 is added on its way; None: none."""
        self.sent = [0] * size
        self.messages: list[tuple[int, int, int]] = []
        self._size, self._change = size, change
        self._queues: dict[tuple[int, int], deque[np.ndarray]] = defaultdict(deque)

    def functions(self, rank: int) -> tuple[Send, Recv]:
        """`send(to, values)` and `recv(source)` of a rank."""

        def send(to: int, values: Any) -> None:
            self._check(rank, to)
            array = np.asarray(values)
            if array.dtype.kind not in "biuf":
                raise ValueError("values must be an array of numbers")
            if len(self.messages) == self._change:
                array = array + 1
            self.sent[rank] += array.nbytes
            self.messages.append((rank, to, array.nbytes))
            self._queues[rank, to].append(array)

        def recv(source: int) -> np.ndarray:
            self._check(rank, source)
            queue = self._queues[source, rank]
            if not queue:
                raise Waiting(f"a message from rank {source}")
            return queue.popleft()

        return send, recv

    def arguments(self, own: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
        """The arguments of each rank: its own, then rank, size, `send` and `recv`."""
        return [(*each, rank, self._size, *self.functions(rank)) for rank, each in enumerate(own)]

    def _check(self, rank: int, peer: Any) -> None:
        if not isinstance(peer, int) or isinstance(peer, bool) or not 0 <= peer < self._size:
            raise ValueError(f"{peer} is no rank; allowed: 0 to {self._size - 1}")
        if peer == rank:
            raise ValueError(f"rank {rank} cannot exchange messages with itself")

    @property
    def unread(self) -> list[tuple[int, int]]:
        """(sender, receiver) of messages that no rank has received."""
        return [pair for pair, queue in self._queues.items() for _ in queue]


class Collective:
    """A sum over all ranks, which waits until every rank has called it. Counts calls and bytes.

    Attributes:
        calls: the number of calls of each rank. nbytes: bytes of values in the calls of each rank.
    """

    def __init__(self, size: int) -> None:
        self.calls, self.nbytes = [0] * size, [0] * size
        self._given: list[np.ndarray | None] = [None] * size
        self._sums: list[deque[np.ndarray]] = [deque() for _ in range(size)]

    def function(self, rank: int) -> Callable[[Any], np.ndarray]:
        """`all_reduce(values)` of a rank: the elementwise sum over all ranks."""

        def all_reduce(values: Any) -> np.ndarray:
            return self.sum(rank, np.asarray(values, dtype=float))

        return all_reduce

    def arguments(self, own: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
        """The arguments of each rank: its own, then `all_reduce`."""
        return [(*each, self.function(rank)) for rank, each in enumerate(own)]

    def sum(self, rank: int, values: np.ndarray) -> np.ndarray:
        """The sum of the values of all ranks. Raises Waiting."""
        if self._sums[rank]:
            return self._sums[rank].popleft()
        if self._given[rank] is None:
            self._given[rank] = values
            self.calls[rank] += 1
            self.nbytes[rank] += values.nbytes
        given = [each for each in self._given if each is not None]
        if len(given) < len(self._given):
            missing = [str(other) for other, each in enumerate(self._given) if each is None]
            raise Waiting(f"the all-reduce of rank{'s' * (len(missing) > 1)} {', '.join(missing)}")
        if len({each.shape for each in given}) > 1:
            raise ValueError(f"the ranks' shapes differ: {', '.join(str(each.shape) for each in given)}")
        total = np.sum(given, axis=0)
        self._given = [None] * len(given)
        for sums in self._sums:
            sums.append(total)
        return self._sums[rank].popleft()
