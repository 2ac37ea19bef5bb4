"""Requests to a server that takes them in the order of arrival: a channel beside a Communicator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Request:
    """What a rank asks for. payload: a tensor of shape (n,), or None. rank: its rank in the run."""

    rank: int
    payload: Tensor | None

    @property
    def nbytes(self) -> int:
        """Payload bytes."""
        return 0 if self.payload is None else self.payload.nbytes


class Requests(ABC):
    """One rank's end of the channel. Methods raise CommunicationError."""

    @abstractmethod
    def ask(self, server: int, payload: Tensor | None, doing: str) -> tuple[Tensor | int, float]:
        """Ask a server, and wait for its answer.

        Args:
            doing: what errors say that failed: "pulling weights from".

        Returns:
            The answer, and the seconds that the request spent in the server.
        """

    @abstractmethod
    def take(self, timeout_s: float) -> Request | None:
        """The next request to this rank; None if none has arrived within the time."""

    @abstractmethod
    def answer(self, request: Request, value: Tensor | int) -> None:
        """Answer a request that this rank has taken. Does not block."""

    def check(self, ranks: Iterable[int]) -> None:  # noqa: B027  (where no rank can be lost alone)
        """Raise CommunicationError if one of the ranks has ended, or has not answered for long."""
