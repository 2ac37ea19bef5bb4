"""A communicator that compares the exchanges of all ranks before each one, for runs with `debug`."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ValidationError

from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError, ExchangeError
from trainer.comm.nonblocking import Operation, Posted
from trainer.core.clock import Clock
from trainer.core.position import Position
from trainer.launch.position import position_of

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.requests import Requests
    from trainer.core.context import NodeContext

HEADER_BYTES = 4096  # more than a position needs in JSON
POISON = float("nan")  # in a buffer that must not be read


class Both(Operation):
    """A header and a message on their way. The header's memory must stay alive."""

    def __init__(self, header: Tensor, *sent: Operation) -> None:
        self._header, self._sent = header, sent

    def finish(self) -> None:
        for each in self._sent:
            each.finish()

    def done(self) -> bool:
        return all(each.done() for each in self._sent)


class Queued(Operation):
    """A collective that was started: it runs when this rank waits, or enters another exchange.

    The gloo library ends the process if ranks bring buffers of different sizes, so the ranks compare what
    they have started before any buffer moves.
    """

    def __init__(
        self,
        comm: CheckedCommunicator,
        position: Position,
        headers: Operation,
        buffer: Tensor,
        run: Callable[[Tensor], Any],
        in_place: bool,
    ) -> None:
        """
        Args:
            headers: The headers of all ranks, on their way.
            run: The blocking exchange of a buffer.
            in_place: Whether it changes the buffer, which must not be read then before the end either.
        """
        self._comm, self._position, self._headers = comm, position, headers
        self._buffer, self._run, self._in_place = buffer, run, in_place
        self._brought = buffer.clone()
        if in_place:
            buffer.fill_(POISON)
        self._expected = buffer.clone() if in_place else self._brought
        self._outcome: Any = None

    def finish(self) -> Any:
        self._comm.run_queued(until=self)
        return self._outcome

    def done(self) -> bool:
        return self not in self._comm.queued

    @property
    def ready(self) -> bool:
        """Whether all ranks have started it."""
        return self._headers.done()

    def run(self) -> None:
        """Compare, and run. Raises ExchangeError."""
        self._comm.compare(self._headers.finish())
        if not _same_bits(self._buffer, self._expected):
            rank = self._comm.run_ranks[self._comm.rank]
            raise ExchangeError(
                f"rank {rank} changes the buffer of {self._position.text} before its `wait`"
            )
        self._outcome = self._run(self._brought)
        if self._in_place:
            self._outcome = self._buffer.copy_(self._brought)


class CheckedCommunicator(Communicator):
    """Passes every exchange on to another communicator, after its ranks have compared what they enter.

    Each rank describes its exchange in a header of fixed size. Before a collective the ranks gather all
    headers; a message follows the header of its sender. Headers count neither as bytes nor as exchanges.
    A collective that is started runs later, all at once: nothing overlaps.
    """

    topology: ClassVar[str] = ""

    def __init__(self, inner: Communicator, code: Path | None = None) -> None:
        """code: the directory of users' code, see `position_of`."""
        super().__init__(inner.rank, inner.size, inner.clock)
        self._inner, self._code, self.device = inner, code, inner.device
        # Ranks compare what they start in the order of the starts, and run it later.
        self._later = inner._split([[*range(inner.size)]], 0) if inner.size > 1 else inner
        self.queued: deque[Queued] = deque()
        self._posted: defaultdict[int, deque[Posted]] = defaultdict(deque)

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

    def _reduce_scatter(self, buffer: Tensor) -> Tensor:
        self._compare()
        return self._inner._reduce_scatter(buffer)

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        self._compare()
        self._inner._broadcast(buffer, root)

    def _barrier(self) -> None:
        self._compare()
        self._inner._barrier()

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        self._compare()
        return self._inner._shift(buffer, to, source)

    def _iall_reduce(self, buffer: Tensor) -> Operation:
        return self._queue(buffer, self._later._all_reduce, in_place=True)

    def _iall_gather(self, buffer: Tensor) -> Operation:
        return self._queue(buffer, self._later._all_gather)

    def _iall_to_all(self, buffer: Tensor) -> Operation:
        return self._queue(buffer, self._later._all_to_all)

    def _ibroadcast(self, buffer: Tensor, root: int) -> Operation:
        return self._queue(buffer, lambda brought: self._later._broadcast(brought, root), in_place=True)

    def _queue(self, buffer: Tensor, run: Callable[[Tensor], Any], in_place: bool = False) -> Operation:
        position = self._position()
        headers = self._inner._iall_gather(self._header(position))
        queued = Queued(self, position, headers, buffer, run, in_place)
        self.queued.append(queued)
        return queued

    def run_queued(self, until: Queued | None = None) -> None:
        """Run what was started, in order, up to one of them; None: all."""
        while self.queued if until is None else until in self.queued:
            self.queued.popleft().run()

    def _run_ready(self) -> None:
        """Run what all ranks have started, before a message, which they may enter at different times."""
        while self.queued and self.queued[0].ready:
            self.queued.popleft().run()

    def _isend(self, buffer: Tensor, to: int) -> Operation:
        self._run_ready()
        header = self._header(self._position())
        return Both(header, self._inner._isend(header, to), self._inner._isend(buffer, to))

    def _irecv(self, buffer: Tensor, source: int) -> Operation:
        self._run_ready()
        own = self._position()

        def take() -> Tensor:
            header, received = self._header(own), buffer.new_empty(buffer.shape)
            self._inner._recv(header, source)
            self._check({self.rank: own, source: self._read(header, source)})
            self._inner._recv(received, source)
            return received

        return Posted(self._posted[source], buffer, take, lambda: 0)

    def _split(self, groups: list[list[int]], number: int) -> Communicator:
        return CheckedCommunicator(self._inner._split(groups, number), self._code)

    def _position(self) -> Position:
        """Where this rank is; it is in an exchange."""
        found = position_of(sys._getframe(1), self._code)
        if found is None or found.exchange is None:
            raise RuntimeError("called outside of an exchange")
        return found

    def _compare(self) -> None:
        """Raise ExchangeError unless all ranks have entered the same exchange."""
        self.run_queued()
        self.compare(self._inner._all_gather(self._header(self._position())))

    def compare(self, headers: Tensor) -> None:
        """Raise ExchangeError unless the headers of all ranks name the same exchange."""
        self._check({rank: self._read(header, rank) for rank, header in enumerate(headers)})

    def _check(self, positions: Mapping[int, Position]) -> None:
        (first, one), *others = sorted(positions.items())
        for rank, other in others:
            if one.exchange and other.exchange and not one.exchange.agrees(other.exchange):
                ranks = self.run_ranks[first], self.run_ranks[rank]
                raise ExchangeError(
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


def _same_bits(one: Tensor, other: Tensor) -> bool:
    import torch

    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
