"""The transport of virtual nodes: data moves in memory, and the simulation says how long that takes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError
from trainer.comm.memory import total
from trainer.comm.nonblocking import Finished, Operation, Posted, Request
from trainer.comm.requests import Requests
from trainer.core.clock import Clock
from trainer.core.trace import Kind
from trainer.time_model.program import Entry
from trainer.virtual.copy_on_write import shared_copy
from trainer.virtual.group import Call, Meeting, VirtualGroup
from trainer.virtual.requests import VirtualRequests
from trainer.virtual.simulation import Untimed

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.core.context import NodeContext


class Paused(Operation):
    """An exchange that a pause of the rank ends."""

    def __init__(
        self,
        pause: Callable[[], None],
        outcome: Callable[[], Any] = lambda: None,
        done: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pause, self._outcome, self._done = pause, outcome, done

    def finish(self) -> Any:
        self._pause()
        return self._outcome()

    def done(self) -> bool:
        return self._done()


class VirtualCommunicator(Communicator):
    """Ranks of one process that take turns.

    A rank leaves an exchange when the simulation resumes it. By then, all data that it receives is there.
    Buffers are copied when they are sent: their owners may go on before the receivers do. Sums have the
    order of transport `memory`.

    Attributes:
        node, node_rank: the rank in the simulation, and its number there.
    """

    topology: ClassVar[str] = "single"
    has_links: ClassVar[bool] = False

    def __init__(self, rank: int, clock: Clock, shared: VirtualGroup) -> None:
        super().__init__(rank, len(shared.group.ranks), clock)
        self._shared, self._splits, self._collectives = shared, 0, 0
        self._noted = 0  # exchanges that were started beside the work
        self._sends: Counter[int] = Counter()  # in training, by receiver
        self._posted: defaultdict[int, deque[Posted]] = defaultdict(deque)
        own = shared.group.ranks[rank]
        self.node = shared.simulation.ranks[own]
        self.node_rank = own
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
        self.node.pause(self._entry(kind, nbytes, peer))

    def _entry(self, kind: Kind | Untimed, nbytes: int, peer: int) -> Entry:
        return int(kind), self._number, peer, nbytes, 0.0, 0.0, 0.0

    def _note_start(
        self, kind: Kind, nbytes: int, peer: int = -1
    ) -> tuple[Callable[[], None], Callable[[], bool]]:
        """Start an exchange beside the work.

        Returns:
            What waits until the simulation has ended it, and what asks whether it has.
        """
        self.node.note(self._entry(kind, nbytes, peer))
        number = self._noted
        self._noted += 1

        def done() -> bool:
            self._pause(Untimed.DONE, number, -1)
            return self._shared.simulation.is_done[self.node_rank]

        return lambda: self._pause(Kind.WAIT, number, -1), done

    def _begin_meeting(
        self,
        kind: Kind,
        brings: Tensor | None,
        come_to: Callable[[list[Tensor]], Any] | None,
        take: Callable[[Any], Any],
        nbytes: int,
        peer: int = -1,
    ) -> Operation:
        """Start a collective. take: what this rank gets, from the outcome."""
        if not self.clock.counting:  # it takes no time: all ranks start it in the same order
            return Finished(take(self._meet(kind, nbytes, brings, come_to, peer)))
        number, meeting = self._bring(kind, nbytes, brings, peer)
        pause, done = self._note_start(kind, nbytes, peer)

        return Paused(pause, lambda: take(self._outcome(number, meeting, come_to)), done)

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
        number, meeting = self._bring(kind, nbytes, brings, peer)
        self._exchange(kind, Untimed.COLLECTIVE, nbytes, peer)
        return self._outcome(number, meeting, come_to)

    def _bring(self, kind: Kind, nbytes: int, brings: Tensor | None, peer: int) -> tuple[int, Meeting]:
        number = self._collectives
        self._collectives += 1
        return number, self._shared.bring(number, self.rank, Call(kind, nbytes, peer), brings)

    def _outcome(self, number: int, meeting: Meeting, come_to: Callable[[list[Tensor]], Any] | None) -> Any:
        if come_to is not None and meeting.brought:
            # All other ranks are still in the exchange, with what they have brought.
            meeting.outcome = come_to([tensor for _, tensor in sorted(meeting.brought.items())])
            meeting.brought.clear()
        self._shared.leave(number)
        return meeting.outcome

    def weighted_mean(self, values: Tensor, weight: float) -> Tensor:
        if self.size == 1:
            return values
        brings = _weighted(values, weight)
        with self.clock.phase("communicate") as span:
            mean = self._meet(Kind.ALL_REDUCE, brings.nbytes, brings, _mean)
        self._record_collective(span, Kind.ALL_REDUCE, brings.nbytes)
        return values if mean is None else shared_copy(mean)

    def iweighted_mean(self, values: Tensor, weight: float) -> Request:
        if self.size == 1:
            return super().iweighted_mean(values, weight)
        brings, kind = _weighted(values, weight), Kind.START_ALL_REDUCE

        def begin() -> Operation:
            return self._begin_meeting(kind, brings, _mean, lambda mean: mean, brings.nbytes)

        return self._begin(kind, begin, brings, lambda mean: values if mean is None else shared_copy(mean))

    def _iall_reduce(self, buffer: Tensor) -> Operation:
        return self._begin_meeting(Kind.START_ALL_REDUCE, buffer, total, buffer.copy_, buffer.nbytes)

    def _iall_gather(self, buffer: Tensor) -> Operation:
        import torch

        return self._begin_meeting(
            Kind.START_ALL_GATHER, buffer, torch.stack, lambda found: found.clone(), buffer.nbytes
        )

    def _iall_to_all(self, buffer: Tensor) -> Operation:
        import torch

        return self._begin_meeting(
            Kind.START_REDUCE_SCATTER,
            buffer,
            torch.stack,
            lambda rows: rows[:, self.rank].clone(),
            buffer.nbytes,
        )

    def _ibroadcast(self, buffer: Tensor, root: int) -> Operation:
        brings = buffer if self.rank == root else None
        return self._begin_meeting(
            Kind.START_BROADCAST,
            brings,
            lambda brought: brought[0].clone(),
            buffer.copy_,
            buffer.nbytes,
            root,
        )

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

    def _reduce_scatter(self, buffer: Tensor) -> Tensor:
        import torch

        rows: Tensor = self._meet(
            Kind.REDUCE_SCATTER, buffer.nbytes, buffer.view(self.size, -1), torch.stack
        )
        return rows[:, self.rank].sum(dim=0)

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

    def _isend(self, buffer: Tensor, to: int) -> Operation:
        self._check_peer(to)
        self._shared.post(Kind.SEND, self.rank, to, buffer.clone())
        timed, index = self.clock.counting, self._sends[to]
        self._sends[to] += timed
        self._exchange(Kind.SEND, Untimed.SEND, buffer.nbytes, to)
        return Paused(lambda: self._pause(Kind.SEND_WAIT, index, to)) if timed else Finished()

    def _check_peer(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise CommunicationError(f"there is no rank {rank}; the group has {self.size}")

    def _post(self, buffer: Tensor, source: int) -> Posted:
        """A receive, behind those that were posted before. Once a pause has ended, its message is there."""
        self._check_peer(source)
        messages = self._posted[source]
        return Posted(messages, buffer, lambda: self._shared.read(Kind.SEND, source, self.rank), lambda: 0)

    def _irecv(self, buffer: Tensor, source: int) -> Operation:
        posted = self._post(buffer, source)
        if not self.clock.counting:
            return Paused(lambda: self._pause(Untimed.RECEIVE, 0, source), posted.finish)
        pause, done = self._note_start(Kind.START_RECEIVE, buffer.nbytes, source)
        return Paused(pause, posted.finish, done)

    def _recv(self, buffer: Tensor, source: int) -> None:
        posted = self._post(buffer, source)
        self._exchange(Kind.RECEIVE, Untimed.RECEIVE, buffer.nbytes, source)
        posted.finish()

    def _split(self, groups: list[list[int]], number: int) -> VirtualCommunicator:
        ranks = tuple(self.run_ranks[rank] for rank in groups[number])
        subgroup = self._shared.subgroup(ranks, self._splits)
        self._splits += 1
        return type(self)(groups[number].index(self.rank), self.clock, subgroup)


def _weighted(values: Tensor, weight: float) -> Tensor:
    """What a rank brings to a weighted mean."""
    import torch

    if weight or not values.isfinite().all():  # 0 · inf is no zero
        return torch.cat([values * weight, values.new_tensor([weight])])
    return values.new_zeros(1).expand(len(values) + 1)  # zeros of many absent ranks take no memory


def _mean(brought: list[Tensor]) -> Tensor | None:
    """The mean of vectors that are multiplied by their weights, which follow them; None without weights."""
    sums = total(brought)
    return sums[:-1] / sums[-1] if sums[-1] > 0 else None
