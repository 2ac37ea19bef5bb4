"""ZeRO-1: as DDP, but every tensor's optimiser state is on one rank alone."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, ClassVar

from trainer.compression.none import NoneCompression
from trainer.core.strategy import Strategy, Uneven
from trainer.strategies.ddp import Buckets

if TYPE_CHECKING:
    from trainer.training.session import Session


class Zero1(Strategy):
    """Shard the optimizer state over the ranks, ZeRO stage 1 (Rajbhandari et al. 2020).

    The same mathematics as `all_reduce`. Every tensor has a rank that owns it; DDP gives all ranks the mean
    gradient, each steps what it owns, with an optimiser that remembers nothing else, and broadcasts it.
    For n bytes of weights a rank sends 2n(P-1)/P for the mean and n(P-1)/P on average for the broadcasts.
    The paper sends two thirds of that, since a rank needs the mean gradient of its own part alone. Owners
    are found by size, largest tensor first, and no tensor is cut: the largest decides how even it can be.

    In sight is what `ddp` has in sight, and all of the broadcasts.

    Source: Rajbhandari et al. 2020, "ZeRO", Sec. 5.1, by torch's ZeroRedundancyOptimizer with
    DistributedDataParallel, as torch documents it.
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo",)
    synchronous: ClassVar[bool] = True

    uneven: Uneven = "join"

    def train(self, session: Session) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from trainer.parallel.sharding import OwnersReplica

        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")  # see ddp.py
        # The gradient lies in the buckets, or it would be held twice.
        ddp = DistributedDataParallel(
            session.task.build_model(session.rank), broadcast_buffers=False, gradient_as_bucket_view=True
        )
        buckets = Buckets(session.comm, NoneCompression(), seed=0)
        ddp.register_comm_hook(None, lambda _, bucket: buckets.mean(bucket))
        replica = OwnersReplica(ddp, session.task, session.comm)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                replica.backward(batch, weight=batch.share * session.size)
                buckets.book_exposed()
                replica.step()
