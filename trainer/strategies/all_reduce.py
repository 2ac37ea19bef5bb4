"""All-reduce: average the gradients in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from trainer.compression.base import Compression
from trainer.core.strategy import Interval, Strategy, Uneven
from trainer.spec.registries import COMPRESSIONS

if TYPE_CHECKING:
    from trainer.training.session import Session


class AllReduce(Strategy):
    """Average the gradients over all ranks in every step (Chen et al. 2016).

    In each step the nodes' gradients become their mean over all samples of the step, so P nodes with
    batch B do what one node does with batch P·B. All replicas hold the same weights at all times.

    Source: Chen et al. 2016, "Revisiting Distributed Synchronous SGD", Sec. 2.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")
    synchronous: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    uneven: Uneven = "join"
    compression: Annotated[Compression, COMPRESSIONS] = Field(
        "none", validate_default=True, description="how gradients are made smaller before they are sent"
    )

    @property
    def not_checkpointed(self) -> str | None:
        return self.compression.not_checkpointed

    def train(self, session: Session) -> None:
        replica = session.replica()
        compressor = self.compression.build(session.comm, replica.shapes, session.task.rngs)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                replica.backward(batch, weight=batch.share * session.size)
                gradient = replica.gradient()
                compressor.mean(gradient)
                replica.set_gradient(gradient)
                replica.step()
