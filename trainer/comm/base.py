"""Communicator: the collectives and point-to-point sends on which strategies are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

from trainer.comm.traffic import Traffic
from trainer.core.clock import Clock, Span
from trainer.core.trace import Kind

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from trainer.comm.requests import Requests
    from trainer.core.context import NodeContext
    from trainer.core.events import EventWriter

Op = Literal["sum", "mean"]


class CommunicationError(Exception):
    """The transport failed, most often because a peer has ended. The message names the operation."""


@contextmanager
def communication_errors(doing: str) -> Iterator[None]:
    """Re-raise torch's RuntimeError, a page of C++ frames, as one line: "all-reduce failed: reason"."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise CommunicationError(f"{doing} failed: {reason}") from error


class SendRequest:
    """A send in progress. The buffer must not change until `wait` returns."""

    def __init__(
        self, comm: Communicator, buffer: Tensor, to: int, finish: Callable[[], None], index: int | None
    ) -> None:
        """
        Args:
            finish: Blocks until the transport no longer reads the buffer.
            index: The number of this send among those to `to`; None if the clock was not counting.
        """
        self._comm, self._to, self._finish, self._index = comm, to, finish, index
        self._buffer = buffer  # keeps the memory alive while the transport reads it

    def wait(self) -> None:
        """Block until the buffer may be reused. Raises CommunicationError."""
        with self._comm.clock.phase("communicate") as span:
            self._finish()
        if span.counted and self._index is not None:
            self._comm.traffic.send_waits.append((span.entered, span.left, self._to, self._index))
            self._comm.trace(Kind.SEND_WAIT, span, self._index, self._to)


