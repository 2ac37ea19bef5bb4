"""Transport `memory`: the ranks are threads of one process. For tests, and for very many nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import TYPE_CHECKING, ClassVar

from trainer.comm.base import CommunicationError, Communicator
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.core.context import NodeContext


PEER_FAILED = "another rank of this process has failed, or has not come in time"
POLL_S = 0.1  # a mailbox cannot be woken by `abort`


@dataclass
class ThreadGroup:
    """Shared state of ranks that are threads of one process: buffers, a barrier, mailboxes."""

    size: int
    timeout_s: float = 600.0
    slots: list[Tensor | None] = field(init=False)
    barrier: threading.Barrier = field(init=False)
    mail: dict[tuple[int, int], Queue[Tensor]] = field(init=False)
    subgroups: dict[tuple[int, ...], ThreadGroup] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.slots = [None] * self.size
        self.barrier = threading.Barrier(self.size)
        ranks = range(self.size)
        self.mail = {(source, to): Queue() for source in ranks for to in ranks}

    def subgroup(self, ranks: Sequence[int]) -> ThreadGroup:
        """Where these ranks alone meet."""
        room = self.subgroups.setdefault(tuple(ranks), ThreadGroup(len(ranks), self.timeout_s))  # atomic
        if self.barrier.broken:
            room.abort()
        return room

    def abort(self) -> None:
        """Let whoever waits here, or comes later, fail."""
        self.barrier.abort()
        for room in [*self.subgroups.values()]:
            room.abort()


class MemoryCommunicator(Communicator):
    """Shared memory: ranks are threads of one process, or processes forked from it.

    Each rank publishes its buffer; after a barrier it copies what it needs; a second barrier follows.
    """

    topology: ClassVar[str] = "single"

    def __init__(self, rank: int, size: int, clock: Clock, room: ThreadGroup) -> None:
        super().__init__(rank, size, clock)
        self._room = room

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> MemoryCommunicator:
        """Raises ValueError for several ranks: they need one ThreadGroup, given to the constructor."""
        if context.size > 1:
            raise ValueError("ranks that are threads need a common ThreadGroup")
        return cls(context.rank, context.size, clock, ThreadGroup(1, context.timeout_s))

    def abort(self) -> None:
        self._room.abort()

    def _meet(self) -> None:
        try:
            self._room.barrier.wait(self._room.timeout_s)
        except threading.BrokenBarrierError:
            raise CommunicationError(PEER_FAILED) from None

    def _everyones(self, buffer: Tensor) -> Tensor:
        import torch

        self._room.slots[self.rank] = buffer
        self._meet()
        gathered = torch.stack([slot for slot in self._room.slots if slot is not None])
        self._meet()  # nobody may change its buffer before all have copied
        return gathered

    def _all_reduce(self, buffer: Tensor) -> None:
        buffer.copy_(self._everyones(buffer).sum(dim=0))

    def _all_gather(self, buffer: Tensor) -> Tensor:
        return self._everyones(buffer)

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        return self._everyones(buffer)[:, self.rank].clone()

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        buffer.copy_(self._everyones(buffer)[root])

    def _send(self, buffer: Tensor, to: int) -> None:
        self._room.mail[self.rank, to].put(buffer.clone())

    def _recv(self, buffer: Tensor, source: int) -> None:
        box = self._room.mail[source, self.rank]
        deadline = time.monotonic() + self._room.timeout_s
        while not self._room.barrier.broken and time.monotonic() < deadline:
            try:
                buffer.copy_(box.get(timeout=POLL_S))
            except Empty:
                continue
            return
        raise CommunicationError(PEER_FAILED)

    def _barrier(self) -> None:
        self._meet()

    def _split(self, groups: list[list[int]], number: int) -> MemoryCommunicator:
        group = groups[number]
        room = self._room.subgroup(group)
        return MemoryCommunicator(group.index(self.rank), len(group), self.clock, room)
