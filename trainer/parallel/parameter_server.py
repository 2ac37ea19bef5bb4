"""Asynchronous parameter server: the server, its workers, and bounded staleness."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from torch import Tensor

from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError
from trainer.comm.requests import Request, Requests
from trainer.core.trace import Kind
from trainer.training.replica import Replica

CHECK_S = 0.5  # between two looks at workers that have not asked
SERVER = 0  # its rank


class BoundedStaleness:
    """Progress of the workers in an epoch, and which of them may start another step.

    Stale synchronous parallel (Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous
    Parallel Parameter Server", Sec. 2). Workers that have finished the epoch do not delay the others.
    """

    def __init__(self, steps: Mapping[int, int], max_staleness: int | None) -> None:
        """
        Args:
            steps: the number of steps in the epoch, by worker rank.
            max_staleness: the largest lead over the slowest worker, in steps; None: unbounded.
        """
        self._remaining = dict(steps)
        self._completed = dict.fromkeys(steps, 0)
        self._max_staleness = max_staleness

    @property
    def unfinished(self) -> list[int]:
        """Ranks of the workers with steps left in the epoch."""
        return [rank for rank, remaining in self._remaining.items() if remaining]

    def drop(self, rank: int) -> None:
        """Expect no more gradients of a worker that is lost."""
        self._remaining[rank] = 0

    def complete_step(self, rank: int) -> None:
        """Record that the gradient of a worker has been applied."""
        self._remaining[rank] -= 1
        self._completed[rank] += 1

    def may_start_step(self, rank: int) -> bool:
        """Whether a worker is at most `max_staleness` steps ahead of the slowest unfinished one."""
        ahead = self._completed[rank] - min(
            (self._completed[other] for other in self.unfinished), default=0
        )
        return self._max_staleness is None or ahead <= self._max_staleness


class Server:
    """The parameter server: it answers pulls and applies pushed gradients in the order of arrival.

    Attributes:
        staleness: of the last push: the updates since its worker's pull.
    """

    def __init__(
        self,
        replica: Replica,
        comm: Communicator,
        requests: Requests,
        timeout_s: float,
        pushes_per_update: int = 1,
    ) -> None:
        """
        Args:
            timeout_s: without any request until the server gives up.
            pushes_per_update: after how many pushes of an epoch the weights are updated.
        """
        self._replica, self._comm, self._requests = replica, comm, requests
        self._timeout_s, self._last_check = timeout_s, time.monotonic()
        self.staleness = 0
        self._pushes, self._pushes_per_update = 0, pushes_per_update
        self._updates_at_pull: dict[int, int] = {}
        self._pending_pulls: list[Request] = []

    def start_epoch(self, progress: BoundedStaleness) -> None:
        """Schedule the workers of the next epoch by `progress`."""
        self._progress, self._pushes = progress, 0
        self._drop_lost()

    def pushes_left(self) -> Iterator[None]:
        """One item for each gradient to come, while workers have steps left in the epoch."""
        while self._progress.unfinished:
            yield

    @contextmanager
    def next_push(self) -> Iterator[Tensor | None]:
        """Yield the next pushed gradient, shape (parameters,); the block applies it.

        Pulls that arrive earlier are answered first. None: the run continues without lost workers, and
        none is left with steps in this epoch. Raises CommunicationError, which names the workers that are
        missing.
        """
        while (push := self._next_request()) and push.payload is None:
            self._pending_pulls.append(push)
            self._answer_pulls()
        if push is None:
            yield None
            return
        self.staleness = self._updates - self._updates_at_pull[push.rank]
        yield push.payload
        self._pushes += 1
        self._progress.complete_step(push.rank)
        self._respond(push, self.staleness)
        self._answer_pulls()

    @property
    def _updates(self) -> int:
        """Updates of the weights in this epoch."""
        return self._pushes // self._pushes_per_update

    def _next_request(self) -> Request | None:
        clock = self._comm.clock
        deadline, entered = time.monotonic() + self._timeout_s, clock.wall()
        while (now := time.monotonic()) < deadline:
            # Also while requests keep arriving: they come from the workers that are alive.
            if now - self._last_check > CHECK_S:
                self._last_check = now
                self._check_workers()
                if not self._progress.unfinished:
                    return None
            with clock.phase("wait") as span:
                request = self._requests.take(min(CHECK_S, deadline - now))
            if request and request.rank in self._progress.unfinished:  # else it was dropped
                if span.counted:
                    self._comm.trace_at(Kind.TAKE, entered, span.left, request.nbytes, request.rank)
                return request
        missing = ", ".join(map(str, self._progress.unfinished))
        raise CommunicationError(
            f"waiting for node {missing} failed: no request within {self._timeout_s:g} s"
        )

    def _check_workers(self) -> None:
        """Drop lost workers if the run continues without them. Raises CommunicationError if it does not."""
        if not self._drop_lost():
            self._requests.check(self._progress.unfinished)

    def _drop_lost(self) -> bool:
        """Drop the workers that are lost. False if the run does not continue without them."""
        if (absent := self._comm.leave_lost()) is None:
            return False
        for rank in absent:
            self._progress.drop(rank)
        self._answer_pulls()  # of workers that were ahead of them
        return True

    def _answer_pulls(self) -> None:
        pulls, self._pending_pulls = self._pending_pulls, []
        for pull in pulls:
            if self._progress.may_start_step(pull.rank):
                self._updates_at_pull[pull.rank] = self._updates
                weights = self._replica.flat_parameters()
                self._comm.traffic.bytes_sent += weights.nbytes
                self._respond(pull, weights)
            else:
                self._pending_pulls.append(pull)

    def _respond(self, request: Request, value: Tensor | int) -> None:
        with self._comm.clock.phase("communicate") as span:
            self._requests.answer(request, value)
        size = 0 if isinstance(value, int) else value.nbytes
        self._comm.trace(Kind.RESPOND, span, size, request.rank)


class Worker:
    """A worker's connection to the server.

    A request's time in the server is booked as waiting, the rest of it as communication.
    """

    def __init__(self, comm: Communicator, requests: Requests) -> None:
        self._comm, self._requests = comm, requests

    def pull(self) -> Tensor:
        """Return the server's parameters, flat, once this worker may start a step.

        Raises CommunicationError.
        """
        return cast("Tensor", self._request("pulling weights from", None))

    def push(self, gradient: Tensor) -> int:
        """Send a gradient, shape (parameters,), and wait until the server has applied it.

        Returns:
            Its staleness: the updates by other workers since the last pull.

        Raises:
            CommunicationError: the server is gone or late.
        """
        self._comm.traffic.bytes_sent += gradient.nbytes
        return cast("int", self._request("pushing a gradient to", gradient))

    def _request(self, doing: str, gradient: Tensor | None) -> Tensor | int:
        with self._comm.clock.phase("communicate") as span:
            value, in_server_s = self._requests.ask(SERVER, gradient, doing)
        self._comm.clock.transfer("communicate", "wait", in_server_s)
        self._comm.trace(Kind.REQUEST, span, 0 if gradient is None else gradient.nbytes, SERVER)
        return value
