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
SUMMED = 16  # buffers that are stacked at once to be summed


def total(buffers: Sequence[Tensor]) -> Tensor:
    """The elementwise sum of buffers of shape (n,), in the memory of a few of them."""
    import torch

    found = torch.stack([*buffers[:SUMMED]]).sum(dim=0)
    for start in range(SUMMED, len(buffers), SUMMED):
        found += torch.stack([*buffers[start : start + SUMMED]]).sum(dim=0)
    return found


@dataclass
class ThreadGroup:
    """Shared state of ranks that are threads of one process: buffers, a barrier, mailboxes."""

    size: int
    timeout_s: float = 600.0
    slots: list[Tensor | None] = field(init=False)
    total: Tensor | None = field(default=None, init=False)  # of an all-reduce, until the next one
    barrier: threading.Barrier = field(init=False)
    mailboxes: dict[tuple[int, int], Queue[Tensor]] = field(default_factory=dict, init=False)
    subgroups: dict[tuple[int, ...], ThreadGroup] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.slots = [None] * self.size
        self.barrier = threading.Barrier(self.size)

    def mailbox(self, source: int, to: int) -> Queue[Tensor]:
        """The messages from one rank to another, which few of the pairs exchange."""
        found = self.mailboxes.get((source, to))
        return found or self.mailboxes.setdefault((source, to), Queue())  # atomic

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

    def _published(self, buffer: Tensor) -> list[Tensor]:
        """The buffers of all ranks. No rank may change its own before the next barrier."""
        self._group.slots[self.rank] = buffer
        self._wait()
        return [slot for slot in self._group.slots if slot is not None]

    def _all_reduce(self, buffer: Tensor) -> None:
        buffers = self._published(buffer)
        if self.rank == 0:  # one sum for all: with one for each rank, P ranks would add P² buffers
            self._group.total = total(buffers)
        self._wait()
        assert self._group.total is not None  # noqa: S101  (rank 0 has passed the barrier)
        buffer.copy_(self._group.total)

    def _all_gather(self, buffer: Tensor) -> Tensor:
        import torch

        gathered = torch.stack(self._published(buffer))
        self._wait()
        return gathered

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        import torch

        received = torch.stack([rows[self.rank] for rows in self._published(buffer)])
        self._wait()
        return received

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        buffers = self._published(buffer)
        if self.rank != root:
            buffer.copy_(buffers[root])
        self._wait()

    def _send(self, buffer: Tensor, to: int) -> None:
        self._group.mailbox(self.rank, to).put(buffer.clone())

    def _recv(self, buffer: Tensor, source: int) -> None:
        mailbox = self._group.mailbox(source, self.rank)
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
