"""Both ends of an asynchronous parameter server: who asks for weights and gives gradients, and who answers.

Requests are torch RPC's. They end up in a queue that the server's own thread empties, so it does one thing
at a time: no lock is needed, no thread that answers requests ever waits, and its clock tells what it does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from trainer.comm.base import CommunicationError, Communicator
from trainer.comm.rpc import HEARTBEAT_S, Heartbeat, rpc_errors, worker_name
from trainer.training.replica import Replica

SERVER = 0  # its rank


@dataclass(frozen=True)
class Request:
    """A worker's gradient, flat, or its wish for weights. arrived: in seconds of `time.monotonic`."""

    rank: int
    gradient: Tensor | None
    arrived: float
    answer: Future[Any]


# What has come to this process, if it is the server. A module's, because a process has one RPC agent, whose
# requests name functions and not objects.
_requests: SimpleQueue[Request] = SimpleQueue()


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def _ask(rank: int, gradient: Tensor | None) -> Future[Any]:
    """Runs in the server's process. The answer is (what was asked for, seconds from here to there)."""
    answer: Future[Any] = Future()
    _requests.put(Request(rank, gradient, time.monotonic(), answer))
    return answer


class Progress:
    """How far the workers are in an epoch, and who may go on.

    Stale synchronous parallel (Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous
    Parallel Parameter Server", Sec. 2). One that has come to the end of its samples holds nobody back.
    """

    def __init__(self, steps: Mapping[int, int], max_staleness: int | None) -> None:
        """steps: that each worker will take, by rank."""
        self._left = dict(steps)
        self._taken = dict.fromkeys(steps, 0)
        self._max_staleness = max_staleness

    @property
    def owing(self) -> list[int]:
        """The workers that have steps to take."""
        return [rank for rank, left in self._left.items() if left]

    def step(self, rank: int) -> None:
        """Worker `rank` has taken a step."""
        self._left[rank] -= 1
        self._taken[rank] += 1

    def may_go_on(self, rank: int) -> bool:
        """Whether worker `rank` is at most `max_staleness` steps ahead of the slowest."""
        ahead = self._taken[rank] - min((self._taken[other] for other in self.owing), default=0)
        return self._max_staleness is None or ahead <= self._max_staleness


class Server:
    """The server's end."""

    def __init__(self, replica: Replica, comm: Communicator, timeout_s: float) -> None:
        self._replica, self._comm, self._timeout_s = replica, comm, timeout_s
        self._knocks = {rank: Heartbeat(rank, timeout_s) for rank in range(comm.size) if rank != SERVER}
        self._knocked = time.monotonic()
        self._updates = 0
        self._updates_at_pull: dict[int, int] = {}
        self._pulls: list[Request] = []  # that wait for an answer

    def begin(self, progress: Progress) -> None:
        """From now on let workers go on as `progress` says."""
        self._progress = progress

    @contextmanager
    def next_push(self) -> Iterator[Tensor]:
        """The next gradient, shape (parameters,); in the block its step is taken.

        Answers pulls until one comes. Raises CommunicationError, which names the workers that are gone.
        """
        while (push := self._next()).gradient is None:
            self._pulls.append(push)
            self._answer_pulls()
        yield push.gradient
        staleness = self._updates - self._updates_at_pull[push.rank]
        self._updates += 1
        self._progress.step(push.rank)
        self._answer(push, staleness)
        self._answer_pulls()

    def _next(self) -> Request:
        deadline = time.monotonic() + self._timeout_s
        while (now := time.monotonic()) < deadline:
            # Also while requests keep coming: they are of those that are still there.
            if now - self._knocked > HEARTBEAT_S:
                self._knocked = now
                for rank in self._progress.owing:
                    self._knocks[rank].check()
            with self._comm.clock.phase("wait"):
                try:
                    return _requests.get(timeout=min(HEARTBEAT_S, deadline - now))
                except Empty:
                    continue
        late = ", ".join(map(str, self._progress.owing))
        raise CommunicationError(
            f"waiting for node {late} failed: nothing came within {self._timeout_s:g} s"
        )

    def _answer_pulls(self) -> None:
        waiting = self._pulls
        self._pulls = []
        for pull in waiting:
            if self._progress.may_go_on(pull.rank):
                self._updates_at_pull[pull.rank] = self._updates
                weights = self._replica.flat_parameters()
                self._comm.traffic.bytes_sent += weights.nbytes
                self._answer(pull, weights)
            else:
                self._pulls.append(pull)

    def _answer(self, request: Request, what: Tensor | int) -> None:
        with self._comm.clock.phase("communicate"):
            request.answer.set_result((what, time.monotonic() - request.arrived))


class Client:
    """A worker's end. What the server took its time for is waiting, the rest of a request communication."""

    def __init__(self, comm: Communicator, timeout_s: float) -> None:
        self._comm, self._timeout_s = comm, timeout_s

    def pull(self) -> Tensor:
        """The server's parameters, flat, once this worker may go on. Raises CommunicationError."""
        weights: Tensor = self._ask("pulling weights from", None)
        return weights

    def push(self, gradient: Tensor) -> int:
        """Give the server a gradient, shape (parameters,). Raises CommunicationError.

        Returns when it has taken its step: how many updates others made since the last pull.
        """
        self._comm.traffic.bytes_sent += gradient.nbytes
        staleness: int = self._ask("pushing a gradient to", gradient)
        return staleness

    def _ask(self, doing: str, gradient: Tensor | None) -> Any:
        with self._comm.clock.phase("communicate"), rpc_errors(SERVER, doing):
            what, held_s = rpc.rpc_async(
                worker_name(SERVER), _ask, args=(self._comm.rank, gradient), timeout=self._timeout_s
            ).wait()
        self._comm.clock.transfer("communicate", "wait", held_s)
        return what
