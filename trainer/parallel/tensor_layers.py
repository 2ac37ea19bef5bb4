"""Sharded layers for tensor parallelism, and the two functions by which their ranks communicate.

The forward functions of column- and row-parallel layers are in trainer/strategies/tensor_parallel.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from trainer.comm.base import Communicator
from trainer.models.base import ParallelPair
from trainer.models.layers.dropout import Dropout
from trainer.parallel.exchanged import exchanged
from trainer.training.replica import sum_over_ranks

Layer = nn.Linear | nn.Conv2d
LayerForward = Callable[[Tensor, Layer, Communicator], Tensor]
NORM_STATE = ("weight", "bias", "running_mean", "running_var")  # one element per channel


@dataclass(frozen=True)
class Sharding:
    """How a dimension is divided over the ranks: rank 0 has the first sizes[0] elements, and so on."""

    sizes: tuple[int, ...]
    rank: int

    @classmethod
    def of_units(cls, units: int, unit_size: int, comm: Communicator) -> Sharding:
        """Divide `units` units of `unit_size` elements each. The first ranks get the remainder."""
        quotient, remainder = divmod(units, comm.size)
        sizes = ((quotient + (rank < remainder)) * unit_size for rank in range(comm.size))
        return cls(tuple(sizes), comm.rank)

    def repeated(self, times: int) -> Sharding:
        """The sharding after each element has become `times` elements, as nn.Flatten does with channels."""
        return Sharding(tuple(size * times for size in self.sizes), self.rank)

    def shard(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's shard of a full tensor along `dim`, as a view."""
        start = sum(self.sizes[: self.rank])
        return tensor.narrow(dim, start, self.sizes[self.rank])


