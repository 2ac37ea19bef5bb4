"""Tensor parallelism: each rank holds a shard of the layers, and all ranks train on the same samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.core.strategy import CPU_TRANSPORTS, Equal, Interval, Recompute, Strategy

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.comm.base import Communicator
    from trainer.models.base import Model
    from trainer.parallel.tensor_layers import Layer
    from trainer.training.session import Session


class TensorParallel(Strategy):
    """Split pairs of layers over the ranks, column- then row-parallel (Shoeybi et al. 2019).

    The mathematics is that of `serial`, dropout included. A pair of layers on P ranks is

        Y = XA + a    X: (B, in), A: (in, hidden)     column-parallel: A = [A_1 … A_P] by columns
        Z = YB + b    Y: (B, hidden), B: (hidden, out)    row-parallel: B by rows, Z = Σ_i Y_i B_i + b

    Every rank has X and Z. Rank i holds A_i: (in, hidden/P), its part of the bias a, and
    B_i: (hidden/P, out); it computes Y_i = X A_i + a_i and Y_i B_i. The bias b is replicated. Elementwise
    functions, normalisation and dropout between the layers apply to Y_i, so the only exchange is the sum
    over ranks: of Y_i B_i in the forward pass (g in the paper) and of the gradient of X in the backward
    pass (f). For a Conv2d, columns are output channels and rows are input channels.

    Layers in no pair are replicated. They are stems and classifiers with one small dimension: sharding them
    would save little memory and cost an all-gather of the output and an all-reduce of the input's gradient.

    Traffic of a pair per rank and step: 4B·(in + out)·2(P − 1)/P bytes, where in and out are the sizes of a
    sample's X and Z. Images need no gradient, so in is 0 for the first layer of the model.

    With `sequence_parallel`, for models of tokens, all that is between the pairs is divided, too: rank i
    has X and Z of its tokens alone (Korthikanti et al. 2022, Sec. 4.2.2). The sum over ranks becomes a
    reduce-scatter over tokens (g̅), and an all-gather of X comes before each pair (g). Both together send
    the bytes of the all-reduce. Norms, dropout and residuals store 1/P of their activations; the gathered X
    is stored whole, where the paper gathers it again. Replicated weights, such as those of norms, see some
    tokens only, so their gradients are summed over ranks. Here the embedding and the head are divided by
    tokens as well.

    Sources: Shoeybi et al. 2019, "Megatron-LM", Sec. 3; Korthikanti et al. 2022, "Reducing Activation
    Recomputation in Large Transformer Models", Sec. 4.2.
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    autocasts: ClassVar[bool] = False
    equals: ClassVar[Equal | None] = "serial"
    partitions_model: ClassVar[bool] = True
    needs_thread: ClassVar[bool] = True
    uses_partition: ClassVar[bool] = False
    full_gradients: ClassVar[bool] = False
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    layouts: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"sequence_parallel": True})

    sequence_parallel: bool = Field(False, description="divide the tokens between the pairs of layers")

    @property
    def splits_samples(self) -> bool:
        return self.sequence_parallel

    def validation_error(self, model: Model, ranks: int, batch_size: int) -> str | None:
        if self.sequence_parallel and ranks > 1 and not model.takes_tokens:
            return "sequence_parallel divides tokens, and the model takes other inputs"
        return sharding_error(model, ranks)

    def recompute_error(self, recompute: Recompute) -> str | None:
        return sharded_recompute_error(recompute)

    def train(self, session: Session) -> None:
        from trainer.parallel.tensor_replica import SequenceParallelReplica, TensorParallelReplica

        shared = session.task, session.clock, session.comm
        if self.sequence_parallel and session.comm.size > 1:
            replica: TensorParallelReplica = SequenceParallelReplica(
                *shared, column_parallel_of_tokens, row_parallel_to_tokens
            )
        else:
            replica = TensorParallelReplica(*shared, column_parallel, row_parallel)
        session.start(replica)
        for epoch in session.epochs():
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()


def sharding_error(model: Model, ranks: int) -> str | None:
    """Return why the layers of a model cannot be sharded over so many ranks, or None."""
    if ranks == 1:
        return None
    if not model.tensor_parallel_pairs:
        return "it has no pair of layers to shard"
    column, row, units = min(model.tensor_parallel_pairs, key=lambda pair: pair.units)
    if ranks <= units:
        return None
    return f"{column} and {row} can be sharded over 1 to {units} ranks"


def sharded_recompute_error(recompute: Recompute) -> str | None:
    """Return why sharded layers cannot run again in a backward pass, or None."""
    if recompute == "selective":  # no exchange is in the part that runs again
        return None
    return "its layers exchange activations in a forward pass; allowed: none, selective"


def column_parallel(x: Tensor, layer: Layer, comm: Communicator) -> Tensor:
    """Return Y_i = X A_i + a_i, this rank's features or channels. X is equal on all ranks."""
    from trainer.parallel.tensor_layers import copy_to_ranks

    x = copy_to_ranks(x, comm)  # f: identity forward, all-reduce of the gradient backward
    y: Tensor = layer(x)
    return y


def row_parallel(y: Tensor, layer: Layer, comm: Communicator) -> Tensor:
    """Return Z = Σ_i Y_i B_i + b, equal on all ranks. y: this rank's Y_i."""
    from trainer.parallel.tensor_layers import add_bias, multiply, reduce_from_ranks

    z = reduce_from_ranks(multiply(y, layer), comm)  # g: all-reduce forward, identity backward
    return add_bias(z, layer)  # after the sum, or it would be added P times


def column_parallel_of_tokens(x: Tensor, layer: Layer, comm: Communicator) -> Tensor:
    """Return Y_i = X A_i + a_i for all tokens. x: X of this rank's tokens, (B, tokens of this rank, in)."""
    from trainer.parallel.tensor_layers import gather_tokens

    y: Tensor = layer(gather_tokens(x, comm))  # g: all-gather forward, reduce-scatter backward
    return y


def row_parallel_to_tokens(y: Tensor, layer: Layer, comm: Communicator) -> Tensor:
    """Return Z = Σ_i Y_i B_i + b of this rank's tokens. y: this rank's Y_i, of all tokens."""
    from trainer.parallel.tensor_layers import add_bias, multiply, scatter_tokens

    z = scatter_tokens(multiply(y, layer), comm)  # g̅: reduce-scatter forward, all-gather backward
    return add_bias(z, layer)
