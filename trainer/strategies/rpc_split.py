"""RPC split: the model is a chain of parts, one on each node, and a master drives it by remote calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import SplitPoints, Strategy
from trainer.models import split_points as cutting
from trainer.parallel.schedules import bubble

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.parallel.rpc_stages import Master, Part
    from trainer.training.session import Session


class RpcSplit(Strategy):
    """Split the model over ranks that a master drives by torch RPC (Damania et al. 2023).

    Rank 0, the master, has the samples and the loss; every other rank holds a part of the model and its
    optimiser. One batch is on the way at a time, so one node computes and the others wait: this buys
    memory and no speed (`pipeline` is the way to both).

    Bytes: the master sends images to the first part. Every other part gets a reference to what the one
    before has made and fetches it there, not by way of the master, which would carry everything twice. The
    last part's log-probabilities come to the master, and gradients go the same way back, but for the
    images', which nobody needs.

    Time: what parts compute is waiting for the master. So is all of the backward pass and of the
    optimisers' steps, into which it cannot see, with the few messages that it sends for them.

    Source: Damania et al. 2023, "PyTorch RPC": remote calls, distributed autograd and DistributedOptimizer.
    The mathematics is that of `serial`.
    """

    transports: ClassVar[tuple[str, ...]] = ("rpc",)
    min_nodes: ClassVar[int] = 2
    partitions_model: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False

    split_points: SplitPoints = Field(
        None,
        description="blocks with which the parts of the model begin, but for the first; null: two parts "
        "are cut where the fully connected layers begin, others are balanced as in pipeline",
    )

    def replica_of(self, rank: int, ranks: int) -> int:
        # There is one; who holds a part of it gets no samples, as a server does not.
        return rank

    def sees_images(self, rank: int, ranks: int) -> bool:
        return rank == 0

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return cutting.validation_error(model.names, self.split_points, ranks - 1)

    def bubble(self, ranks: int) -> float | None:
        return bubble(ranks - 1, micro_batches=1)  # one part computes at a time

    def train(self, session: Session) -> None:
        from trainer.parallel.rpc_stages import Master, Part

        split_points = self._split_points(session)
        if session.rank == 0:
            self._drive(session, Master(session.task, session.comm, session.timeout_s))
        else:
            self._hold(session, Part(session.task, session.comm, split_points, session.timeout_s))

    def _drive(self, session: Session, master: Master) -> None:
        from torch.distributed import autograd

        session.comm.barrier()  # all parts are there
        optimizer = master.optimizer()
        session.start(master)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                with master.in_reach(), autograd.context() as step:
                    loss = master.forward(batch)
                    with session.clock.phase("wait"):
                        autograd.backward(step, [loss])  # type: ignore[attr-defined]
                        optimizer.step(step)
            master.over(batch.steps)

    def _hold(self, session: Session, part: Part) -> None:
        session.comm.barrier()
        session.start(part)
        for _ in session.epochs():
            for _ in session.server_steps(part.serve()):
                pass  # they were taken by remote calls

    def _split_points(self, session: Session) -> list[str]:
        from trainer.parallel.pipeline_stage import cut

        stages, classifier = session.size - 1, session.spec.model.classifier
        if self.split_points is None and stages == 2 and classifier is not None:
            return [classifier]
        return cut(session.task, session.comm, stages, self.split_points, micro_batches=1)
