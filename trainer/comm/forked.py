"""A communicator for forked ranks that share memory: they need a barrier and send no messages."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier

from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock


class ForkedCommunicator(MemoryCommunicator):
    """A world of one rank, with a barrier across the forked processes."""

    def __init__(self, clock: Clock, barrier: Barrier) -> None:
        super().__init__(0, 1, clock, ThreadGroup(1))
        self._process_barrier = barrier

    def barrier(self) -> None:
        with self.clock.phase("wait"):
            self._process_barrier.wait()
