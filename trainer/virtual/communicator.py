"""The transport of virtual nodes: data moves in memory, and the simulation says how long that takes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from trainer.comm.base import CommunicationError, Communicator
from trainer.comm.memory import total
from trainer.comm.requests import Requests
from trainer.core.clock import Clock
from trainer.core.trace import Kind
from trainer.time_model.program import Group
from trainer.virtual.requests import UnderWay, VirtualRequests
from trainer.virtual.simulation import Untimed, VirtualSimulation

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.core.context import NodeContext


def nothing(_: Sequence[Tensor]) -> None:
    """What comes out of a collective that moves no data."""


class Call(NamedTuple):
    """How a rank calls a collective. nbytes, peer: see Kind."""

    kind: Kind
    nbytes: int
    peer: int

    def __str__(self) -> str:
        return self.kind.name.lower() + (f" of {self.nbytes} bytes" if self.nbytes else "")


@dataclass
class Meeting:
    """A collective: how the first rank called it, what each has brought, and what comes out of that."""

    call: Call
    brought: list[Tensor | None]
    outcome: Any = None
    present: int = 0


@dataclass
class VirtualGroup:
    """What the communicators of a group share.

    Attributes:
        group: the group in the simulation.
        meetings: collectives that not all ranks have left, by their number.
        mailboxes: messages under way, by sender and receiver.
        subgroups: groups that were split off, by their ranks and the number of the split.
        requests: requests to servers.
    """

    simulation: VirtualSimulation
    group: Group
    meetings: dict[int, Meeting] = field(default_factory=dict)
    mailboxes: dict[tuple[int, int], deque[Tensor]] = field(default_factory=dict)
    subgroups: dict[tuple[tuple[int, ...], int], VirtualGroup] = field(default_factory=dict)
    requests: UnderWay = field(default_factory=UnderWay)

    @classmethod
    def of(cls, simulation: VirtualSimulation, ranks: Sequence[int]) -> VirtualGroup:
        """A new group of these ranks of the run."""
        return cls(simulation, simulation.join(ranks))

    def mailbox(self, source: int, to: int) -> deque[Tensor]:
        return self.mailboxes.setdefault((source, to), deque())


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
        charged = [rank.clock.charged_s for rank in self._shared.simulation.ranks]
        if not any(cost is None or cost > 0 for cost in charged):
            raise CommunicationError(
                "virtual.seconds_per_sample and virtual.compute: sampled are for strategies that compute "
                "gradients with replica.backward, and this one does not; leave them out"
            )

    def abort(self) -> None:
        self._shared.simulation.failed = True

    def waits_s(self) -> list[float] | None:
        # The simulation does not know of exchanges before a checkpoint, but the traffic does.
        return None if self.node.clock.resumed else self._shared.simulation.waits_s(self.rank)

    def requests(self, timeout_s: float) -> Requests:
        if self.size < len(self._shared.simulation.ranks):
            raise CommunicationError("a group has no requests of its own; use those of all ranks")
        return VirtualRequests(self.rank, self._shared.simulation, self._shared.requests, self._pause)

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
        brings: Tensor | None,
        come_to: Callable[[list[Tensor]], Any],
        peer: int = -1,
    ) -> Any:
        """A collective.

        Args:
            nbytes, peer: see Kind.
            brings: what this rank brings; None: nothing.
            come_to: the outcome, from what the ranks bring, in their order. The last to enter calls it.

        Returns:
            The outcome, which all ranks share.
        """
        number = self._collectives
        self._collectives += 1
        meetings = self._shared.meetings
        call = Call(kind, nbytes, peer)
        if (meeting := meetings.get(number)) is None:
            meeting = meetings[number] = Meeting(call, [None] * self.size)
        if call != meeting.call:
            raise CommunicationError(
                f"rank {self.run_ranks[self.rank]} calls {call}, where others call {meeting.call}"
            )
        meeting.brought[self.rank] = brings
        meeting.present += 1
        if meeting.present == self.size:
            meeting.outcome = come_to([each for each in meeting.brought if each is not None])
            meeting.brought.clear()
        self._exchange(kind, Untimed.COLLECTIVE, nbytes, peer)
        meeting.present -= 1
        if not meeting.present:
            del meetings[number]
        return meeting.outcome

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

        gathered: Tensor = self._meet(Kind.GATHER, buffer.nbytes, buffer, torch.stack, root)
        return gathered if self.rank == root else None

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        brings = buffer if self.rank == root else None
        sent = self._meet(Kind.BROADCAST, buffer.nbytes, brings, lambda brought: brought[0].clone(), root)
        buffer.copy_(sent)

    def _barrier(self) -> None:
        self._meet(Kind.BARRIER, 0, None, nothing)

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        self._shared.mailbox(self.rank, to).append(buffer.clone())
        self._meet(Kind.SHIFT, buffer.nbytes, None, nothing, (to - self.rank) % self.size)
        return self._shared.mailbox(source, self.rank).popleft()

    def _isend(self, buffer: Tensor, to: int) -> Callable[[], None]:
        self._check_peer(to)
        self._shared.mailbox(self.rank, to).append(buffer.clone())
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
        buffer.copy_(self._shared.mailbox(source, self.rank).popleft())

    def _split(self, groups: list[list[int]], number: int) -> VirtualCommunicator:
        ranks = tuple(self.run_ranks[rank] for rank in groups[number])
        key = (ranks, self._splits)
        self._splits += 1
        subgroups = self._shared.subgroups
        if key not in subgroups:
            subgroups[key] = VirtualGroup.of(self._shared.simulation, ranks)
        return type(self)(groups[number].index(self.rank), self.clock, subgroups[key])
