"""Tensor parallelism: every layer's weights are shared out, and all nodes work on the same samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.core.strategy import Strategy

if TYPE_CHECKING:
    from trainer.models.base import Model
    from trainer.training.session import Session


class TensorParallel(Strategy):
    """Split pairs of layers over the ranks, column- then row-parallel (Shoeybi et al. 2019).

    The mathematics is that of `serial`, dropout included.

    Of a pair's first layer a rank has some of the outputs (columns of a Linear, output channels of a
    Conv2d), of its second the inputs that take them up; nothing is exchanged in between. The sum over ranks
    is the second's output (their g), and on the way back the gradient of the first's input (their f).

    What is in no pair is replicated: normalisations outside of pairs, and layers that are left over. Those
    are stems and classifiers, small on one side; shared out, they would save few weights, and cost an
    all-gather of their output and an all-reduce of the gradient of their input.

    A pair costs each rank, in a step with B samples on P ranks, 4B·(in + out)·2(P − 1)/P bytes: in and out
    are the numbers per sample that come to the first layer and leave the second. Images have no gradient:
    for a first layer that they come to, in is 0.

    Source: Shoeybi et al. 2019, "Megatron-LM", Sec. 3.
    """

    transports: ClassVar[tuple[str, ...]] = ("gloo", "mpi", "rpc", "memory")
    partitions_model: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False
    full_gradients: ClassVar[bool] = False

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        if ranks == 1:
            return None
        if not model.tensor_parallel_pairs:
            return "it has no pair of layers to shard"
        first, second, units = min(model.tensor_parallel_pairs, key=lambda pair: pair.units)
        if ranks <= units:
            return None
        return f"{first} and {second} can be sharded over 1 to {units} ranks"

    def train(self, session: Session) -> None:
        from trainer.parallel.tensor_replica import Slice

        replica = Slice(session.task, session.clock, session.comm)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()
