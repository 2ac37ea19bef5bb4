"""What virtual ranks of a group exchange: collectives and messages under way."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.comm.errors import CommunicationError
from trainer.core.trace import Kind
from trainer.time_model.program import Group
from trainer.virtual.simulation import VirtualSimulation

if TYPE_CHECKING:
    from torch import Tensor


class Call(NamedTuple):
    """How a rank calls a collective. nbytes, peer: see Kind."""

    kind: Kind
    nbytes: int
    peer: int

    def __str__(self) -> str:
        return self.kind.name.lower() + (f" of {self.nbytes} bytes" if self.nbytes else "")


@dataclass
class Meeting:
    """A collective: how the first rank called it, what each has brought, and what comes out of that.

    Attributes:
        brought: what ranks have brought, by their numbers, until there is an outcome.
        left: how many ranks have left it.
    """

    call: Call
    brought: dict[int, Tensor]
    outcome: Any = None
    left: int = 0


@dataclass
class VirtualGroup:
    """What the communicators of a group share.

    Attributes:
        group: the group in the simulation.
        meetings: collectives that not all ranks have left, by their number.
        messages: those under way, by kind, sender and receiver.
        subgroups: groups that were split off, by their ranks and the number of the split.
        present: how many of its ranks this process runs.
    """

    simulation: VirtualSimulation
    group: Group
    meetings: dict[int, Meeting] = field(default_factory=dict)
    messages: defaultdict[tuple[Kind, int, int], deque[Any]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    subgroups: dict[tuple[tuple[int, ...], int], VirtualGroup] = field(default_factory=dict)
    present: int = field(init=False)

    def __post_init__(self) -> None:
        self.present = len(self.group.ranks)

    @classmethod
    def of(cls, simulation: VirtualSimulation, ranks: Sequence[int]) -> VirtualGroup:
        """A new group of these ranks of the run."""
        return cls(simulation, simulation.join(ranks))

    def subgroup(self, ranks: tuple[int, ...], number: int) -> VirtualGroup:
        """The group of these ranks of the run, the same for all of them. number: that of the split."""
        if (ranks, number) not in self.subgroups:
            self.subgroups[ranks, number] = VirtualGroup.of(self.simulation, ranks)
        return self.subgroups[ranks, number]

    def runs(self, rank: int) -> bool:
        """Whether this process runs a rank."""
        return True

    def bring(self, number: int, rank: int, call: Call, brings: Tensor | None) -> Meeting:
        """Let a rank enter a collective. Raises CommunicationError if others call a different one."""
        if (meeting := self.meetings.get(number)) is None:
            meeting = self.meetings[number] = Meeting(call, {})
        if call != meeting.call:
            raise CommunicationError(
                f"rank {self.group.ranks[rank]} calls {call}, where others call {meeting.call}"
            )
        if brings is not None:
            meeting.brought[rank] = brings
        return meeting

    def leave(self, number: int) -> None:
        """Let a rank leave a collective."""
        meeting = self.meetings[number]
        meeting.left += 1
        if meeting.left == self.present:
            del self.meetings[number]

    def post(self, kind: Kind, source: int, to: int, value: Tensor | int | None) -> None:
        """Send a message from one rank to another. kind: of the exchange."""
        self.messages[kind, source, to].append(value)

    def read(self, kind: Kind, source: int, to: int) -> Any:
        """The next message from one rank to another."""
        return self.messages[kind, source, to].popleft()
