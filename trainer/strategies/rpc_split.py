"""RPC split: the model is a chain of parts, one on each node, and a master drives it by remote calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.models import cuts as cutting
from trainer.strategies.base import Cuts, Strategy
from trainer.strategies.schedules import bubble

if TYPE_CHECKING:
    from trainer.comm.base import Communicator
    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.models.base import Model
    from trainer.result import TrainResult
    from trainer.strategies.loop import Loop
    from trainer.strategies.split import Master, Part
    from trainer.task import Task


class RpcSplit(Strategy):
    """Model parallelism by remote calls, distributed autograd and DistributedOptimizer (Damania et al.
    2023, "PyTorch RPC"): the same mathematics as `serial`.

    Rank 0, the master, has the samples and the loss; every other rank holds a part of the model and its
    optimiser. One batch is on the way at a time, so one node computes and the others wait: this buys
    memory and no speed (`pipeline` is the way to both).

    Bytes: the master sends images to the first part. Every other part gets a reference to what the one
    before has made and fetches it there, not by way of the master, which would carry everything twice. The
    last part's log-probabilities come to the master, and gradients go the same way back, but for the
    images', which nobody needs.

    Time: what parts compute is waiting for the master. So is all of the backward pass and of the
    optimisers' steps, into which it cannot see, with the few messages that it sends for them.
    """

    transports: ClassVar[tuple[str, ...]] = ("rpc",)
    min_nodes: ClassVar[int] = 2
    cuts_model: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False

    cuts: Cuts = Field(
        None,
        description="blocks with which the parts of the model begin, but for the first; null: two parts "
        "are cut where the fully connected layers begin, others are balanced as in pipeline",
    )

    def replica_of(self, rank: int, ranks: int) -> int:
        # There is one; who holds a part of it gets no samples, as a server does not.
        return rank

    def sees_images(self, rank: int, ranks: int) -> bool:
        return rank == 0

    def misfit(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return cutting.misfit(model.names, self.cuts, ranks - 1)

    def bubble(self, ranks: int) -> float | None:
        return bubble(ranks - 1, micro_batches=1)  # one part computes at a time

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        from trainer.strategies.loop import Loop
        from trainer.strategies.split import Master, Part

        loop = Loop(context, task, events)
        cuts = self._cuts(task, loop.comm)
        if context.rank == 0:
            return self._drive(loop, Master(task, loop.comm, context.timeout_s))
        return self._hold(loop, Part(task, loop.comm, cuts, context.timeout_s))

    def _drive(self, loop: Loop, master: Master) -> TrainResult:
        from torch.distributed import autograd

        loop.comm.barrier()  # all parts are there
        optimizer = master.optimizer()
        loop.start(master)
        for epoch in loop.epochs(master):
            for batch in loop.batches(epoch, master):
                with master.in_reach(), autograd.context() as step:
                    loss = master.forward(batch)
                    with loop.clock.phase("wait"):
                        autograd.backward(step, [loss])  # type: ignore[attr-defined]
                        optimizer.step(step)
            master.over(batch.steps)
        return loop.result(master)

    def _hold(self, loop: Loop, part: Part) -> TrainResult:
        loop.comm.barrier()
        loop.start(part)
        for _ in loop.epochs(part):
            for _ in loop.served(part.serve()):
                pass  # they were taken by remote calls
        return loop.result(part)

    def _cuts(self, task: Task, comm: Communicator) -> list[str]:
        from trainer.strategies.stage import cut

        parts, head = comm.size - 1, task.spec.model.head
        if self.cuts is None and parts == 2 and head is not None:
            return [head]
        return cut(task, comm, parts, self.cuts, micro_batches=1)
