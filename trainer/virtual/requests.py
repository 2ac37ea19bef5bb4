"""Requests between virtual nodes: the simulation says when each arrives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer.comm.requests import Request, Requests
from trainer.core.trace import Kind
from trainer.virtual.simulation import VirtualSimulation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class UnderWay:
    """What ranks have asked, and what servers have answered, by the rank that asked."""

    asked: dict[int, Tensor | None] = field(default_factory=dict)
    answers: dict[int, Tensor | int] = field(default_factory=dict)


class VirtualRequests(Requests):
    """The channel of a virtual rank."""

    def __init__(
        self,
        rank: int,
        simulation: VirtualSimulation,
        shared: UnderWay,
        pause: Callable[[Kind, int, int], None],
    ) -> None:
        """
        Args:
            rank: the rank in the run.
            pause: waits until the simulation has ended an exchange, see VirtualCommunicator.
        """
        self._rank, self._simulation, self._shared, self._pause = rank, simulation, shared, pause

    def ask(self, server: int, payload: Tensor | None, doing: str) -> tuple[Tensor | int, float]:
        self._shared.asked[self._rank] = payload
        self._pause(Kind.REQUEST, 0 if payload is None else payload.nbytes, server)
        return self._shared.answers.pop(self._rank), self._simulation.in_server_s(self._rank)

    def take(self, timeout_s: float) -> Request:
        self._pause(Kind.TAKE, 0, -1)
        rank = self._simulation.taken_by(self._rank)
        return Request(rank, self._shared.asked.pop(rank))

    def answer(self, request: Request, value: Tensor | int) -> None:
        self._shared.answers[request.rank] = value
        self._pause(Kind.RESPOND, 0 if isinstance(value, int) else value.nbytes, request.rank)
