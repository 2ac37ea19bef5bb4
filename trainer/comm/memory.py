"""Transport `memory`: ranks are threads of one process. For tests, and for many nodes."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError
from trainer.comm.nonblocking import Finished, Operation, Posted
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


class Collective:
    """One collective of a group of threads.

    slots: what each rank has brought. missing: how many ranks have not come. left: how many have left.
    """

    def __init__(self, size: int) -> None:
        self.slots: list[Any] = [None] * size
        self.missing, self.left = size, 0
        self._lock = threading.Lock()
        self._outcome: Any = None

    def outcome(self, come_to: Callable[[list[Any]], Any]) -> Any:
        """What comes of it, once all ranks have come. The first to ask computes it, for all."""
        with self._lock:
            if self.slots:
                self._outcome = come_to(self.slots)
                self.slots = []
        return self._outcome


@dataclass
class ThreadGroup:
    """Shared state of ranks that are threads of one process: collectives under way, and mailboxes."""

    size: int
    timeout_s: float = 600.0
    failed: bool = field(default=False, init=False)
    collectives: dict[int, Collective] = field(default_factory=dict, init=False)  # by their number
    changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    mailboxes: dict[tuple[int, int], Queue[Tensor]] = field(default_factory=dict, init=False)
    subgroups: dict[tuple[int, ...], ThreadGroup] = field(default_factory=dict, init=False)

    def bring(self, number: int, rank: int, brings: Any) -> Collective:
        """Let a rank come to a collective. It does not change what it brings before it leaves.

        Raises CommunicationError if the group has failed.
        """
        with self.changed:
            if self.failed:
                raise CommunicationError(PEER_FAILED)
            if (found := self.collectives.get(number)) is None:
                found = self.collectives[number] = Collective(self.size)
            found.slots[rank] = brings
            found.missing -= 1
            if not found.missing:
                self.changed.notify_all()
        return found

    def leave(self, number: int) -> None:
        """Let a rank leave a collective, once all have come. Raises CommunicationError."""
        with self.changed:
            found = self.collectives[number]
            self.changed.wait_for(lambda: not found.missing or self.failed, self.timeout_s)
            if found.missing:
                self.failed = True
                self.changed.notify_all()
                raise CommunicationError(PEER_FAILED)
            found.left += 1
            if found.left == self.size:
                del self.collectives[number]

    def mailbox(self, source: int, to: int) -> Queue[Tensor]:
        """The messages from one rank to another, which few of the pairs exchange."""
        found = self.mailboxes.get((source, to))
        return found or self.mailboxes.setdefault((source, to), Queue())  # atomic

    def subgroup(self, ranks: Sequence[int], split: int) -> ThreadGroup:
        """The group of these ranks alone; the same object for all of them. split: its number."""
        key = split, *ranks
        group = self.subgroups.setdefault(key, ThreadGroup(len(ranks), self.timeout_s))  # atomic
        if self.failed:
            group.abort()
        return group

    def abort(self) -> None:
        """Make every present and later exchange of this group fail, subgroups included."""
        with self.changed:
            self.failed = True
            self.changed.notify_all()
        for group in [*self.subgroups.values()]:
            group.abort()


class Come(Operation):
    """A collective to which this rank has come. take: what the rank gets, from what comes of it."""

    def __init__(
        self,
        group: ThreadGroup,
        number: int,
        collective: Collective,
        come_to: Callable[[list[Any]], Any],
        take: Callable[[Any], Any],
    ) -> None:
        self._group, self._number, self._collective = group, number, collective
        self._come_to, self._take = come_to, take

    def finish(self) -> Any:
        self._group.leave(self._number)
        return self._take(self._collective.outcome(self._come_to))

    def done(self) -> bool:
        return not self._collective.missing or self._group.failed


class MemoryCommunicator(Communicator):
    """Shared memory: ranks are threads of one process, or processes forked from it.

    Each rank brings its buffer to a collective. Once all have come, the first to leave computes what comes
    of it, and every rank copies what it needs.
    """

    topology: ClassVar[str] = "single"

    def __init__(self, rank: int, size: int, clock: Clock, group: ThreadGroup) -> None:
        super().__init__(rank, size, clock)
        self._group = group
        self._collectives = self._splits = 0
        self._posted: defaultdict[int, deque[Posted]] = defaultdict(deque)

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> MemoryCommunicator:
        """Raises ValueError for several ranks: they need one ThreadGroup, given to the constructor."""
        if context.size > 1:
            raise ValueError("ranks that are threads need a common ThreadGroup")
        return cls(context.rank, context.size, clock, ThreadGroup(1, context.timeout_s))

    def abort(self) -> None:
        self._group.abort()

    def _next_split(self) -> int:
        self._splits += 1
        return self._splits

    def _meet(
        self, what: str, brings: Any, come_to: Callable[[list[Any]], Any], take: Callable[[Any], Any]
    ) -> Operation:
        """Come to the next collective. what: "broadcast of 650 numbers from rank 0"."""
        number = self._collectives
        self._collectives += 1
        return Come(self._group, number, self._group.bring(number, self.rank, brings), come_to, take)

    def _iall_reduce(self, buffer: Tensor) -> Operation:
        return self._meet(f"all_reduce of {buffer.numel()} numbers", buffer, total, buffer.copy_)

    def _iall_gather(self, buffer: Tensor) -> Operation:
        import torch

        what = f"all_gather of {buffer.numel()} numbers"
        return self._meet(what, buffer, torch.stack, lambda gathered: gathered.clone())

    def _iall_to_all(self, buffer: Tensor) -> Operation:
        import torch

        what, rank = f"all_to_all of {buffer.numel()} numbers", self.rank
        return self._meet(what, buffer, torch.stack, lambda rows: rows[:, rank].clone())

    def _ibroadcast(self, buffer: Tensor, root: int) -> Operation:
        what = f"broadcast of {buffer.numel()} numbers from rank {root}"
        return self._meet(what, buffer, lambda brought: brought[root].clone(), buffer.copy_)

    def _barrier(self) -> None:
        self._meet("barrier", 0, lambda _: None, lambda _: None).finish()

    def _isend(self, buffer: Tensor, to: int) -> Operation:
        self._group.mailbox(self.rank, to).put(buffer.clone())
        return Finished()

    def _irecv(self, buffer: Tensor, source: int) -> Operation:
        arrived = self._group.mailbox(source, self.rank).qsize
        return Posted(self._posted[source], buffer, lambda: self._take(source), arrived)

    def _take(self, source: int) -> Tensor:
        """The next message from a rank."""
        mailbox = self._group.mailbox(source, self.rank)
        deadline = time.monotonic() + self._group.timeout_s
        while not self._group.failed and time.monotonic() < deadline:
            try:
                return mailbox.get(timeout=POLL_S)
            except Empty:
                continue
        raise CommunicationError(PEER_FAILED)

    def _split(self, groups: list[list[int]], number: int) -> MemoryCommunicator:
        ranks = groups[number]
        shared = self._group.subgroup(ranks, self._next_split())
        return MemoryCommunicator(ranks.index(self.rank), len(ranks), self.clock, shared)
