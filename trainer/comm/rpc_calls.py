"""Calls over torch RPC: names, errors, and whether the rank that is called still lives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from trainer.comm.errors import communication_errors

HEARTBEAT_S = 0.5  # between pings of a rank that this rank waits for
PING_TIMEOUT_S = 3.0  # for an idle rank to answer a ping


def worker_name(rank: int) -> str:
    """The name of a rank in torch RPC."""
    return f"node-{rank}"


@contextmanager
def rpc_errors(rank: int, doing: str) -> Iterator[None]:
    """Re-raise the failure of a request to `rank` as a CommunicationError: "sending to node 1 failed"."""
    with communication_errors(f"{doing} node {rank}"):
        yield


class Heartbeat:
    """Pings a rank that this rank waits for: a mailbox does not show that the sender has ended."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._answer: Any = None

    def check(self) -> None:
        """Ping, unless an answer is outstanding: a rank that computes may answer late.

        Raises CommunicationError if the rank did not answer within `timeout_s`, or has ended.
        """
        from torch.distributed import rpc

        with rpc_errors(self._rank, "waiting for"):
            if self._answer is None or self._answer.done():
                if self._answer is not None:
                    self._answer.wait()
                self._answer = rpc.rpc_async(worker_name(self._rank), _pong, timeout=self._timeout_s)


def wait_and_look(answer: Any, look: Callable[[], object]) -> Any:
    """The value of a remote call. Calls `look` every HEARTBEAT_S meanwhile, which may raise."""
    answered = threading.Event()
    answer.then(lambda _: answered.set())
    while not answered.wait(HEARTBEAT_S):
        look()
    return answer.wait()


def check_alive(ranks: Iterable[int]) -> None:
    """Ping the ranks. Raises CommunicationError unless each answers within PING_TIMEOUT_S."""
    from torch.distributed import rpc

    calls = [(rank, rpc.rpc_async(worker_name(rank), _pong, timeout=PING_TIMEOUT_S)) for rank in ranks]
    for rank, call in calls:
        with rpc_errors(rank, "calling"):
            call.wait()


def _pong() -> None:
    """Runs in the process that is pinged."""
