"""A simulation in several worker processes, each of which runs a share of the ranks.

Every process simulates all ranks, from the same programs. It runs its own ranks and receives the programs
of the others, with the data that they exchange. While the simulation waits for the program of another
process's rank, own ranks run whose exchanges have ended. So all processes compute at the same time, and
the order of their turns changes no program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.comm.errors import CommunicationError
from trainer.core.trace import Kind
from trainer.time_model.cluster import Cluster
from trainer.time_model.errors import ReplayError
from trainer.time_model.program import Entry
from trainer.virtual.group import Call, Meeting, VirtualGroup
from trainer.virtual.simulation import VirtualSimulation
from trainer.virtual.turns import VirtualRank
from trainer.virtual.workers import Share, has_ended

PEER_FAILED = "another virtual rank failed"
Value = npt.NDArray[Any] | int | None


class RemoteRank(VirtualRank):
    """A rank that another process runs."""

    def resume(self, now_s: float) -> list[Entry]:
        """The failure of the run: the other process ends the rank."""
        self.ended = True
        return []


class Turn(NamedTuple):
    """What a rank has done: its program, and whether it has ended."""

    rank: int
    program: list[Entry]
    ended: bool


class Failure(NamedTuple):
    """A process has failed."""

    cause: str


class Brought(NamedTuple):
    """What a rank brings to a collective."""

    number: int
    rank: int
    call: Call
    value: Value


class Posted(NamedTuple):
    """A message from one rank to another."""

    kind: Kind
    source: int
    to: int
    value: Value


class WorkerSimulation(VirtualSimulation):
    """The simulation in one of several processes."""

    def __init__(
        self, ranks: Sequence[VirtualRank], cluster: Cluster, transport: str, share: Share
    ) -> None:
        super().__init__(ranks, cluster, transport)
        self._share, self._cause = share, PEER_FAILED
        self.group = WorkerGroup(self, self.join(range(len(ranks))), share=share)
        self._turns = [deque[list[Entry]]() for _ in ranks]  # programs that the simulation has yet to play
        self._due = dict.fromkeys(share.ranks, 0.0)  # own ranks that may continue, and from when on

    def _free(self, rank: int, now: float) -> None:
        super()._free(rank, now)
        if rank in self._share.ranks:
            self._due[rank] = now

    def _continue(self, rank: int, now: float) -> bool:
        turns = self._turns[rank]
        if not turns and self.ranks[rank].ended:
            return False
        while not turns and not self.failed:
            self._work_towards(rank, now)
        if self.failed:
            self._fail(self._cause)
            return False
        program = self._programs[rank] = turns.popleft()
        self._at[rank] = 0
        return bool(program)

    def _work_towards(self, rank: int, now: float) -> None:
        """Run a rank; if another process has it, run an own one meanwhile, or wait for a message."""
        owner = self._share.owner(rank)
        if owner == self._share.number:
            self._run(rank, now)
        elif self._due:
            self._run(*next(iter(self._due.items())))
        elif self._share.has_ended(owner):
            raise ReplayError(has_ended(owner))
        else:
            self._share.poll(self._take, wait=True)

    def _run(self, rank: int, now: float) -> None:
        self._due.pop(rank, None)
        node = self.ranks[rank]
        turn = Turn(rank, node.resume(now), node.ended)
        if not self.failed:  # else the others hear of the failure first, which explains this turn
            self._turns[rank].append(turn.program)
            self._share.tell(turn)
            self._share.poll(self._take, wait=False)

    def _take(self, news: Turn | Failure, gifts: list[Brought | Posted]) -> None:
        if isinstance(news, Failure):
            self.failed, self._cause = True, news.cause
            return
        try:
            for gift in gifts:
                self.group.take(gift)
        except CommunicationError as error:
            raise ReplayError(str(error)) from None
        self._turns[news.rank].append(news.program)
        self.ranks[news.rank].ended = news.ended

    def _fail(self, why: str) -> None:
        self._share.tell(Failure(why))
        super()._fail(why)


@dataclass
class WorkerGroup(VirtualGroup):
    """The group of all ranks, which several processes run."""

    share: Share = field(kw_only=True)

    def __post_init__(self) -> None:
        self.present = len(self.share.ranks)

    def subgroup(self, ranks: tuple[int, ...], number: int) -> VirtualGroup:
        raise CommunicationError("virtual nodes split no communicator with virtual.workers; leave it out")

    def runs(self, rank: int) -> bool:
        return rank in self.share.ranks

    def bring(self, number: int, rank: int, call: Call, brings: Tensor | None) -> Meeting:
        meeting = super().bring(number, rank, call, brings)
        if brings is not None:
            to = self.share.owner(call.peer) if call.kind is Kind.GATHER else None
            self.share.give(Brought(number, rank, call, _sent(brings)), to)
        return meeting

    def post(self, kind: Kind, source: int, to: int, value: Tensor | int | None) -> None:
        if self.runs(to):
            super().post(kind, source, to, value)
        else:
            self.share.give(Posted(kind, source, to, _sent(value)), self.share.owner(to))

    def take(self, gift: Brought | Posted) -> None:
        """Take what a rank of another process gives those of this one. Raises CommunicationError."""
        value = _received(gift.value)
        if isinstance(gift, Posted):
            super().post(gift.kind, gift.source, gift.to, value)
        else:
            assert isinstance(value, Tensor)  # noqa: S101  (for the type checker)
            super().bring(gift.number, gift.rank, gift.call, value)


def _sent(value: Tensor | int | None) -> Value:
    return value.detach().numpy() if isinstance(value, Tensor) else value


def _received(value: Value) -> Tensor | int | None:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
