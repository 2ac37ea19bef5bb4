"""Requests over torch RPC: they enter a queue, from which the server's main thread takes them.

No lock is needed, the RPC threads that enqueue requests never wait, and the server's clock shows what the
server does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from trainer.comm.base import Communicator
from trainer.comm.requests import Request, Requests
from trainer.comm.rpc_calls import Heartbeat, rpc_errors, wait_and_look, worker_name


@dataclass(frozen=True)
class RpcRequest(Request):
    """A request that has arrived.

    Attributes:
        arrived: seconds of `time.monotonic`.
        response: completes with the answer and the seconds that the request spent in the server.
    """

    arrived: float
    response: Future[Any]


# Requests to this process. Module state, because torch RPC requests name functions, not objects.
_arrived: SimpleQueue[RpcRequest] = SimpleQueue()


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def _arrive(rank: int, payload: Tensor | None) -> Future[Any]:
    """Enqueue a request. Runs in an RPC thread of the server's process."""
    response: Future[Any] = Future()
    _arrived.put(RpcRequest(rank, payload, time.monotonic(), response))
    return response


class RpcRequests(Requests):
    """The channel of a rank of an RPC network."""

    def __init__(self, comm: Communicator, timeout_s: float) -> None:
        """timeout_s: the time limit of each request."""
        self._comm, self._timeout_s = comm, timeout_s
        self._rank = comm.parent_ranks[comm.rank]  # in the run, also when others are lost
        self._heartbeats: dict[int, Heartbeat] = {}

    def ask(self, server: int, payload: Tensor | None, doing: str) -> tuple[Tensor | int, float]:
        with rpc_errors(server, doing):
            sent = (self._rank, payload)
            answer = rpc.rpc_async(worker_name(server), _arrive, args=sent, timeout=self._timeout_s)
            found: tuple[Tensor | int, float] = wait_and_look(answer, self._comm.leave_lost)
        return found

    def take(self, timeout_s: float) -> RpcRequest | None:
        try:
            return _arrived.get(timeout=timeout_s)
        except Empty:
            return None

    def answer(self, request: Request, value: Tensor | int) -> None:
        assert isinstance(request, RpcRequest)  # noqa: S101  (`take` has returned it)
        request.response.set_result((value, time.monotonic() - request.arrived))

    def check(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._heartbeats.setdefault(rank, Heartbeat(rank, self._timeout_s)).check()
