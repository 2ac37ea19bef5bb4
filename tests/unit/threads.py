"""Run ranks as threads of the test process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock

Body = Callable[[MemoryCommunicator], Any]


def running_clock() -> Clock:
    clock = Clock()
    clock.start()
    return clock


def together(size: int, body: Body, clock: Callable[[], Clock] = running_clock) -> list[Any]:
    """Run `body` on `size` ranks; return each rank's result, or the exception it raised."""
    room = ThreadGroup(size, timeout_s=10)
    outcomes: list[Any] = [None] * size

    def run(rank: int) -> None:
        comm = MemoryCommunicator(rank, size, clock(), room)
        try:
            outcomes[rank] = body(comm)
        except Exception as error:
            outcomes[rank] = error
            comm.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive(), "a rank waits for ever"
    return outcomes
