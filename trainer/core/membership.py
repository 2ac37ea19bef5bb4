"""Membership: which ranks of a run with `on_loss: continue` are alive. Imports no torch.

Whoever starts the ranks (the local runtime; in containers the coordinator, through its agents) follows
their events, and writes who is alive to a file. It alone decides which ranks form a group: every change of
the group is a view with a number. `comm.views` is the ranks' part.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainer.core.events import Event
from trainer.core.record import Rank, Record, Text, checked, parse_object
from trainer.core.regular_files import read_below

State = Literal["member", "waiting", "finished", "lost"]


class Member(Record):
    """A rank of the run.

    Attributes:
        incarnation: how often the rank was started again.
        state: member: in the group. waiting: started again, ready to join the group. finished: it needs the
            group no more, nor the group it. lost: not alive, or not ready yet.
        joined: the newest incarnation that is or was a member.
        address: the address of its container; empty for a local process.
    """

    rank: Rank
    incarnation: int = Field(ge=0)
    state: State = "member"
    joined: int = Field(default=0, ge=0)
    address: Text = ""


class Membership(Record):
    """The state of all ranks.

    Attributes:
        generation: grows with every change.
        view: grows with every change of the group.
    """

    generation: int = Field(ge=0)
    view: int = Field(ge=0)
    ranks: list[Member]

    def incarnations(self, *states: State) -> dict[int, int]:
        """The incarnation of each rank that is in one of the states."""
        return {each.rank: each.incarnation for each in self.ranks if each.state in states}

    def waits(self, rank: int, incarnation: int) -> bool:
        """Whether this incarnation of a rank is ready to join."""
        return self.incarnations("waiting").get(rank) == incarnation

    def has_joined(self, rank: int, incarnation: int) -> bool:
        """Whether this incarnation of a rank is or was a member."""
        return any(each.rank == rank and each.joined == incarnation for each in self.ranks)

    def address_of(self, rank: int) -> str:
        """The address of a rank."""
        return next(each.address for each in self.ranks if each.rank == rank)

    def write(self, path: Path) -> None:
        """Replace the file at once, so that no reader sees a part of it."""
        draft = path.with_suffix(".new")
        draft.write_text(self.model_dump_json(), encoding="utf-8")
        os.replace(draft, path)

    @classmethod
    def read(cls, path: Path) -> Membership:
        """Raises OSError or ValueError."""
        return checked(cls, parse_object(read_below(path.parent, path.name), str(path)), str(path))


def is_return(event: Event, return_after: Mapping[int, float]) -> bool:
    """Whether a fault that has just fired kills a rank which is to be started again."""
    return event.fields["fault"] in return_after and not event.fields.get("earlier")


class MembershipTracker:
    """The membership of a run, from its events.

    A rank that dies while it trains is lost, and the others continue. Any other death ends the run. A rank
    that was started again joins the group once it waits for the others and all of them have consented: each
    consents between two epochs, when it has the results of all operations until then.
    """

    def __init__(
        self, addresses: Mapping[int, str], required: range, return_after: Mapping[int, float]
    ) -> None:
        """
        Args:
            addresses: the addresses of all ranks, by rank.
            required: ranks without which the others cannot continue.
            return_after: seconds after which a rank is started again that a fault of the spec has killed,
                by the number of the fault.
        """
        self._required, self._return_after = required, return_after
        self._ranks = {
            rank: Member(rank=rank, incarnation=0, address=address)
            for rank, address in sorted(addresses.items())
        }
        self._training: set[int] = set()
        self._failed: set[int] = set()
        self._consents: dict[tuple[int, int], set[int]] = {}  # by rank and incarnation that may join
        self._returns: dict[int, float] = {}  # by rank
        self._generation = self._view = 0
        self.lost: dict[int, int] = {}  # how often, by rank

    @property
    def current(self) -> Membership:
        """The membership now."""
        return Membership(generation=self._generation, view=self._view, ranks=[*self._ranks.values()])

    def add(self, event: Event) -> bool:
        """Add one event. Returns whether the membership has changed."""
        rank, before = event.rank, self._generation
        match event.kind:
            case "train_start":
                self._training.add(rank)
            case "fault" if is_return(event, self._return_after):
                self._returns[rank] = self._return_after[event.fields["fault"]]
            case "died" if rank not in self.absent and self.survives(rank):
                self._training.discard(rank)
                self.lost[rank] = self.lost.get(rank, 0) + 1
                self._change(rank, state="lost")
            case "waiting" if rank in self.absent and event.fields["incarnation"] == self.lost[rank]:
                self._change(rank, state="waiting", incarnation=self.lost[rank])
            case "consent":
                joining = event.fields["returned"], event.fields["incarnation"]
                if joining in self._in("waiting").items():
                    self._consents.setdefault(joining, set()).add(rank)
            case "done" if rank in self._in("member"):
                self._training.discard(rank)
                self._change(rank, state="finished")
            case "failed" | "terminated":
                self._training.discard(rank)
                self._failed.add(rank)
        self._admit()
        return self._generation > before

    def _change(self, rank: int, **fields: object) -> None:
        before = self._ranks[rank]
        self._ranks[rank] = after = before.model_copy(update=fields)
        self._generation += 1
        self._view += "member" in (before.state, after.state)

    def _admit(self) -> None:
        """Let ranks join for which all members have consented."""
        for rank, incarnation in self._in("waiting").items():
            members = self._in("member").keys()
            if members and members <= self._consents.get((rank, incarnation), set()):
                self._change(rank, state="member", joined=incarnation)

    def _in(self, state: State) -> dict[int, int]:
        """The incarnations of the ranks in this state."""
        return {rank: each.incarnation for rank, each in self._ranks.items() if each.state == state}

    @property
    def over(self) -> bool:
        """Whether all ranks that train have finished."""
        return bool(self._in("finished")) and not self._training

    @property
    def without_work(self) -> set[int]:
        """The ranks that are lost, and those that wait for the others to let them join."""
        return self._ranks.keys() - self._training - self._in("finished").keys()

    @property
    def absent(self) -> set[int]:
        """The ranks that are lost and do not wait to join."""
        return {*self._in("lost")}

    def returns_after(self, rank: int) -> float | None:
        """Seconds after which a rank that is lost is to be started again; None: never. Asked once."""
        return self._returns.pop(rank, None)

    def survives(self, rank: int) -> bool:
        """Whether the others continue if this rank dies now."""
        others = self._in("member").keys() - self._failed - {rank, *self._required}
        works = rank in self._training or rank in self._in("waiting") or self._ranks[rank].joined > 0
        return works and rank not in {*self._required, *self.absent} and bool(others)
