"""Serial: plain mini-batch training on one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.core.strategy import Interval, Strategy

if TYPE_CHECKING:
    from trainer.training.session import Session


class Serial(Strategy):
    """Train on one node with the whole training set: the baseline of every speedup."""

    transports: ClassVar[tuple[str, ...]] = ("memory", "nccl")
    max_nodes: ClassVar[int | None] = 1
    uses_partition: ClassVar[bool] = False
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()