class Communicator(ABC):
    """Collectives and sends over the ranks of a group, on flat contiguous float32 tensors.

    All ranks must call the collectives in the same order, with tensors of the same shape; otherwise they
    wait for each other until the run's time limit. The communicator counts the bytes and the seconds of
    each exchange. Methods raise CommunicationError.

    Attributes:
        rank: this rank in the group, 0 … size - 1.
        size: the number of ranks in the group.
        device: the torch device of buffers, "cpu" or "cuda:0".
        parent_ranks: the rank of each member in the communicator that was split.
        run_ranks: the rank of each member in the run.
    """

    topology: ClassVar[str]  # how nodes that use this transport are wired and started
    # The library's threads move bytes, and never run the strategy's code.
    threads_only_communicate: ClassVar[bool] = False
    # Ranks are connected by links whose speed can be measured.
    has_links: ClassVar[bool] = True
    # torch device of buffers, model and samples: the type ("cuda") on a class, the device ("cuda:0") on an
    # instance.
    device: str = "cpu"

    def __init__(self, rank: int, size: int, clock: Clock) -> None:
        self.rank = rank
        self.size = size
        self.clock = clock
        self.traffic = Traffic()
        self.subgroups: list[Communicator] = []  # created by `split`
        # The rank in the parent communicator of each rank here, and in the run.
        self.parent_ranks: Sequence[int] = range(size)
        self.run_ranks: Sequence[int] = range(size)
        self._trace_group: int | None = None

    @classmethod
    @abstractmethod
    def connect(cls, context: NodeContext, clock: Clock) -> Communicator:
        """Connect to the other ranks. Returns once all of them have connected."""

    @classmethod
    def connect_elastic(
        cls, context: NodeContext, clock: Clock, membership: Path, events: EventWriter
    ) -> Communicator:
        """Like `connect`, for a run whose other ranks continue when one is lost.

        Args:
            membership: file that shows which ranks are alive, see core.membership.
            events: the events of this rank, from which the membership follows.
        """
        raise NotImplementedError(f"{cls.__name__} cannot lose ranks; the spec's checks prevent this")

    def all_reduce(self, buffer: Tensor, op: Op) -> None:
        """Replace `buffer`, shape (n,), in place by its elementwise sum or mean over all ranks.

        Args:
            op: "sum" or "mean".
        """
        with self.clock.phase("communicate") as span:
            if self.size > 1:
                self._all_reduce(buffer)
                if op == "mean":
                    buffer.div_(self.size)
        self._record_collective(
            span, 2 * buffer.nbytes * (self.size - 1) / self.size, Kind.ALL_REDUCE, buffer.nbytes
        )

    def weighted_mean(self, values: Tensor, weight: float) -> Tensor:
        """Σ wᵢ vᵢ / Σ wᵢ over all ranks i, each with its `values` v, shape (n,), and `weight` w ≥ 0.

        Where all weights are 0, each rank keeps its own values. The weights travel in the same all-reduce
        as the values. So both sums are over the same ranks if one is lost.
        """
        import torch

        if self.size == 1:
            return values
        sums = torch.cat([values * weight, values.new_tensor([weight])])
        self.all_reduce(sums, "sum")
        return sums[:-1] / sums[-1] if sums[-1] > 0 else values

    def all_gather(self, buffer: Tensor) -> Tensor:
        """The ranks' buffers, each of shape (n,), as one tensor of shape (size, n)."""
        with self.clock.phase("communicate") as span:
            gathered = self._all_gather(buffer) if self.size > 1 else buffer.clone().unsqueeze(0)
        self._record_collective(span, buffer.nbytes * (self.size - 1), Kind.ALL_GATHER, buffer.nbytes)
        return gathered

    def all_to_all(self, buffer: Tensor) -> Tensor:
        """Send row i of `buffer`, shape (size, n), to rank i. Row i of the result comes from rank i."""
        with self.clock.phase("communicate") as span:
            received = self._all_to_all(buffer) if self.size > 1 else buffer.clone()
        sent = buffer.nbytes * (self.size - 1) / self.size
        self._record_collective(span, sent, Kind.ALL_TO_ALL, buffer.nbytes)
        return received

    def gather(self, buffer: Tensor, root: int) -> Tensor | None:
        """The ranks' buffers, each of shape (n,), as a tensor of shape (size, n) on rank `root`.

        Returns:
            None on the other ranks.
        """
        with self.clock.phase("communicate") as span:
            gathered = self._gather(buffer, root) if self.size > 1 else buffer.clone().unsqueeze(0)
        sent = 0 if self.rank == root else buffer.nbytes
        self._record_collective(span, sent, Kind.GATHER, buffer.nbytes, root)
        return gathered

    def broadcast(self, buffer: Tensor, root: int) -> None:
        """Replace `buffer`, shape (n,), in place by that of rank `root`."""
        with self.clock.phase("communicate") as span:
            if self.size > 1:
                self._broadcast(buffer, root)
        sent = buffer.nbytes * (self.size - 1) if self.rank == root else 0
        self._record_collective(span, sent, Kind.BROADCAST, buffer.nbytes, root)

    def shift(self, buffer: Tensor, distance: int) -> Tensor:
        """Send `buffer`, shape (n,), around the ring of ranks; every rank calls it.

        Rank r sends to rank (r + distance) mod size and returns the buffer of rank (r - distance) mod size.
        """
        if distance % self.size == 0:
            return buffer.clone()
        source = (self.rank - distance) % self.size
        with self.clock.phase("communicate") as span:
            received = self._shift(buffer, (self.rank + distance) % self.size, source)
        if span.counted:
            self.traffic.bytes_sent += buffer.nbytes
            self.traffic.shifts.append((span.entered, span.left, source))
            self.trace(Kind.SHIFT, span, buffer.nbytes, distance)
        return received

    def send(self, buffer: Tensor, to: int) -> None:
        """Send `buffer`, shape (n,), to rank `to`. Returns when the buffer may be reused."""
        self.isend(buffer, to).wait()

    def isend(self, buffer: Tensor, to: int) -> SendRequest:
        """Start to send `buffer`, shape (n,), to rank `to`. Messages between two ranks stay in order.

        Returns:
            The send in progress: `buffer` must not change until its method `wait` returns.
        """
        with self.clock.phase("communicate") as span:
            finish = self._isend(buffer, to)
        index = None
        if span.counted:
            index = self.traffic.record_send(span.entered, to, buffer.nbytes)
            self.trace(Kind.SEND, span, buffer.nbytes, to)
        return SendRequest(self, buffer, to, finish, index)

    def recv(self, buffer: Tensor, source: int) -> None:
        """Replace `buffer`, shape (n,), in place by the next message from rank `source`."""
        with self.clock.phase("communicate") as span:
            self._recv(buffer, source)
        if span.counted:
            self.traffic.receives.append((span.entered, span.left, source))
            self.trace(Kind.RECEIVE, span, buffer.nbytes, source)

    def split(self, colour: int) -> Communicator:
        """A communicator over the ranks with the same colour, in rank order; every rank calls it.

        As MPI_Comm_split. Its traffic also counts in `bytes_sent` and `bytes_to` of this communicator.

        Args:
            colour: a whole number below 2²⁴.
        """
        import torch

        own = torch.tensor([float(colour)], device=self.device)
        colours = self.all_gather(own).flatten().tolist()
        members: dict[float, list[int]] = {each: [] for each in sorted({*colours})}
        for rank, each in enumerate(colours):
            members[each].append(rank)
        groups, number = [*members.values()], [*members].index(colours[self.rank])
        subgroup = self._split(groups, number)
        subgroup.parent_ranks = groups[number]
        subgroup.run_ranks = [self.run_ranks[rank] for rank in groups[number]]
        self.subgroups.append(subgroup)
        return subgroup

    def all_gather_float64(self, values: Tensor) -> Tensor:
        """The ranks' float64 values, each of shape (n,), as a tensor of shape (size, n), bit for bit."""
        import torch

        # Transports carry float32; the two halves of a float64 travel as the bits of two of them.
        return self.all_gather(values.view(torch.float32)).view(torch.float64)

    @property
    def bytes_sent(self) -> float:
        """Payload bytes that this rank sent, see Traffic, subgroups included."""
        return self.traffic.bytes_sent + sum(subgroup.bytes_sent for subgroup in self.subgroups)

    @property
    def bytes_to(self) -> Counter[int]:
        """Payload bytes of `send` and `isend` by receiver, subgroups included."""
        sent = self.traffic.bytes_to.copy()
        for subgroup in self.subgroups:
            ranks = subgroup.parent_ranks
            sent.update({ranks[to]: payload for to, payload in subgroup.bytes_to.items()})
        return sent

    def requests(self, timeout_s: float) -> Requests:
        """This rank's end of a channel for requests to a server. timeout_s: the limit of each request."""
        raise NotImplementedError(f"{type(self).__name__} has no requests; the spec's checks prevent this")

    def waits_s(self) -> dict[int, float] | None:
        """Seconds that this rank has waited, by the rank waited for; None: compare times to know."""
        return None

    def barrier(self) -> None:
        """Return when every rank has entered the barrier."""
        with self.clock.phase("communicate") as span:
            if self.size > 1:
                self._barrier()
        self._record_collective(span, 0, Kind.BARRIER, 0)

    def admit(self) -> list[int]:
        """Let ranks join that were started again; every rank calls it. Returns the ranks that joined."""
        return []

    def leave_lost(self) -> set[int] | None:
        """Form a group without the ranks that are lost, if there are any since the last exchange.

        A rank calls it again and again while it waits for another one outside of this class, because all
        others take part.

        Returns:
            The ranks without which the others continue; None if the run ends when one is lost.
        """
        return None

    @property
    def changed(self) -> bool:
        """Whether ranks were lost or have returned."""
        return False

    def close(self) -> None:  # noqa: B027  (optional)
        """Disconnect from the other ranks after success; after a failure `abort` is called instead."""

    def abort(self) -> None:  # noqa: B027  (optional)
        """Make the other ranks fail, where the transport can: this rank has failed."""

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
        """The communicator of groups[number], to which this rank belongs. Every rank is in one group."""

    def _gather(self, buffer: Tensor, root: int) -> Tensor | None:
        """Default: messages to the root, which receives them in the order of ranks."""
        if self.rank != root:
            self._send(buffer, root)
            return None
        gathered = buffer.new_empty(self.size, buffer.numel())
        gathered[root] = buffer
        for rank in range(self.size):
            if rank != root:
                self._recv(gathered[rank], rank)
        return gathered

    def _isend(self, buffer: Tensor, to: int) -> Callable[[], None]:
        """Default for transports whose send does not block on the receiver."""
        self._send(buffer, to)
        return lambda: None

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        """Default for transports whose send does not block on the receiver; others would deadlock."""
        received = buffer.new_empty(buffer.shape)
        self._send(buffer, to)
        self._recv(received, source)
        return received

    def _record_collective(self, span: Span, sent: float, kind: Kind, size: int, root: int = -1) -> None:
        """Record a collective in which this rank sent `sent` bytes. size, root: see Kind."""
        if span.counted:
            self.traffic.bytes_sent += sent
            self.traffic.collectives.append((span.entered, span.left))
            self.trace(kind, span, size, root)

    def trace(self, kind: Kind, span: Span, size: int, peer: int = -1) -> None:
        """Record an exchange, if this rank is traced and the clock counts it. size, peer: see Kind."""
        if self.clock.tracer is not None and span.counted:
            self.trace_at(kind, span.entered, span.left, size, peer, span.cpu_s)

    def trace_at(
        self, kind: Kind, entered: float, left: float, size: int = 0, peer: int = -1, cpu_s: float = 0.0
    ) -> None:
        """Like `trace`, with the times. A rank alone in its group exchanges nothing and records nothing."""
        if (tracer := self.clock.tracer) is None or self.size == 1:
            return
        if (group := self._trace_group) is None:
            group = self._trace_group = tracer.group(self.run_ranks)
        tracer.exchange(kind, group, entered, left, size, peer, cpu_s)
