"""The Communicator: the few collectives that our own strategies are written on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

from trainer.comm.traffic import Traffic
from trainer.core.clock import Clock, Span

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.core.context import NodeContext

Op = Literal["sum", "mean"]


class CommunicationError(Exception):
    """The transport failed, most often because a peer is gone. The message says what it was doing."""


@contextmanager
def named(doing: str) -> Iterator[None]:
    """Turn torch's RuntimeError, a page of C++ frames, into one line that says what was going on."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise CommunicationError(f"{doing} failed: {reason}") from error


class Sending:
    """A send that has begun. The buffer must not change until `wait` has come back."""

    def __init__(
        self, comm: Communicator, buffer: Tensor, to: int, finish: Callable[[], None], number: int | None
    ) -> None:
        """finish: what waits for its end. number: of the sends to that rank; None if it is not counted."""
        self._comm, self._to, self._finish, self._number = comm, to, finish, number
        self._buffer = buffer  # lives as long as a transport reads it

    def wait(self) -> None:
        """Return when the buffer may be changed again. Raises CommunicationError."""
        with self._comm.clock.phase("communicate") as span:
            self._finish()
        if span.counted and self._number is not None:
            delivery = (span.entered, span.left, self._to, self._number)
            self._comm.traffic.deliveries.append(delivery)


