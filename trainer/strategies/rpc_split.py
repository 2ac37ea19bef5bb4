"""Model partitioning over RPC: one stage per node, driven by a master with distributed autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import Equal, Recompute, SplitPoints, Strategy
from trainer.models import split_points as splitting
from trainer.parallel.schedules import bubble

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.training.session import Session


class RpcSplit(Strategy):
    """Split the model over ranks that a master drives by torch RPC (Damania et al. 2023).

    Rank 0, the master, has the samples and computes the loss. Every other rank holds a stage of the model
    and its optimizer. Only one batch is in flight, so one node computes while the others wait: this saves
    memory but no time (`pipeline` saves both).

    Bytes: the master sends images to the first stage. Each later stage gets a reference to the output of
    the previous one and fetches it directly, so activations do not pass through the master. The last stage
    returns log-probabilities to the master. Gradients take the same way back; images need none.

    Time: while stages compute, the master waits. The whole backward pass and the optimizer step count as
    waiting, because torch does not show the few messages that the master sends for them.

    Source: Damania et al. 2023, "PyTorch RPC": remote calls, distributed autograd and DistributedOptimizer.
    The mathematics is that of `serial`.
    """

    transports: ClassVar[tuple[str, ...]] = ("rpc",)
    autocasts: ClassVar[bool] = False
    virtual: ClassVar[bool] = False
    equivalent: ClassVar[str | None] = "pipeline"
    equals: ClassVar[Equal | None] = "serial"
    min_nodes: ClassVar[int] = 2
    partitions_model: ClassVar[bool] = True
    cuts_model: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False
    uses_replica: ClassVar[bool] = False

    split_points: SplitPoints = Field(
        None,
        description="first block of every stage but the first; null: two stages are split where the fully "
        "connected layers begin, more stages are chosen as in pipeline",
    )

    def replica_of(self, rank: int, ranks: int) -> int:
        # There is one replica. Ranks that hold its stages get no samples, as servers do.
        return rank

    def sees_inputs(self, rank: int, ranks: int) -> bool:
        return rank == 0

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return splitting.validation_error(model.names, self.split_points, ranks - 1)

    def bubble(self, ranks: int) -> float | None:
        return bubble(ranks - 1, parts=1)  # one stage computes at a time

    def recompute_error(self, recompute: Recompute) -> str | None:
        return "torch runs its backward pass in threads of its own; allowed: none"

    def train(self, session: Session) -> None:
        split_points = self._choose_split_points(session)
        if session.rank == 0:
            self._run_master(session)
        else:
            self._run_stage(session, split_points)

    def _run_master(self, session: Session) -> None:
        from torch.distributed import autograd

        from trainer.parallel.rpc_stages import RpcMaster

        master = RpcMaster(session.task, session.comm, session.timeout_s)
        session.comm.barrier()  # all stages are ready
        optimizer = master.distributed_optimizer()
        session.start(master)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                with master.failures_as_communication_errors(), autograd.context() as context_id:
                    loss = master.forward(batch)
                    with master.waiting_for_stages():
                        autograd.backward(context_id, [loss])  # type: ignore[attr-defined]
                        optimizer.step(context_id)
            master.end_epoch(batch.steps)

    def _run_stage(self, session: Session, split_points: list[str]) -> None:
        from trainer.parallel.rpc_stages import RpcStage

        stage = RpcStage(session.task, session.comm, split_points, session.timeout_s)
        session.comm.barrier()
        session.start(stage)
        for _ in session.epochs():
            for _ in session.server_steps(range(stage.run_epoch()), marked=False):
                pass  # the master's requests have taken the steps

    def _choose_split_points(self, session: Session) -> list[str]:
        from trainer.parallel.pipeline_stage import choose_split_points

        stages, classifier = session.size - 1, session.spec.model.classifier
        if self.split_points is None and stages == 2 and classifier is not None:
            return [classifier]
        return choose_split_points(session.task, session.comm, stages, self.split_points, micro_batches=1)
