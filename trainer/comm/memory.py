"""Transport `memory`: ranks are threads of one process. For tests, and for many nodes."""

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


PEER_FAILED = "another rank of this process failed or timed out"
POLL_S = 0.1  # `abort` cannot wake a rank that waits for its mailbox


@dataclass
class ThreadGroup:
    """Shared state of ranks that are threads of one process: buffers, a barrier, mailboxes."""

    size: int
    timeout_s: float = 600.0
    slots: list[Tensor | None] = field(init=False)
    barrier: threading.Barrier = field(init=False)
    mailboxes: dict[tuple[int, int], Queue[Tensor]] = field(init=False)
    subgroups: dict[tuple[int, ...], ThreadGroup] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.slots = [None] * self.size
        self.barrier = threading.Barrier(self.size)
        ranks = range(self.size)
        self.mailboxes = {(source, to): Queue() for source in ranks for to in ranks}

    def subgroup(self, ranks: Sequence[int]) -> ThreadGroup:
        """The group of these ranks alone; the same object for all of them."""
        group = self.subgroups.setdefault(tuple(ranks), ThreadGroup(len(ranks), self.timeout_s))  # atomic
        if self.barrier.broken:
            group.abort()
        return group

    def abort(self) -> None:
        """Make every present and later exchange of this group fail, subgroups included."""
        self.barrier.abort()
        for group in [*self.subgroups.values()]:
            group.abort()


class MemoryCommunicator(Communicator):
    """Shared memory: ranks are threads of one process, or processes forked from it.

    Each rank publishes its buffer; after a barrier it copies what it needs; a second barrier follows.
    """

    topology: ClassVar[str] = "single"

    def __init__(self, rank: int, size: int, clock: Clock, group: ThreadGroup) -> None:
        super().__init__(rank, size, clock)
        self._group = group

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> MemoryCommunicator:
        """Raises ValueError for several ranks: they need one ThreadGroup, given to the constructor."""
        if context.size > 1:
            raise ValueError("ranks that are threads need a common ThreadGroup")
        return cls(context.rank, context.size, clock, ThreadGroup(1, context.timeout_s))

    def abort(self) -> None:
        self._group.abort()

    def _wait(self) -> None:
        try:
            self._group.barrier.wait(self._group.timeout_s)
        except threading.BrokenBarrierError:
            raise CommunicationError(PEER_FAILED) from None

    def _gathered(self, buffer: Tensor) -> Tensor:
        import torch

        self._group.slots[self.rank] = buffer
        self._wait()
        gathered = torch.stack([slot for slot in self._group.slots if slot is not None])
        self._wait()  # no rank may change its buffer before all have copied it
        return gathered

    def _all_reduce(self, buffer: Tensor) -> None:
        buffer.copy_(self._gathered(buffer).sum(dim=0))

    def _all_gather(self, buffer: Tensor) -> Tensor:
        return self._gathered(buffer)

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        return self._gathered(buffer)[:, self.rank].clone()

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        buffer.copy_(self._gathered(buffer)[root])

    def _send(self, buffer: Tensor, to: int) -> None:
        self._group.mailboxes[self.rank, to].put(buffer.clone())

    def _recv(self, buffer: Tensor, source: int) -> None:
        mailbox = self._group.mailboxes[source, self.rank]
        deadline = time.monotonic() + self._group.timeout_s
        while not self._group.barrier.broken and time.monotonic() < deadline:
            try:
                buffer.copy_(mailbox.get(timeout=POLL_S))
            except Empty:
                continue
            return
        raise CommunicationError(PEER_FAILED)

    def _barrier(self) -> None:
        self._wait()

    def _split(self, groups: list[list[int]], number: int) -> MemoryCommunicator:
        ranks = groups[number]
        shared = self._group.subgroup(ranks)
        return MemoryCommunicator(ranks.index(self.rank), len(ranks), self.clock, shared)