class Communicator(ABC):
    """Collectives on flat contiguous float32 buffers, in place. Every rank calls them in one order.

    Bytes and seconds are counted here and nowhere else, and only while the clock counts training.
    Methods raise CommunicationError.
    """

    topology: ClassVar[str]  # how nodes that use this transport are wired and started
    # Where buffers, model and samples live, as torch names it. A class says the kind ("cuda"), a rank's
    # communicator the very one ("cuda:0").
    device: str = "cpu"

    def __init__(self, rank: int, size: int, clock: Clock) -> None:
        self.rank = rank
        self.size = size
        self.clock = clock
        self.traffic = Traffic()
        self.parts: list[Communicator] = []  # made by `split`
        # Of a part: the ranks that its own have where it was split off.
        self.members: Sequence[int] = range(size)

    @classmethod
    @abstractmethod
    def connect(cls, context: NodeContext, clock: Clock) -> Communicator:
        """Meet the other ranks. Returns once all of them are there."""

    def all_reduce(self, buffer: Tensor, op: Op) -> None:
        """Replace `buffer`, shape (n,), by the elementwise sum or mean over all ranks."""
        with self.clock.phase("communicate") as span:
            if self.size > 1:
                self._all_reduce(buffer)
                if op == "mean":
                    buffer.div_(self.size)
        self._met(span, 2 * buffer.nbytes * (self.size - 1) / self.size)

    def all_gather(self, buffer: Tensor) -> Tensor:
        """The ranks' buffers, each of shape (n,), as one tensor of shape (size, n)."""
        with self.clock.phase("communicate") as span:
            gathered = self._all_gather(buffer) if self.size > 1 else buffer.clone().unsqueeze(0)
        self._met(span, buffer.nbytes * (self.size - 1))
        return gathered

    def all_to_all(self, buffer: Tensor) -> Tensor:
        """Row i of `buffer`, shape (size, n), goes to rank i. Returns what came, row i from rank i."""
        with self.clock.phase("communicate") as span:
            received = self._all_to_all(buffer) if self.size > 1 else buffer.clone()
        self._met(span, buffer.nbytes * (self.size - 1) / self.size)
        return received

    def gather(self, buffer: Tensor, root: int) -> Tensor | None:
        """The ranks' buffers, each of shape (n,), as one tensor of shape (size, n) on rank `root`."""
        gathered = None
        with self.clock.phase("communicate") as span:
            if self.rank != root:
                self._send(buffer, root)
            else:
                gathered = buffer.new_empty(self.size, buffer.numel())
                for rank in range(self.size):
                    if rank == root:
                        gathered[rank] = buffer
                    else:
                        self._recv(gathered[rank], rank)
        self._met(span, 0 if self.rank == root else buffer.nbytes)
        return gathered

    def broadcast(self, buffer: Tensor, root: int) -> None:
        """Replace `buffer`, shape (n,), by the one of rank `root`."""
        with self.clock.phase("communicate") as span:
            if self.size > 1:
                self._broadcast(buffer, root)
        self._met(span, buffer.nbytes * (self.size - 1) if self.rank == root else 0)

    def shift(self, buffer: Tensor, distance: int) -> Tensor:
        """Give `buffer`, shape (n,), to the rank `distance` further on; returns what has come the same way.

        Ranks stand in a ring: rank r hears rank (r - distance) mod size. Every rank calls it.
        """
        if distance % self.size == 0:
            return buffer.clone()
        source = (self.rank - distance) % self.size
        with self.clock.phase("communicate") as span:
            received = self._shift(buffer, (self.rank + distance) % self.size, source)
        if span.counted:
            self.traffic.bytes_sent += buffer.nbytes
            self.traffic.shifts.append((span.entered, span.left, source))
        return received

    def send(self, buffer: Tensor, to: int) -> None:
        """Send `buffer`, shape (n,), to rank `to`; returns when it may be changed again."""
        self.isend(buffer, to).wait()

    def isend(self, buffer: Tensor, to: int) -> Sending:
        """Begin to send `buffer`, shape (n,), to rank `to`. Messages between two ranks keep their order."""
        with self.clock.phase("communicate") as span:
            finish = self._isend(buffer, to)
        number = self.traffic.post(span.entered, to, buffer.nbytes) if span.counted else None
        return Sending(self, buffer, to, finish, number)

    def recv(self, buffer: Tensor, source: int) -> None:
        """Replace `buffer`, shape (n,), by what rank `source` sends next."""
        with self.clock.phase("communicate") as span:
            self._recv(buffer, source)
        if span.counted:
            self.traffic.receipts.append((span.entered, span.left, source))

    def split(self, colour: int) -> Communicator:
        """The communicator of the ranks that name the same colour, in the order of their ranks here.

        Every rank calls it. What goes over it is counted in `bytes_sent` of this one, too.
        """
        import torch

        mine = torch.tensor([float(colour)], device=self.device)
        colours = self.all_gather(mine).flatten().tolist()
        groups = [
            [rank for rank in range(self.size) if colours[rank] == each] for each in sorted({*colours})
        ]
        number = next(number for number, group in enumerate(groups) if self.rank in group)
        part = self._split(groups, number)
        part.members = groups[number]
        self.parts.append(part)
        return part

    @property
    def bytes_sent(self) -> float:
        """Payload bytes that this rank has sent, see Traffic; over what was split off, too."""
        return self.traffic.bytes_sent + sum(part.bytes_sent for part in self.parts)

    @property
    def bytes_to(self) -> Counter[int]:
        """Payload bytes of `send` and `isend` by receiver; over what was split off, too."""
        sent = self.traffic.bytes_to.copy()
        for part in self.parts:
            sent.update({part.members[to]: payload for to, payload in part.bytes_to.items()})
        return sent

    def barrier(self) -> None:
        """Return when every rank has come here."""
        with self.clock.phase("communicate") as span:
            if self.size > 1:
                self._barrier()
        self._met(span, 0)

    def close(self) -> None:  # noqa: B027  (optional)
        """Part from the other ranks in good order. Not called after a failure: see `abort`."""

    def abort(self) -> None:  # noqa: B027  (optional)
        """Tell the other ranks that this one has failed, where the transport can."""

    @abstractmethod
    def _all_reduce(self, buffer: Tensor) -> None: ...
    @abstractmethod
    def _all_gather(self, buffer: Tensor) -> Tensor: ...
    @abstractmethod
    def _all_to_all(self, buffer: Tensor) -> Tensor: ...
    @abstractmethod
    def _broadcast(self, buffer: Tensor, root: int) -> None: ...
    @abstractmethod
    def _send(self, buffer: Tensor, to: int) -> None: ...
    @abstractmethod
    def _recv(self, buffer: Tensor, source: int) -> None: ...
    @abstractmethod
    def _barrier(self) -> None: ...
    @abstractmethod
    def _split(self, groups: list[list[int]], number: int) -> Communicator:
        """The communicator of groups[number], in which this rank is; every rank is in one of them."""

    def _isend(self, buffer: Tensor, to: int) -> Callable[[], None]:
        """For transports whose send does not wait for the receiver."""
        self._send(buffer, to)
        return lambda: None

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        """For transports whose send does not wait for the receiver; on others all would wait for all."""
        received = buffer.new_empty(buffer.shape)
        self._send(buffer, to)
        self._recv(received, source)
        return received

    def _met(self, span: Span, sent: float) -> None:
        """Account for a collective in which this rank has sent so many bytes."""
        if span.counted:
            self.traffic.bytes_sent += sent
            self.traffic.meetings.append((span.entered, span.left))