class ModelSharder:
    """Replaces the blocks of a model by this rank's shards, block by block in forward order.

    On one rank, it replaces nothing.

    Attributes:
        shardings: the sharding of each sharded tensor, and its dimension.
    """

    def __init__(
        self, pairs: Sequence[ParallelPair], comm: Communicator, column: LayerForward, row: LayerForward
    ) -> None:
        """column, row: forward functions of column- and row-parallel layers."""
        self.shardings: dict[Tensor, tuple[Sharding, int]] = {}
        pairs = pairs if comm.size > 1 else []
        self._column_layers = {pair.column: pair for pair in pairs}
        self._row_layers = {pair.row: pair for pair in pairs}
        self._comm, self._column, self._row = comm, column, row
        # Of the channels between a column-parallel layer and its row-parallel one.
        self._channels: Sharding | None = None

    def __call__(self, name: str, block: nn.Module) -> nn.Module:
        """Return this rank's shard of a block. The block's weights must be contiguous."""
        chain = nn.Sequential()
        chain.add_module(name, block)
        for path, layer in [*chain.named_modules()][1:]:  # without the chain itself
            if path in self._column_layers:
                pair = self._column_layers[path]
                chain.set_submodule(path, self._shard_columns(cast("Layer", layer), pair.units))
            elif path in self._row_layers:
                pair = self._row_layers[path]
                chain.set_submodule(path, self._shard_rows(cast("Layer", layer), pair.units))
            elif self._channels is not None:
                chain.set_submodule(path, self._shard_between(layer, self._channels))
        return chain.get_submodule(name)

    def _shard_columns(self, layer: Layer, units: int) -> nn.Module:
        """A = [A_1 … A_P] by columns: torch stores A transposed, so these are rows of `layer.weight`."""
        self._channels = Sharding.of_units(units, len(layer.weight) // units, self._comm)
        self._shard_state(layer, ("weight", "bias"), self._channels)
        return ParallelLayer(layer, self._comm, self._column)

    def _shard_rows(self, layer: Layer, units: int) -> nn.Module:
        """B by rows, sharded as the units of the column-parallel layer are. Its bias is replicated."""
        inputs = Sharding.of_units(units, layer.weight.shape[1] // units, self._comm)
        self._shard_state(layer, ("weight",), inputs, dim=1)
        self._channels = None
        return ParallelLayer(layer, self._comm, self._row)

    def _shard_between(self, layer: nn.Module, channels: Sharding) -> nn.Module:
        if isinstance(layer, Dropout):
            return ShardedDropout(layer, channels)
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            if isinstance(layer, nn.GroupNorm):
                layer.num_groups = layer.num_groups * channels.sizes[channels.rank] // layer.num_channels
                layer.num_channels = channels.sizes[channels.rank]
            self._shard_state(layer, NORM_STATE, channels)
        elif [*layer.parameters(recurse=False)]:
            raise TypeError(f"cannot shard a {type(layer).__name__} between two tensor-parallel layers")
        return layer

    def _shard_state(
        self, layer: nn.Module, names: Sequence[str], sharding: Sharding, dim: int = 0
    ) -> None:
        """Replace the layer's tensors of these names by this rank's shards."""
        for name in names:
            full: Tensor | None = getattr(layer, name, None)
            if full is not None:
                shard = sharding.shard(full.detach(), dim).clone()
                shard = nn.Parameter(shard) if isinstance(full, nn.Parameter) else shard
                setattr(layer, name, shard)
                self.shardings[shard] = sharding, dim

    def sharded(self, parameters: Iterable[Tensor]) -> Tensor:
        """Which parameters are shards, shape (parameters,)."""
        found = [each in self.shardings for each in parameters]
        return torch.tensor(found, dtype=torch.bool, device=self._comm.device)

    def squared_norm(self, squares: Tensor, sharded: Tensor) -> Tensor:
        """The squared norm of whole tensors, shape (1,): shards add up, replicas count once.

        Every rank calls it.

        Args:
            squares: those of this rank's tensors, shape (tensors,).
            sharded: which of them are shards.
        """
        return sum_over_ranks(squares[sharded], self._comm, copied=squares[~sharded])

    def full(self, tensors: Sequence[Tensor]) -> Tensor:
        """The whole tensors, flat: gathered shards, and this rank's replicas. Every rank calls it."""
        return torch.cat([self._gather(tensor).reshape(-1) for tensor in tensors] or [torch.zeros(0)])

    def _gather(self, tensor: Tensor) -> Tensor:
        """Return the full tensor of a shard; a replicated tensor as it is."""
        mine = tensor.detach()
        if tensor not in self.shardings:
            return mine
        sharding, dim = self.shardings[tensor]
        shards = []
        for rank, size in enumerate(sharding.sizes):
            shape = [*mine.shape[:dim], size, *mine.shape[dim + 1 :]]
            shard = mine.reshape(-1).clone() if rank == self._comm.rank else mine.new_empty(prod(shape))
            self._comm.broadcast(shard, root=rank)
            shards.append(shard.view(shape))
        return torch.cat(shards, dim)


class ParallelLayer(nn.Module):
    """A shard of a Linear or Conv2d with the forward function of a column- or row-parallel layer."""

    def __init__(self, layer: Layer, comm: Communicator, forward: LayerForward) -> None:
        super().__init__()
        self.layer, self._comm, self._forward = layer, comm, forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(x, self.layer, self._comm)


class ShardedDropout(Dropout):
    """Dropout of a shard of the channels: it draws the mask of all channels, as serial training does."""

    def __init__(self, full: Dropout, channels: Sharding) -> None:
        super().__init__(full.probability, full.generator)
        self._full, self._channels = full, channels

    def mask(self, x: Tensor) -> Tensor:
        features = self._channels.repeated(x.shape[1] // self._channels.sizes[self._channels.rank])
        # Draw in the memory order of the full activations: channels last.
        full = x.new_empty(len(x), *x.shape[2:], sum(features.sizes)).movedim(-1, 1)
        return features.shard(self._full.mask(full), dim=1)


def copy_to_ranks(x: Tensor, comm: Communicator) -> Tensor:
    """f of Shoeybi et al.: the identity forward, an all-reduce of the gradient backward."""
    return exchanged(x, comm, _same, _all_reduce)


def reduce_from_ranks(x: Tensor, comm: Communicator) -> Tensor:
    """g of Shoeybi et al.: an all-reduce forward, the identity backward."""
    return exchanged(x, comm, _all_reduce, _same)


def gather_tokens(x: Tensor, comm: Communicator) -> Tensor:
    """g of Korthikanti et al.: an all-gather of the tokens forward, a reduce-scatter backward."""
    return exchanged(x, comm, _gather, _reduce_scatter)


def scatter_tokens(x: Tensor, comm: Communicator) -> Tensor:
    """g̅ of Korthikanti et al.: a reduce-scatter over tokens forward, an all-gather backward."""
    return exchanged(x, comm, _reduce_scatter, _gather)


def multiply(x: Tensor, layer: Layer) -> Tensor:
    """Apply the weight of a layer without its bias.

    It calls the layer, because SplitLayers replaces the forward function of layers.
    """
    bias, layer.bias = layer.bias, None
    try:
        product: Tensor = layer(x)
    finally:
        layer.bias = bias
    return product


def add_bias(x: Tensor, layer: Layer) -> Tensor:
    """Add the bias of a layer, if it has one, to features (last dimension) or channels (dimension 1)."""
    if layer.bias is None:
        return x
    return x + (layer.bias if isinstance(layer, nn.Linear) else layer.bias.view(-1, 1, 1))


def _same(x: Tensor, comm: Communicator) -> Tensor:
    return x.view_as(x)


def _all_reduce(x: Tensor, comm: Communicator) -> Tensor:
    """Return the sum over ranks, with features or channels last in memory, as in serial training.

    Dropout draws in the order of memory.
    """
    features = 1 if x.dim() == 4 else -1
    total = x.movedim(features, -1).clone(memory_format=torch.contiguous_format)
    comm.all_reduce(total.view(-1), "sum")
    return total.movedim(-1, features)


def _gather(x: Tensor, comm: Communicator) -> Tensor:
    """The ranks' tokens, (batch, tokens, …), one after the other."""
    parts = comm.all_gather(x.contiguous().flatten())
    return torch.cat([part.view_as(x) for part in parts], dim=1)


def _reduce_scatter(x: Tensor, comm: Communicator) -> Tensor:
    """The sum over ranks of this rank's tokens. It sends the bytes of a reduce-scatter: (P − 1)/P of x."""
    parts = torch.stack(x.chunk(comm.size, dim=1))
    return comm.all_to_all(parts.flatten(1)).sum(dim=0).view(parts.shape[1:])
