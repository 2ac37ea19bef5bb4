"""Hogwild: processes that update one model in shared memory, without a lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.strategy import Strategy

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from torch import Tensor

    from trainer.core.context import NodeContext
    from trainer.core.events import EventWriter
    from trainer.core.result import TrainResult
    from trainer.training.task import Task


@dataclass(frozen=True)
class Shared:
    """weights: parameters and buffers in shared memory. gate: where the ranks wait for each other."""

    weights: list[Tensor]
    gate: Barrier


class Hogwild(Strategy):
    """Update one model in shared memory from several processes without locks (Recht et al. 2011).

    Every rank reads and writes the same weights in shared memory whenever it likes; nobody locks. Each
    rank keeps its own gradient and optimiser state. The order of the updates is the operating
    system's, so equal seeds do not give equal weights.

    Source: Recht, Ré, Wright and Niu 2011, "Hogwild!", Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = ("memory",)
    forks: ClassVar[bool] = True
    evaluates_together: ClassVar[bool] = False
    caveat: ClassVar[str | None] = (
        "one machine only: its ranks share memory, nothing crosses a link, "
        "and equal seeds do not give equal weights"
    )

    def share(self, context: NodeContext, task: Task) -> Shared:
        import torch.multiprocessing as mp

        model = task.build_model(rank=0).share_memory()
        return Shared([*model.parameters(), *model.buffers()], mp.get_context("fork").Barrier(context.size))

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.training.session import Session

        shared: Shared = context.shared
        session = Session(context, task, events, Gate(Clock(), shared.gate))
        replica = session.replica()
        replica.share(shared.weights)
        session.start(replica)
        for epoch in session.epochs(replica, model="own"):
            for batch in session.batches(epoch, replica):
                replica.backward(batch)
                replica.step()
        return session.result(replica)


class Gate(MemoryCommunicator):
    """The ranks exchange nothing but weights: each is alone, but for a gate where all wait for all."""

    def __init__(self, clock: Clock, gate: Barrier) -> None:
        super().__init__(0, 1, clock, ThreadGroup(1))
        self._gate = gate

    def barrier(self) -> None:
        with self.clock.phase("wait"):
            self._gate.wait()
