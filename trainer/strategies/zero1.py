"""ZeRO-1: DDP with the optimizer state sharded over the ranks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.core.strategy import Equal, Interval, Strategy, Uneven
from trainer.models.base import several_types

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.training.session import Session


class Zero1(Strategy):
    """Shard the optimizer state over the ranks, ZeRO stage 1 (Rajbhandari et al. 2020).

    The same mathematics as `all_reduce`. Each tensor has an owner. DDP gives all ranks the mean gradient;
    the owner updates the tensor, with the only copy of its optimizer state, and broadcasts it. For n bytes
    of weights a rank sends 2n(P−1)/P for the mean and n(P−1)/P on average for the broadcasts. The paper
    sends two thirds of that, since it reduces only the owner's part of the gradient. Owners are assigned
    by size, largest tensor first, and tensors are not split, so the largest tensor limits the balance.

    Source: Rajbhandari et al. 2020, "ZeRO", Sec. 5.1. Owners are assigned as by torch's
    ZeroRedundancyOptimizer.
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo",)
    needs_thread: ClassVar[bool] = True
    overlaps_backward: ClassVar[bool] = True
    equivalent: ClassVar[str | None] = "all_reduce"
    equals: ClassVar[Equal | None] = "all_reduce"
    every_gradient: ClassVar[bool] = True
    synchronous: ClassVar[bool] = True
    shards_state: ClassVar[bool] = True
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    layouts: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    uneven: Uneven = "join"

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        return several_types(model)

    def train(self, session: Session) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from trainer.parallel.ddp_buckets import Alone, averaging
        from trainer.parallel.sharding import ShardedOptimizerReplica

        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")  # see ddp.py
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        ddp = DistributedDataParallel(
            session.task.build_model(session.rank),
            process_group=Alone(),  # the hook below averages
            broadcast_buffers=False,  # they are averaged after each epoch, as with other strategies
            find_unused_parameters=bool(session.spec.model.unused),
            gradient_as_bucket_view=True,  # one copy of the gradient in memory, not two
        )
        ddp.register_comm_hook(None, averaging(session.comm))
        replica = ShardedOptimizerReplica(ddp, session.task, session.comm)
        session.start(replica, warm_up=replica.backward)  # see ddp.py
        for epoch in session.epochs():
            for batch in session.synchronous_batches(epoch, self.uneven):
                # The mean of the weighted gradients over ranks is the mean over the samples of the step.
                weight = batch.share * session.size
                replica.backward(batch, weight)  # DDP averages the gradients in here
                replica.step()  # broadcasts the updated tensors
