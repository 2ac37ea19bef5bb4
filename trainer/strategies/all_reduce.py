"""All-reduce: average the gradients in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

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
    compression the ranks exchange fewer bytes, and g becomes an approximation. With `bucket_mib` a part of
    the gradient is averaged while the backward pass computes the next one, as in torch's
    DistributedDataParallel; parameters must get a gradient in each step or in none.

    Source: Chen et al. 2016, "Revisiting Distributed Synchronous SGD", Sec. 2; buckets: Li et al. 2020,
    "PyTorch Distributed", Sec. 4.2.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    synchronous: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    layouts: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    uneven: Uneven = "join"
    compression: Annotated[Compression, COMPRESSIONS] = Field(
        "none", validate_default=True, description="how gradients are compressed before they are sent"
    )

    bucket_mib: float | None = Field(
        None,
        gt=0,
        le=2**20,
        description="size of a bucket of gradients in MiB, the first one with 1 MiB; null: all gradients "
        "are one, which is sent after the backward pass",
    )

    @model_validator(mode="after")
    def _check_buckets(self) -> Self:
        if self.bucket_mib is not None and not isinstance(self.compression, NoneCompression):
            raise ValueError("bucket_mib: buckets are not compressed; leave out one of both")
        return self

    @property
    def overlaps_backward(self) -> bool:  # type: ignore[override]
        return self.bucket_mib is not None

    def stand_in(self) -> Strategy | None:
        return self

    @property
    def not_checkpointed(self) -> str | None:
        return self.compression.not_checkpointed

    def step_bytes(self, gradient_bytes: int, rank: int, ranks: int) -> float | None:
        plain = isinstance(self.compression, NoneCompression)
        return 2 * gradient_bytes * (ranks - 1) / ranks if plain else None

    def train(self, session: Session) -> None:
        from trainer.parallel.buckets import Buckets

        replica = session.replica()
        compressor = None
        if not isinstance(self.compression, NoneCompression):
            compressor = self.compression.build(session.comm, replica.shapes, session.task.rngs)
        buckets = None
        if self.bucket_mib is not None:
            buckets = Buckets(replica, lambda part: session.comm.iall_reduce(part, "mean"), self.bucket_mib)
        session.start(replica, warm_up=buckets.backward if buckets else None)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                if buckets is not None:
                    buckets.backward(batch, weight)  # averages a bucket while it computes the next one
                    replica.step()
                    continue
                replica.backward(batch, weight)
                gradient = replica.gradient()
                if compressor is None:
                    session.comm.all_reduce(gradient, "mean")
                else:
                    compressor.mean(gradient, replica.lr)
                replica.set_gradient(gradient)
                replica.step()
