"""All-reduce: average the gradients in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from trainer.compression.base import Compression
from trainer.compression.none import NoneCompression
from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven
from trainer.spec.registries import COMPRESSIONS

if TYPE_CHECKING:
    from trainer.training.session import Session


class AllReduce(Strategy):
    """Average the gradients over all ranks in every step (Chen et al. 2016).

    In each step all ranks apply g = 1/n · Σ ∇loss over the n samples of the step, so P ranks with batch B
    do what one rank does with batch P·B. All replicas hold the same weights at all times. With a
    compression the ranks exchange fewer bytes, and g becomes an approximation.

    Source: Chen et al. 2016, "Revisiting Distributed Synchronous SGD", Sec. 2.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    synchronous: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    layouts: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    uneven: Uneven = "join"
    compression: Annotated[Compression, COMPRESSIONS] = Field(
        "none", validate_default=True, description="how gradients are compressed before they are sent"
    )

    @property
    def not_checkpointed(self) -> str | None:
        return self.compression.not_checkpointed

    def step_bytes(self, gradient_bytes: int, rank: int, ranks: int) -> float | None:
        plain = isinstance(self.compression, NoneCompression)
        return 2 * gradient_bytes * (ranks - 1) / ranks if plain else None

    def train(self, session: Session) -> None:
        replica = session.replica()
        compressor = None
        if not isinstance(self.compression, NoneCompression):
            compressor = self.compression.build(session.comm, replica.shapes, session.task.rngs)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                replica.backward(batch, weight)
                gradient = replica.gradient()
                if compressor is None:
                    session.comm.all_reduce(gradient, "mean")
                else:
                    compressor.mean(gradient, replica.lr)
                replica.set_gradient(gradient)
                replica.step()
