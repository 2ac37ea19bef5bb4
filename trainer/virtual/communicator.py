"""The transport of virtual nodes: data moves in memory, and the simulation says how long that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm.base import CommunicationError, Communicator
from trainer.comm.memory import total
from trainer.comm.requests import Requests
from trainer.core.clock import Clock
from trainer.core.trace import Kind
from trainer.virtual.copy_on_write import shared_copy
from trainer.virtual.group import Call, VirtualGroup
from trainer.virtual.requests import VirtualRequests
from trainer.virtual.simulation import Untimed

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.core.context import NodeContext


class VirtualCommunicator(Communicator):
    """Ranks of one process that take turns.

    A rank leaves an exchange when the simulation resumes it. By then, all data that it receives is there.
    Buffers are copied when they are sent: their owners may go on before the receivers do. Sums have the
    order of transport `memory`.

    Attributes:
        node: the rank in the simulation.
    """

    topology: ClassVar[str] = "single"
    has_links: ClassVar[bool] = False

    def __init__(self, rank: int, clock: Clock, shared: VirtualGroup) -> None:
        super().__init__(rank, len(shared.group.ranks), clock)
        self._shared, self._splits, self._collectives = shared, 0, 0
        self._sends: Counter[int] = Counter()  # in training, by receiver
        own = shared.group.ranks[rank]
        self.node = shared.simulation.ranks[own]
        self._number = shared.simulation.number_in(own, shared.group)

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> Communicator:
        raise NotImplementedError("virtual ranks are connected by `run_virtual`")

    def close(self) -> None:
        """Raises CommunicationError if costs replace CPU time, and no rank has paid any."""
        simulation = self._shared.simulation
        charged = (rank.clock.charged_s for rank in simulation.ranks)  # not of other processes
        if not simulation.has_work and not any(cost is None or cost > 0 for cost in charged):
            raise CommunicationError(
                "virtual.seconds_per_sample and virtual.compute: sampled are for strategies that compute "
                "gradients with replica.backward, and this one does not; leave them out"
            )

    def abort(self) -> None:
        self._shared.simulation.failed = True

    def waits_s(self) -> dict[int, float] | None:
        # The simulation does not know of exchanges before a checkpoint, but the traffic does.
        return None if self.node.clock.resumed else self._shared.simulation.waits_s(self.rank)

    def requests(self, timeout_s: float) -> Requests:
        if self.size < len(self._shared.simulation.ranks):
            raise CommunicationError("a group has no requests of its own; use those of all ranks")
        return VirtualRequests(self.rank, self._shared, self._pause)

    def _exchange(self, timed: Kind, untimed: Untimed, nbytes: int, peer: int) -> None:
        """Wait until the simulation ends the exchange. Outside of training it takes no time."""
        self._pause(timed if self.clock.counting else untimed, nbytes, peer)

    def _pause(self, kind: Kind | Untimed, nbytes: int, peer: int) -> None:
        """Let other ranks run until the simulation has ended an exchange. nbytes, peer: see Kind."""
        self.node.pause((int(kind), self._number, peer, nbytes, 0.0, 0.0, 0.0))

    def _meet(
        self,
        kind: Kind,
        nbytes: int,
        brings: Tensor | None = None,
        come_to: Callable[[list[Tensor]], Any] | None = None,
        peer: int = -1,
    ) -> Any:
        """A collective.

        Args:
            nbytes, peer: see Kind.
            brings: what this rank brings; None: nothing.
            come_to: the outcome, from what the ranks bring, in their order. The first to leave calls it.
                None: this process needs no outcome.

        Returns:
            The outcome, which all ranks of this process share.
        """
        number = self._collectives
        self._collectives += 1
        meeting = self._shared.bring(number, self.rank, Call(kind, nbytes, peer), brings)
        self._exchange(kind, Untimed.COLLECTIVE, nbytes, peer)
        if come_to is not None and meeting.brought:
            # All other ranks are still in the exchange, with what they have brought.
            meeting.outcome = come_to([tensor for _, tensor in sorted(meeting.brought.items())])
            meeting.brought.clear()
        self._shared.leave(number)
        return meeting.outcome

    def weighted_mean(self, values: Tensor, weight: float) -> Tensor:
        import torch

        if self.size == 1:
            return values
        n = len(values)
        if weight or not values.isfinite().all():  # 0 · inf is no zero
            brings = torch.cat([values * weight, values.new_tensor([weight])])
        else:  # many ranks may be absent: their zeros take no memory
            brings = values.new_zeros(1).expand(n + 1)
        with self.clock.phase("communicate") as span:
            mean = self._meet(Kind.ALL_REDUCE, brings.nbytes, brings, _mean)
        sent = 2 * brings.nbytes * (self.size - 1) / self.size
        self._record_collective(span, sent, Kind.ALL_REDUCE, brings.nbytes)
        return values if mean is None else shared_copy(mean)

    def _all_reduce(self, buffer: Tensor) -> None:
        buffer.copy_(self._meet(Kind.ALL_REDUCE, buffer.nbytes, buffer, total))

    def _all_gather(self, buffer: Tensor) -> Tensor:
        import torch

        gathered: Tensor = self._meet(Kind.ALL_GATHER, buffer.nbytes, buffer, torch.stack)
        return gathered.clone()

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        import torch

        rows: Tensor = self._meet(Kind.ALL_TO_ALL, buffer.nbytes, buffer, torch.stack)
        return rows[:, self.rank].clone()

    def _gather(self, buffer: Tensor, root: int) -> Tensor | None:
        import torch

        come_to = torch.stack if self._shared.runs(root) else None
        gathered: Tensor | None = self._meet(Kind.GATHER, buffer.nbytes, buffer, come_to, root)
        return gathered if self.rank == root else None

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        import torch

        brings = buffer if self.rank == root else None
        sent = self._meet(Kind.BROADCAST, buffer.nbytes, brings, lambda brought: brought[0].clone(), root)
        # A buffer that has these bits may share its memory.
        if not torch.equal(buffer.view(torch.uint8), sent.view(torch.uint8)):
            buffer.copy_(sent)

    def _barrier(self) -> None:
        self._meet(Kind.BARRIER, 0)

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        self._shared.post(Kind.SHIFT, self.rank, to, buffer.clone())
        self._meet(Kind.SHIFT, buffer.nbytes, peer=(to - self.rank) % self.size)
        received: Tensor = self._shared.read(Kind.SHIFT, source, self.rank)
        return received

    def _isend(self, buffer: Tensor, to: int) -> Callable[[], None]:
        self._check_peer(to)
        self._shared.post(Kind.SEND, self.rank, to, buffer.clone())
        timed, index = self.clock.counting, self._sends[to]
        self._sends[to] += timed
        self._exchange(Kind.SEND, Untimed.SEND, buffer.nbytes, to)

        def finish() -> None:
            if timed:
                self._pause(Kind.SEND_WAIT, index, to)

        return finish

    def _send(self, buffer: Tensor, to: int) -> None:
        self._isend(buffer, to)()

    def _check_peer(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise CommunicationError(f"there is no rank {rank}; the group has {self.size}")

    def _recv(self, buffer: Tensor, source: int) -> None:
        self._check_peer(source)
        self._exchange(Kind.RECEIVE, Untimed.RECEIVE, buffer.nbytes, source)
        buffer.copy_(self._shared.read(Kind.SEND, source, self.rank))

    def _split(self, groups: list[list[int]], number: int) -> VirtualCommunicator:
        ranks = tuple(self.run_ranks[rank] for rank in groups[number])
        subgroup = self._shared.subgroup(ranks, self._splits)
        self._splits += 1
        return type(self)(groups[number].index(self.rank), self.clock, subgroup)


def _mean(brought: list[Tensor]) -> Tensor | None:
    """The mean of vectors that are multiplied by their weights, which follow them; None without weights."""
    sums = total(brought)
    return sums[:-1] / sums[-1] if sums[-1] > 0 else None
