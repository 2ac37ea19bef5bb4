"""Communicator: the collectives and point-to-point sends on which strategies are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainer.comm.errors import ExchangeError
from trainer.comm.nonblocking import Finished, Operation, Request, Together
from trainer.comm.traffic import Traffic
from trainer.core.clock import Clock, Span
from trainer.core.trace import Kind, bytes_sent

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from trainer.comm.requests import Requests
    from trainer.core.context import NodeContext
    from trainer.core.events import EventWriter

Op = Literal["sum", "mean"]

UNKNOWN, MAX_EARLY_US = -1, 2**31 - 1  # of the peer of Kind.WAIT


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
    # False: to read the clock waits for the GPU, so that nothing would overlap. A start has the time of its
    # wait then.
    times_starts: ClassVar[bool] = True
    # The transport says when a non-blocking collective is complete.
    knows_completion: ClassVar[bool] = False
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
        self.outstanding: dict[int, Request] = {}  # started and not waited for
        # The rank in the parent communicator of each rank here, and in the run.
        self.parent_ranks: Sequence[int] = range(size)
        self.path: tuple[int, ...] = ()  # the numbers of the splits that made it
        self.run_ranks: Sequence[int] = range(size)
        self._trace_group: int | None = None
        self._starts = 0  # of counted requests

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
        self._record_collective(span, Kind.ALL_REDUCE, buffer.nbytes)

    def weighted_mean(self, values: Tensor, weight: float) -> Tensor:
        """Σ wᵢ vᵢ / Σ wᵢ over all ranks i, each with its `values` v, shape (n,), and `weight` w ≥ 0.

        Where all weights are 0, each rank keeps its own values. The weights travel in the same all-reduce
        as the values. So both sums are over the same ranks if one is lost.
        """
        if self.size == 1:
            return values
        sums = _weighted(values, weight)
        self.all_reduce(sums, "sum")
        return _mean(sums, values)

    def all_gather(self, buffer: Tensor) -> Tensor:
        """The ranks' buffers, each of shape (n,), as one tensor of shape (size, n)."""
        with self.clock.phase("communicate") as span:
            gathered = self._all_gather(buffer) if self.size > 1 else buffer.clone().unsqueeze(0)
        self._record_collective(span, Kind.ALL_GATHER, buffer.nbytes)
        return gathered

    def all_to_all(self, buffer: Tensor) -> Tensor:
        """Send row i of `buffer`, shape (size, n), to rank i. Row i of the result comes from rank i."""
        with self.clock.phase("communicate") as span:
            received = self._all_to_all(buffer) if self.size > 1 else buffer.clone()
        self._record_collective(span, Kind.ALL_TO_ALL, buffer.nbytes)
        return received

    def reduce_scatter(self, buffer: Tensor) -> Tensor:
        """The sum of `buffer`, shape (size · n,), over all ranks. Returns this rank's n sums.

        The ranks' values are added in the order of ranks; over gloo, as in its all-reduce.
        """
        with self.clock.phase("communicate") as span:
            part = self._reduce_scatter(buffer) if self.size > 1 else buffer.clone()
        self._record_collective(span, Kind.REDUCE_SCATTER, buffer.nbytes)
        return part

    def gather(self, buffer: Tensor, root: int) -> Tensor | None:
        """The ranks' buffers, each of shape (n,), as a tensor of shape (size, n) on rank `root`.

        Returns:
            None on the other ranks.
        """
        with self.clock.phase("communicate") as span:
            gathered = self._gather(buffer, root) if self.size > 1 else buffer.clone().unsqueeze(0)
        self._record_collective(span, Kind.GATHER, buffer.nbytes, root)
        return gathered

    def broadcast(self, buffer: Tensor, root: int) -> None:
        """Replace `buffer`, shape (n,), in place by that of rank `root`."""
        with self.clock.phase("communicate") as span:
            if self.size > 1:
                self._broadcast(buffer, root)
        self._record_collective(span, Kind.BROADCAST, buffer.nbytes, root)

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

    def isend(self, buffer: Tensor, to: int) -> Request:
        """Start to send `buffer`, shape (n,), to rank `to`. Messages between two ranks stay in order."""
        with self.clock.phase("communicate") as span:
            operation = self._isend(buffer, to)
        if not span.counted:
            return Request(self, operation, "send", buffer, details={"to": to})
        index = self.traffic.record_send(span.entered, to, buffer.nbytes)
        self.trace(Kind.SEND, span, buffer.nbytes, to)

        def record(waited: Span, _: float | None) -> None:
            self.traffic.send_waits.append((waited.entered, waited.left, to, index))
            self.trace(Kind.SEND_WAIT, waited, index, to)

        return Request(self, operation, "send", buffer, record=record, details={"to": to})

    def recv(self, buffer: Tensor, source: int) -> None:
        """Replace `buffer`, shape (n,), in place by the next message from rank `source`."""
        with self.clock.phase("communicate") as span:
            self._recv(buffer, source)
        if span.counted:
            self.traffic.receives.append((span.entered, span.left, source, span.entered))
            self.trace(Kind.RECEIVE, span, buffer.nbytes, source)

    # Non-blocking: all ranks start the collectives of a communicator, blocking or not, in the same order.
    # They complete, and are waited for, in any order.

    def iall_reduce(self, buffer: Tensor, op: Op) -> Request:
        """Start to replace `buffer` as `all_reduce` does. `wait` returns it."""

        def result(reduced: Tensor) -> Tensor:
            return reduced.div_(self.size) if op == "mean" else reduced

        begin = self._iall_reduce if self.size > 1 else Finished
        return self._begin(Kind.START_ALL_REDUCE, lambda: begin(buffer), buffer, result, {"op": op})

    def iall_gather(self, buffer: Tensor) -> Request:
        """Start to gather the ranks' buffers, each of shape (n,). `wait` returns shape (size, n)."""
        begin = self._iall_gather if self.size > 1 else lambda own: Finished(own.clone().unsqueeze(0))
        return self._begin(Kind.START_ALL_GATHER, lambda: begin(buffer), buffer)

    def ireduce_scatter(self, buffer: Tensor) -> Request:
        """Start to sum `buffer`, shape (size · n,), over all ranks. `wait` returns this rank's n sums.

        The ranks' values are added in the order of ranks.
        """
        rows, begin = buffer.view(self.size, -1), self._iall_to_all if self.size > 1 else Finished
        return self._begin(
            Kind.START_REDUCE_SCATTER, lambda: begin(rows), buffer, lambda found: found.sum(dim=0)
        )

    def ibroadcast(self, buffer: Tensor, root: int) -> Request:
        """Start to replace `buffer`, shape (n,), by that of rank `root`. `wait` returns it."""
        begin = self._ibroadcast if self.size > 1 else lambda own, _: Finished(own)
        return self._begin(Kind.START_BROADCAST, lambda: begin(buffer, root), buffer, root=root)

    def iweighted_mean(self, values: Tensor, weight: float) -> Request:
        """Start `weighted_mean`. `wait` returns the mean."""
        sums, begin = _weighted(values, weight), self._iall_reduce if self.size > 1 else Finished

        def mean(sums: Tensor) -> Tensor:
            return _mean(sums, values) if self.size > 1 else values

        return self._begin(Kind.START_ALL_REDUCE, lambda: begin(sums), sums, mean, {"op": "sum"})

    def irecv(self, buffer: Tensor, source: int) -> Request:
        """Start to replace `buffer` by the next message from rank `source`. `wait` returns it."""
        with self.clock.phase("communicate") as span:
            operation = self._irecv(buffer, source)
        if not span.counted:
            return Request(self, operation, "recv", buffer, details={"source": source})
        receives, index = self.traffic.receives, len(self.traffic.receives)
        receives.append((span.entered, span.entered, source, span.entered))
        number = self._count_start(Kind.START_RECEIVE, span, buffer.nbytes, source)

        def record(waited: Span, completed_s: float | None) -> None:
            receives[index] = (waited.entered, waited.left, source, span.entered)
            self._trace_wait(waited, number, completed_s)

        return Request(self, operation, "recv", buffer, record=record, details={"source": source})

    def ishift(self, buffer: Tensor, distance: int) -> Request:
        """Start `shift`. `wait` returns the received buffer."""
        received = buffer.new_empty(buffer.shape)
        if distance % self.size == 0:
            return Request(self, Finished(buffer.clone()), "shift", buffer, details={"distance": distance})
        requests = (
            self.irecv(received, (self.rank - distance) % self.size),
            self.isend(buffer, (self.rank + distance) % self.size),
        )
        return Request(self, Together(requests, received), "shift", buffer, details={"distance": distance})

    def _begin(
        self,
        kind: Kind,
        begin: Callable[[], Operation],
        buffer: Tensor,
        then: Callable[[Any], Any] | None = None,
        details: Mapping[str, object] | None = None,
        root: int = -1,
    ) -> Request:
        """Start a collective. then, details: see Request."""
        if self.times_starts:
            with self.clock.phase("communicate") as span:
                operation = begin()
        else:
            span, operation = self.clock.unread(), begin()
        method = "i" + kind.name.removeprefix("START_").lower()
        details = {"root": root} if root >= 0 else details
        if not span.counted or self.size == 1:
            return Request(self, operation, method, buffer, then, details=details)
        if self.knows_completion:
            operation.watch(self.clock.wall)
        self.traffic.bytes_sent += bytes_sent(kind, self.size, buffer.nbytes, self.rank == root)
        index = len(self.traffic.starts)
        self.traffic.starts.append(span.entered)
        number = self._count_start(kind, span, buffer.nbytes, root)

        def record(waited: Span, completed_s: float | None) -> None:
            if not self.times_starts:
                self.traffic.starts[index] = waited.entered
            self.traffic.start_waits.append((waited.entered, waited.left, index, completed_s))
            self._trace_wait(waited, number, completed_s)

        return Request(self, operation, method, buffer, then, record, details)

    def _count_start(self, kind: Kind, span: Span, size: int, peer: int) -> int:
        """Record a start. Returns its number among those of this communicator."""
        self.trace(kind, span, size, peer)
        self._starts += 1
        return self._starts - 1

    def _trace_wait(self, span: Span, number: int, completed_s: float | None) -> None:
        early_us = UNKNOWN if completed_s is None else round(max(span.entered - completed_s, 0) * 1e6)
        self.trace(Kind.WAIT, span, number, min(early_us, MAX_EARLY_US))

    def check_waited(self) -> None:
        """Raise ExchangeError if a request was never waited for, subgroups included."""
        for request in self.unfinished:
            raise ExchangeError(f"rank {self.run_ranks[self.rank]} never waits for the {request}")

    @property
    def unfinished(self) -> list[Request]:
        """Requests that were started and not waited for, those of subgroups included."""
        return [*self.outstanding.values(), *(each for part in self.subgroups for each in part.unfinished)]

    def split(self, colour: int) -> Communicator:
        """A communicator over the ranks with the same colour, in rank order; every rank calls it.

        As MPI_Comm_split. Its traffic also counts in `bytes_sent` and `bytes_to` of this communicator.

        Args:
            colour: a whole number below 2²⁴.
        """
        import torch

        # Ranks that compute nothing have tensors without values, but colours.
        device = "cpu" if self.device == "meta" else self.device
        own = torch.tensor([float(colour)], device=device)
        colours = self.all_gather(own).flatten().tolist()
        members: dict[float, list[int]] = {each: [] for each in sorted({*colours})}
        for rank, each in enumerate(colours):
            members[each].append(rank)
        groups, number = [*members.values()], [*members].index(colours[self.rank])
        subgroup = self._split(groups, number)
        subgroup.parent_ranks = groups[number]
        subgroup.run_ranks = [self.run_ranks[rank] for rank in groups[number]]
        subgroup.path = (*self.path, len(self.subgroups))
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
        self._record_collective(span, Kind.BARRIER, 0)

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

    # What a transport does: the non-blocking exchanges, and blocking ones where those differ.

    def _iall_reduce(self, buffer: Tensor) -> Operation:
        """Brings the buffer with the sum."""
        raise NotImplementedError(self._blocks_only)

    def _iall_gather(self, buffer: Tensor) -> Operation:
        """Brings a tensor of shape (size, n)."""
        raise NotImplementedError(self._blocks_only)

    def _iall_to_all(self, buffer: Tensor) -> Operation:
        """Brings a tensor of shape (size, n)."""
        raise NotImplementedError(self._blocks_only)

    def _ibroadcast(self, buffer: Tensor, root: int) -> Operation:
        """Brings the buffer."""
        raise NotImplementedError(self._blocks_only)

    def _isend(self, buffer: Tensor, to: int) -> Operation:
        raise NotImplementedError(self._blocks_only)

    def _irecv(self, buffer: Tensor, source: int) -> Operation:
        """Brings the buffer."""
        raise NotImplementedError(self._blocks_only)

    @property
    def _blocks_only(self) -> str:
        return f"{type(self).__name__} has blocking exchanges only"

    def _all_reduce(self, buffer: Tensor) -> None:
        self._iall_reduce(buffer).finish()

    def _all_gather(self, buffer: Tensor) -> Tensor:
        gathered: Tensor = self._iall_gather(buffer).finish()
        return gathered

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        received: Tensor = self._iall_to_all(buffer).finish()
        return received

    def _reduce_scatter(self, buffer: Tensor) -> Tensor:
        return self._all_to_all(buffer.view(self.size, -1)).sum(dim=0)

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        self._ibroadcast(buffer, root).finish()

    def _recv(self, buffer: Tensor, source: int) -> None:
        self._irecv(buffer, source).finish()

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        receive = self._irecv(buffer.new_empty(buffer.shape), source)
        self._isend(buffer, to).finish()
        received: Tensor = receive.finish()
        return received

    @abstractmethod
    def _barrier(self) -> None: ...
    @abstractmethod
    def _split(self, groups: list[list[int]], number: int) -> Communicator:
        """The communicator of groups[number], to which this rank belongs. Every rank is in one group."""

    def _gather(self, buffer: Tensor, root: int) -> Tensor | None:
        """Default: messages to the root, which receives them in the order of ranks."""
        if self.rank != root:
            self._isend(buffer, root).finish()
            return None
        gathered = buffer.new_empty(self.size, buffer.numel())
        gathered[root] = buffer
        for rank in range(self.size):
            if rank != root:
                self._recv(gathered[rank], rank)
        return gathered

    def _record_collective(self, span: Span, kind: Kind, size: int, root: int = -1) -> None:
        """Record a collective. size, root: see Kind."""
        if span.counted:
            self.traffic.bytes_sent += bytes_sent(kind, self.size, size, self.rank == root)
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
            group = self._trace_group = tracer.group(self.run_ranks, self.path)
        tracer.exchange(kind, group, entered, left, size, peer, cpu_s)


def _weighted(values: Tensor, weight: float) -> Tensor:
    """Values multiplied by a weight, which follows them."""
    import torch

    return torch.cat([values * weight, values.new_tensor([weight])])


def _mean(sums: Tensor, own: Tensor) -> Tensor:
    """The mean by the sums over all ranks; a rank's own values if there is no weight."""
    return sums[:-1] / sums[-1] if sums[-1] > 0 else own
