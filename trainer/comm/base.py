"""The Communicator: the few collectives that our own strategies are written on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from trainer.clock import Clock, Span

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.context import NodeContext

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


@dataclass
class Traffic:
    """What this rank sent, and when it met the others.

    bytes_sent: payload bytes that leave this rank at the bandwidth-optimal cost of each collective
    for n bytes and P ranks: all-reduce 2n(P-1)/P, reduce-scatter n(P-1)/P, all-gather n(P-1), all-to-all
    n(P-1)/P, gather n from all but the root, broadcast n(P-1) from the root, shift and send n. Protocol
    headers and what a library's algorithm sends beyond that are not in it.
    meetings: (entered, left) of every collective, in order, in seconds of the clock. shifts: the same of
    every shift, and the rank whose buffer it waited for.
    """

    bytes_sent: float = 0.0
    meetings: list[tuple[float, float]] = field(default_factory=list)
    shifts: list[tuple[float, float, int]] = field(default_factory=list)


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
        with self.clock.phase("communicate") as span:
            self._send(buffer, to)
        if span.counted:
            self.traffic.bytes_sent += buffer.nbytes

    def recv(self, buffer: Tensor, source: int) -> None:
        """Replace `buffer`, shape (n,), by what rank `source` sends next."""
        with self.clock.phase("communicate"):
            self._recv(buffer, source)

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


def book_waits(comm: Communicator) -> None:
    """Split the clock's `communicate` into waiting for others and moving bytes.

    In a collective a rank waits from its own entry to the last rank's, in a shift to the entry of the rank
    that it hears. Call it on every rank with the clock stopped. Compares the ranks' clocks, so all ranks
    must be on one machine.
    """
    if comm.size == 1:
        return
    meetings, shifts = comm.traffic.meetings, comm.traffic.shifts
    waited = 0.0
    if meetings:
        entered, left = _times(comm, meetings)
        waited += _wait(entered, left, _everyones(comm, entered).max(dim=0).values)
    if shifts:
        entered, left = _times(comm, shifts)
        sources = [source for _, _, source in shifts]
        waited += _wait(entered, left, _everyones(comm, entered)[sources, range(len(shifts))])
    comm.clock.transfer("communicate", "wait", waited)


def _times(comm: Communicator, spans: Sequence[tuple[float, ...]]) -> list[Tensor]:
    """Of all spans: when they were entered, and when they were left. float64, each of shape (spans,)."""
    import torch

    entered_and_left = zip(*(span[:2] for span in spans), strict=True)
    return [torch.tensor(each, dtype=torch.float64, device=comm.device) for each in entered_and_left]


def _everyones(comm: Communicator, entered: Tensor) -> Tensor:
    """When each rank entered, shape (size, spans)."""
    import torch

    # The transports carry float32: a float64 travels as the bits of two of them, never computed with.
    return comm.all_gather(entered.view(torch.float32)).view(torch.float64)


def _wait(entered: Tensor, left: Tensor, other: Tensor) -> float:
    """Seconds from the own entries to the other's, as far as one had not left before."""
    return (other.minimum(left) - entered).clamp_(min=0).sum().item()
