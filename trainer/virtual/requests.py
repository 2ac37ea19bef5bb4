"""Requests between virtual nodes: the simulation says when each arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer.comm.requests import Request, Requests
from trainer.core.trace import Kind

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.virtual.group import VirtualGroup


class VirtualRequests(Requests):
    """The channel of a virtual rank."""

    def __init__(self, rank: int, shared: VirtualGroup, pause: Callable[[Kind, int, int], None]) -> None:
        """
        Args:
            rank: the rank in the run.
            pause: waits until the simulation has ended an exchange, see VirtualCommunicator.
        """
        self._rank, self._shared, self._pause = rank, shared, pause

    def ask(self, server: int, payload: Tensor | None, doing: str) -> tuple[Tensor | int, float]:
        self._shared.post(Kind.REQUEST, self._rank, server, payload)
        self._pause(Kind.REQUEST, 0 if payload is None else payload.nbytes, server)
        answer = self._shared.read(Kind.RESPOND, server, self._rank)
        return answer, self._shared.simulation.in_server_s(self._rank)

    def take(self, timeout_s: float) -> Request:
        self._pause(Kind.TAKE, 0, -1)
        rank = self._shared.simulation.taken_by(self._rank)
        return Request(rank, self._shared.read(Kind.REQUEST, rank, self._rank))

    def answer(self, request: Request, value: Tensor | int) -> None:
        self._shared.post(Kind.RESPOND, self._rank, request.rank, value)
        self._pause(Kind.RESPOND, 0 if isinstance(value, int) else value.nbytes, request.rank)
