"""A communicator that compares the exchanges of all ranks before each one, for runs with `debug`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import ValidationError

from trainer.comm.base import CommunicationError, Communicator
from trainer.core.clock import Clock
from trainer.core.position import Position
from trainer.launch.position import position_of

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.requests import Requests
    from trainer.core.context import NodeContext

HEADER_BYTES = 4096  # more than a position needs in JSON


class MismatchError(Exception):
    """Two ranks have entered different exchanges. The message names both, with file and line."""


class CheckedCommunicator(Communicator):
    """Passes every exchange on to another communicator, after its ranks have compared what they enter.

    Each rank describes its exchange in a header of fixed size. Before a collective the ranks gather all
    headers; a message follows the header of its sender. Headers count neither as bytes nor as exchanges.
    """

    topology: ClassVar[str] = ""

    def __init__(self, inner: Communicator) -> None:
        super().__init__(inner.rank, inner.size, inner.clock)
        self._inner, self.device = inner, inner.device

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> Communicator:
        raise NotImplementedError("it is built on a communicator that is connected")

    def requests(self, timeout_s: float) -> Requests:
        """Requests are not compared: a server takes them in any order."""
        return self._inner.requests(timeout_s)

    def _all_reduce(self, buffer: Tensor) -> None:
        self._compare()
        self._inner._all_reduce(buffer)

    def _all_gather(self, buffer: Tensor) -> Tensor:
        self._compare()
        return self._inner._all_gather(buffer)

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        self._compare()
        return self._inner._all_to_all(buffer)

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        self._compare()
        self._inner._broadcast(buffer, root)

    def _barrier(self) -> None:
        self._compare()
        self._inner._barrier()

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        self._compare()
        return self._inner._shift(buffer, to, source)

    def _send(self, buffer: Tensor, to: int) -> None:
        self._isend(buffer, to)()

    def _isend(self, buffer: Tensor, to: int) -> Callable[[], None]:
        header = self._header(self._position())
        # With the tensors, whose memory the transport reads until they are sent.
        sent = [(self._inner._isend(each, to), each) for each in (header, buffer)]

        def finish() -> None:
            for wait, _ in sent:
                wait()

        return finish

    def _recv(self, buffer: Tensor, source: int) -> None:
        header = self._header(own := self._position())
        self._inner._recv(header, source)
        self._check({self.rank: own, source: self._read(header, source)})
        self._inner._recv(buffer, source)

    def _split(self, groups: list[list[int]], number: int) -> Communicator:
        return CheckedCommunicator(self._inner._split(groups, number))

    def close(self) -> None:
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()

    def _position(self) -> Position:
        """Where this rank is; it is in an exchange."""
        found = position_of(sys._getframe(1))
        if found is None or found.exchange is None:
            raise RuntimeError("called outside of an exchange")
        return found

    def _compare(self) -> None:
        """Raise MismatchError unless all ranks have entered the same exchange."""
        headers = self._inner._all_gather(self._header(self._position()))
        self._check({rank: self._read(header, rank) for rank, header in enumerate(headers)})

    def _check(self, positions: Mapping[int, Position]) -> None:
        (first, one), *others = sorted(positions.items())
        for rank, other in others:
            if one.exchange and other.exchange and not one.exchange.agrees(other.exchange):
                ranks = self.run_ranks[first], self.run_ranks[rank]
                raise MismatchError(
                    f"rank {ranks[0]} calls {one.text} while rank {ranks[1]} calls {other.text}"
                )

    def _header(self, position: Position) -> Tensor:
        """The position as bits of float32, which all transports carry."""
        import torch

        text = position.model_dump_json(exclude={"waited_s"}).encode().ljust(HEADER_BYTES)
        return torch.frombuffer(bytearray(text), dtype=torch.float32).to(self.device)

    def _read(self, header: Tensor, rank: int) -> Position:
        try:
            return Position.model_validate_json(header.cpu().numpy().tobytes())
        except ValidationError:
            raise CommunicationError(f"rank {self.run_ranks[rank]} sends no description first") from None
