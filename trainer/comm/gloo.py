"""Transport `gloo`, and the base of transports over a torch.distributed process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm.attempt_store import attempt_store
from trainer.comm.base import Communicator
from trainer.comm.elastic import ElasticCommunicator
from trainer.comm.errors import communication_errors
from trainer.comm.nonblocking import Operation
from trainer.comm.rendezvous import rendezvous
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from trainer.core.context import NodeContext
    from trainer.core.events import EventWriter

EXCHANGE = 1  # the tag of messages of collectives; those of `send` have 0


class Works(Operation):
    """An exchange that consists of torch's works. outcome: what it brings."""

    def __init__(self, doing: str, works: Sequence[Any], outcome: Any = None) -> None:
        """doing: for errors."""
        self._doing, self._works, self.outcome = doing, works, outcome

    def finish(self) -> Any:
        with communication_errors(self._doing):
            for work in self._works:
                work.wait()
        return self.outcome

    def done(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def watch(self, wall: Callable[[], float]) -> None:
        def note(_: Any) -> None:
            self.completed_s = wall()

        if len(self._works) == 1:  # the future of a message is not implemented
            self._works[0].get_future().add_done_callback(note)


class TorchDistCommunicator(Communicator):
    """Collectives of torch.distributed."""

    topology: ClassVar[str] = "ddp"
    group: ClassVar[str]  # the name of the backend in torch.distributed

    def __init__(
        self, rank: int, size: int, clock: Clock, dist: Any, group: Any = None, ranks: Sequence[int] = ()
    ) -> None:
        """
        Args:
            group: torch's process group; None for the default one.
            ranks: The global rank of each rank in the group.
        """
        super().__init__(rank, size, clock)
        self._dist, self._group = dist, group
        self._ranks = ranks or range(size)

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> TorchDistCommunicator:
        import torch.distributed as dist

        with communication_errors(f"process group of {context.size} ranks at {context.rendezvous}"):
            store = rendezvous(context) if context.attempt is None else attempt_store(context)
            dist.init_process_group(
                cls.group,
                store=store,
                rank=context.rank,
                world_size=context.size,
                timeout=timedelta(seconds=context.timeout_s),
                **cls._options(context),
            )
        return cls(context.rank, context.size, clock, dist)

    @classmethod
    def _options(cls, context: NodeContext) -> dict[str, Any]:
        """Further arguments of `init_process_group`."""
        return {}

    def close(self) -> None:
        # A rank that destroys its group early would reset its peers' connections.
        self._barrier()
        self._dist.destroy_process_group()

    def _iall_reduce(self, buffer: Tensor) -> Operation:
        with communication_errors("all-reduce"):
            work = self._dist.all_reduce(buffer, group=self._group, async_op=True)
        return Works("all-reduce", [work], buffer)

    def _iall_gather(self, buffer: Tensor) -> Operation:
        gathered = buffer.new_empty(self.size, buffer.numel())
        with communication_errors("all-gather"):
            parts = list(gathered.unbind())
            work = self._dist.all_gather(parts, buffer, group=self._group, async_op=True)
        return Works("all-gather", [work], gathered)

    def _iall_to_all(self, buffer: Tensor) -> Operation:
        received = buffer.new_empty(buffer.shape)
        with communication_errors("all-to-all"):
            work = self._dist.all_to_all_single(received, buffer, group=self._group, async_op=True)
        return Works("all-to-all", [work], received)

    def _ibroadcast(self, buffer: Tensor, root: int) -> Operation:
        with communication_errors("broadcast"):
            work = self._dist.broadcast(buffer, src=self._ranks[root], group=self._group, async_op=True)
        return Works("broadcast", [work], buffer)

    def _reduce_scatter(self, buffer: Tensor) -> Tensor:
        part = buffer.new_empty(buffer.numel() // self.size)
        with communication_errors("reduce-scatter"):
            self._dist.reduce_scatter_single(part, buffer, group=self._group)
        return part

    def _isend(self, buffer: Tensor, to: int) -> Operation:
        with communication_errors("send"):
            return Works("send", [self._dist.isend(buffer, dst=self._ranks[to], group=self._group)])

    def _irecv(self, buffer: Tensor, source: int) -> Operation:
        with communication_errors("receive"):
            work = self._dist.irecv(buffer, src=self._ranks[source], group=self._group)
        return Works("receive", [work], buffer)

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        received = buffer.new_empty(buffer.shape)
        self._exchange("shift", buffer, to, received, source).finish()
        return received

    def _exchange(self, doing: str, buffer: Tensor, to: int, received: Tensor, source: int) -> Works:
        """Start to send a buffer and receive another one. doing: for errors."""
        # gloo sends a message once its receiver has asked for it. Between two ranks, a request that follows
        # a message waits until that has left, so messages would pass one after the other.
        operations = [
            self._dist.P2POp(self._dist.irecv, received, self._ranks[source], self._group, EXCHANGE),
            self._dist.P2POp(self._dist.isend, buffer, self._ranks[to], self._group, EXCHANGE),
        ]
        with communication_errors(doing):
            return Works(doing, self._dist.batch_isend_irecv(operations), received)

    def _split(self, groups: list[list[int]], number: int) -> TorchDistCommunicator:
        process_groups = [self._dist.new_group([self._ranks[rank] for rank in group]) for group in groups]
        ranks = groups[number]
        subgroup = type(self)(
            ranks.index(self.rank),
            len(ranks),
            self.clock,
            self._dist,
            process_groups[number],
            [self._ranks[rank] for rank in ranks],
        )
        subgroup.device = self.device
        return subgroup

    def _barrier(self) -> None:
        with communication_errors("barrier"):
            self._dist.barrier(group=self._group)


class GlooCommunicator(TorchDistCommunicator):
    """gloo over TCP, by torch.distributed."""

    threads_only_communicate: ClassVar[bool] = True
    knows_completion: ClassVar[bool] = True
    group: ClassVar[str] = "gloo"

    def _iall_gather(self, buffer: Tensor) -> Operation:
        if self.size != 2:
            return super()._iall_gather(buffer)
        # gloo's ring sends before it asks, see `_exchange`. On two ranks it takes up to twice as long.
        gathered, other = buffer.new_empty(2, buffer.numel()), 1 - self.rank
        gathered[self.rank] = buffer
        works = self._exchange("all-gather", buffer, other, gathered[other], other)
        works.outcome = gathered
        return works

    @classmethod
    def connect_elastic(
        cls, context: NodeContext, clock: Clock, membership: Path, events: EventWriter
    ) -> Communicator:
        from trainer.comm.elastic_gloo import GlooGroups

        return ElasticCommunicator(context, clock, GlooGroups(context, clock), membership, events)
