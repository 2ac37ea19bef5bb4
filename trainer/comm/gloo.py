"""Transport `gloo`, and the base of transports over a torch.distributed process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm.attempt_store import attempt_store
from trainer.comm.base import Communicator, communication_errors
from trainer.comm.elastic import ElasticCommunicator
from trainer.comm.rendezvous import rendezvous
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from trainer.core.context import NodeContext
    from trainer.core.events import EventWriter

EXCHANGE = 1  # the tag of messages of collectives; those of `send` have 0


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

    def _all_reduce(self, buffer: Tensor) -> None:
        with communication_errors("all-reduce"):
            self._dist.all_reduce(buffer, group=self._group)

    def _all_gather(self, buffer: Tensor) -> Tensor:
        gathered = buffer.new_empty(self.size, buffer.numel())
        with communication_errors("all-gather"):
            self._dist.all_gather(list(gathered.unbind()), buffer, group=self._group)
        return gathered

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        received = buffer.new_empty(buffer.shape)
        with communication_errors("all-to-all"):
            self._dist.all_to_all_single(received, buffer, group=self._group)
        return received

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        with communication_errors("broadcast"):
            self._dist.broadcast(buffer, src=self._ranks[root], group=self._group)

    def _send(self, buffer: Tensor, to: int) -> None:
        with communication_errors("send"):
            self._dist.send(buffer, dst=self._ranks[to], group=self._group)

    def _isend(self, buffer: Tensor, to: int) -> Callable[[], None]:
        with communication_errors("send"):
            request = self._dist.isend(buffer, dst=self._ranks[to], group=self._group)

        def finish() -> None:
            with communication_errors("send"):
                request.wait()

        return finish

    def _recv(self, buffer: Tensor, source: int) -> None:
        with communication_errors("receive"):
            self._dist.recv(buffer, src=self._ranks[source], group=self._group)

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        received = buffer.new_empty(buffer.shape)
        self._exchange("shift", buffer, to, received, source)
        return received

    def _exchange(self, doing: str, buffer: Tensor, to: int, received: Tensor, source: int) -> None:
        """Send a buffer and receive another one at the same time. doing: for errors."""
        # gloo sends a message once its receiver has asked for it. Between two ranks, a request that follows
        # a message waits until that has left, so messages would pass one after the other.
        operations = [
            self._dist.P2POp(self._dist.irecv, received, self._ranks[source], self._group, EXCHANGE),
            self._dist.P2POp(self._dist.isend, buffer, self._ranks[to], self._group, EXCHANGE),
        ]
        with communication_errors(doing):
            for request in self._dist.batch_isend_irecv(operations):
                request.wait()

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
    group: ClassVar[str] = "gloo"

    def _all_gather(self, buffer: Tensor) -> Tensor:
        if self.size != 2:
            return super()._all_gather(buffer)
        # gloo's ring sends before it asks, see `_exchange`. On two ranks it takes up to twice as long.
        gathered, other = buffer.new_empty(2, buffer.numel()), 1 - self.rank
        gathered[self.rank] = buffer
        self._exchange("all-gather", buffer, other, gathered[other], other)
        return gathered

    @classmethod
    def connect_elastic(
        cls, context: NodeContext, clock: Clock, membership: Path, events: EventWriter
    ) -> Communicator:
        from trainer.comm.elastic_gloo import GlooGroups

        return ElasticCommunicator(context, clock, GlooGroups(context, clock), membership, events)
