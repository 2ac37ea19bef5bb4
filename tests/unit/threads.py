"""Run ranks as threads of the test process, also over a stand-in for torch RPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.rpc import Sum
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


class TorchRpc:
    """What ranks call of torch.distributed.rpc. Each has mailboxes and sums of its own."""

    def __init__(self) -> None:
        self.here = threading.local()
        self._mailboxes, self._sums = dict[Any, SimpleQueue[Tensor]](), dict[Any, Sum]()

    def mailbox(self, group: str, source: int) -> SimpleQueue[Tensor]:
        return self._mailboxes.setdefault((self.here.rank, group, source), SimpleQueue())

    def sum(self, name: str, size: int) -> Sum:
        return self._sums.setdefault((self.here.rank, name), Sum(size))

    def rpc_async(self, name: str, call: Callable[..., None], args: Sequence[Any], timeout: float) -> Any:
        """A thread of the receiver handles a message, after a while: another one may overtake it."""
        sent = [each.clone() if isinstance(each, Tensor) else each for each in args]
        rank, arrived = int(name.removeprefix("node-")), threading.Event()

        def handle() -> None:
            self.here.rank = rank
            time.sleep(0.001 * (hash(args[0]) % 3))
            call(*sent)
            arrived.set()

        threading.Thread(target=handle, daemon=True).start()
        return SimpleNamespace(wait=lambda: arrived.wait(10))
