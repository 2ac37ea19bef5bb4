"""Membership: which ranks of a run with `on_loss: continue` are alive. Imports no torch.

Whoever starts the ranks (the local runtime; in containers the coordinator, through its agents) follows
their events, and writes who is alive to a file. Ranks read it when an exchange fails and before an epoch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from trainer.core.events import Event
from trainer.core.record import Rank, Record, Text, checked, parse_object


class Member(Record):
    """A rank that is alive.

    Attributes:
        incarnation: how often the rank was started again.
        address: of its container; empty for a local process.
    """

    rank: Rank
    incarnation: int = Field(ge=0)
    address: Text = ""


class Membership(Record):
    """The ranks that are alive, by rank. generation: grows with every change."""

    generation: int = Field(ge=0)
    members: list[Member]

    @property
    def incarnations(self) -> dict[int, int]:
        """The incarnation of each rank that is alive."""
        return {member.rank: member.incarnation for member in self.members}

    def address_of(self, rank: int) -> str:
        """The address of a rank that is alive."""
        return next(member.address for member in self.members if member.rank == rank)

    def write(self, path: Path) -> None:
        """Replace the file at once, so that no reader sees a part of it."""
        draft = path.with_suffix(".new")
        draft.write_text(self.model_dump_json(), encoding="utf-8")
        os.replace(draft, path)

    @classmethod
    def read(cls, path: Path) -> Membership:
        """Raises OSError or ValueError."""
        return checked(cls, parse_object(path.read_text(encoding="utf-8"), str(path)), str(path))


def is_return(event: Event, return_after: Mapping[int, float]) -> bool:
    """Whether a fault that has just fired kills a rank which is to be started again."""
    return event.fields["fault"] in return_after and not event.fields.get("earlier")


class MembershipTracker:
    """The membership of a run, from its events.

    A rank that dies while it trains is lost, and the others continue. Any other death ends the run. A rank
    that was started again is absent until it waits for the others, so that they need not wait for it.
    """

    def __init__(
        self, addresses: Mapping[int, str], required: range, return_after: Mapping[int, float]
    ) -> None:
        """
        Args:
            addresses: of all ranks.
            required: ranks without which the others cannot continue.
            return_after: seconds after which a rank is started again that a fault of the spec has killed,
                by the number of the fault.
        """
        self._addresses, self._required, self._return_after = dict(addresses), required, return_after
        self._incarnations = dict.fromkeys(sorted(addresses), 0)
        self._training: set[int] = set()
        self._done: set[int] = set()
        self._returns: dict[int, float] = {}  # by rank
        self._generation = 0
        self.lost: dict[int, int] = {}  # how often, by rank

    @property
    def current(self) -> Membership:
        """The ranks that are alive now."""
        members = [
            Member(rank=rank, incarnation=incarnation, address=self._addresses[rank])
            for rank, incarnation in sorted(self._incarnations.items())
        ]
        return Membership(generation=self._generation, members=members)

    def add(self, event: Event) -> bool:
        """Add one event. Returns whether the membership has changed."""
        rank = event.rank
        match event.kind:
            case "train_start":
                self._training.add(rank)
            case "fault" if is_return(event, self._return_after):
                self._returns[rank] = self._return_after[event.fields["fault"]]
            case "died" if rank in self._incarnations and self.survives(rank):
                del self._incarnations[rank]
                self._training.discard(rank)
                self.lost[rank] = self.lost.get(rank, 0) + 1
                self._generation += 1
                return True
            case "waiting" if rank in self.absent and event.fields["incarnation"] == self.lost[rank]:
                self._incarnations[rank] = self.lost[rank]
                self._generation += 1
                return True
            case "done":
                self._training.discard(rank)
                self._done.add(rank)
            case "failed" | "terminated":
                self._training.discard(rank)
        return False

    @property
    def over(self) -> bool:
        """Whether all ranks that train have finished."""
        return bool(self._done) and not self._training

    @property
    def without_work(self) -> set[int]:
        """The ranks that are lost, and those that wait for the others to let them join."""
        return self._addresses.keys() - self._training - self._done

    @property
    def absent(self) -> set[int]:
        """The ranks that are lost and do not wait to join."""
        return self._addresses.keys() - self._incarnations.keys()

    def returns_after(self, rank: int) -> float | None:
        """Seconds after which a rank that is lost is to be started again; None: never. Asked once."""
        return self._returns.pop(rank, None)

    def survives(self, rank: int) -> bool:
        """Whether the others continue if this rank dies now."""
        others = self._training - {rank, *self._required}
        works = rank in self._training or self._incarnations.get(rank, 0) > 0
        return works and rank not in self._required and bool(others)
