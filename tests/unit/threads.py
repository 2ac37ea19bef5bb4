"""Run ranks as threads of the test process, also over a stand-in for torch RPC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from torch import Tensor

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


class TorchRpc:
    """What ranks call of torch.distributed.rpc. Each has mailboxes of its own."""

    def __init__(self) -> None:
        self.here, self._mailboxes = threading.local(), dict[Any, SimpleQueue[Tensor]]()

    def mailbox(self, group: str, source: int) -> SimpleQueue[Tensor]:
        return self._mailboxes.setdefault((self.here.rank, group, source), SimpleQueue())

    def rpc_async(self, name: str, call: Callable[..., None], args: Sequence[Any], timeout: float) -> Any:
        """A message arrives when it is waited for: without that, another one may overtake it."""
        sent, own = [each.clone() if isinstance(each, Tensor) else each for each in args], self.here.rank

        def wait() -> None:
            self.here.rank = int(name.removeprefix("node-"))
            call(*sent)
            self.here.rank = own

        return SimpleNamespace(wait=wait)
