"""Layers of which each rank holds a share, and what ranks tell each other inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, linear

from trainer.comm.base import Communicator
from trainer.models.base import ParallelPair
from trainer.models.layers.dropout import Dropout

Layer = nn.Linear | nn.Conv2d
PER_CHANNEL = ("weight", "bias", "running_mean", "running_var")  # of a normalisation


@dataclass(frozen=True)
class Shares:
    """How channels or features are shared out: the first sizes[0] of them are rank 0's, and so on."""

    sizes: tuple[int, ...]
    rank: int

    @classmethod
    def even(cls, units: int, each: int, comm: Communicator) -> Shares:
        """So many units of `each` channels; where ranks do not divide them, the first have one more."""
        least, more = divmod(units, comm.size)
        return cls(tuple((least + (rank < more)) * each for rank in range(comm.size)), comm.rank)

    def times(self, numbers: int) -> Shares:
        """Of channels that have become so many numbers each: nn.Flatten keeps a channel's together."""
        return Shares(tuple(size * numbers for size in self.sizes), self.rank)

    def of(self, tensor: Tensor, dim: int) -> Tensor:
        """This rank's share of a whole tensor, a view of it."""
        start = sum(self.sizes[: self.rank])
        return tensor.narrow(dim, start, self.sizes[self.rank])


class Slicer:
    """Takes this rank's share of blocks, one after the other in the order in which data passes them."""

    def __init__(self, pairs: Sequence[ParallelPair], comm: Communicator) -> None:
        # Of what is not whole: shares of which dimension.
        self.slices: dict[Tensor, tuple[Shares, int]] = {}
        self._firsts = {pair.column: pair for pair in pairs}
        self._seconds = {pair.row for pair in pairs}
        self._comm = comm
        # Of the channels that pass between a first layer and its second.
        self._passing: Shares | None = None

    def __call__(self, name: str, block: nn.Module) -> nn.Module:
        """What this rank holds of a block, whose weights must be contiguous."""
        chain = nn.Sequential()
        chain.add_module(name, block)
        for path, layer in [*chain.named_modules()][1:]:  # the first is the chain
            if path in self._firsts:
                chain.set_submodule(path, self._column(cast("Layer", layer), self._firsts[path].units))
            elif path in self._seconds:
                chain.set_submodule(path, self._row(cast("Layer", layer)))
            elif self._passing is not None:
                chain.set_submodule(path, self._between(layer, self._passing))
        return chain.get_submodule(name)

    def _column(self, layer: Layer, width: int) -> nn.Module:
        self._passing = Shares.even(width, len(layer.weight) // width, self._comm)
        self._keep(layer, ("weight", "bias"), self._passing)
        return Column(layer, self._comm)

    def _row(self, layer: Layer) -> nn.Module:
        shares = cast("Shares", self._passing)
        shares = shares.times(layer.weight.shape[1] // sum(shares.sizes))
        self._keep(layer, ("weight",), shares, dim=1)
        self._passing = None
        return Row(layer, self._comm)

    def _between(self, layer: nn.Module, shares: Shares) -> nn.Module:
        if isinstance(layer, Dropout):
            return SharedDropout(layer, shares)
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            if isinstance(layer, nn.GroupNorm):
                layer.num_groups = layer.num_groups * shares.sizes[shares.rank] // layer.num_channels
                layer.num_channels = shares.sizes[shares.rank]
            self._keep(layer, PER_CHANNEL, shares)
        elif [*layer.parameters(recurse=False)]:
            raise TypeError(f"a {type(layer).__name__} stands between two layers that are a pair")
        return layer

    def _keep(self, layer: nn.Module, names: Sequence[str], shares: Shares, dim: int = 0) -> None:
        """Let the layer have this rank's share of its tensors of these names, and forget the rest."""
        for name in names:
            whole: Tensor | None = getattr(layer, name, None)
            if whole is not None:
                mine = shares.of(whole.detach(), dim).clone()
                mine = nn.Parameter(mine) if isinstance(whole, nn.Parameter) else mine
                setattr(layer, name, mine)
                self.slices[mine] = shares, dim


class Column(nn.Module):
    """A layer that gives out this rank's share of its features or channels, from an input that all have."""

    def __init__(self, layer: Layer, comm: Communicator) -> None:
        super().__init__()
        self.layer, self._comm = layer, comm

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(_Copy.apply(x, self._comm))  # type: ignore[no-untyped-call]
        return y


class Row(nn.Module):
    """A layer that takes this rank's share of its inputs; its output is the same on all ranks.

    The bias is added after the sum, by every rank: it is replicated.
    """

    def __init__(self, layer: Layer, comm: Communicator) -> None:
        super().__init__()
        self.layer, self._comm = layer, comm

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        if isinstance(layer, nn.Conv2d):
            part = conv2d(x, layer.weight, None, layer.stride, layer.padding, layer.dilation)
        else:
            part = linear(x, layer.weight)
        y: Tensor = _Sum.apply(part, self._comm)  # type: ignore[no-untyped-call]
        return y if layer.bias is None else y + layer.bias.view(-1, *[1] * (y.dim() - 2))


class SharedDropout(Dropout):
    """Draws for all channels, as the whole model does, and uses its share: what is dropped is serial's."""

    def __init__(self, whole: Dropout, shares: Shares) -> None:
        super().__init__(whole.probability, whole.generator)
        self._whole, self._shares = whole, shares

    def mask(self, x: Tensor) -> Tensor:
        shares = self._shares.times(x.shape[1] // self._shares.sizes[self._shares.rank])
        # In the order in which the whole activations would lie in memory: channels last.
        whole = x.new_empty(len(x), *x.shape[2:], sum(shares.sizes)).movedim(-1, 1)
        return shares.of(self._whole.mask(whole), dim=1)


class _Copy(torch.autograd.Function):
    """Shoeybi et al.'s f: the input is the same on all ranks; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator) -> Tensor:
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.comm), None


class _Sum(torch.autograd.Function):
    """Shoeybi et al.'s g: the output is the sum of all ranks'; each has its whole gradient already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator) -> Tensor:
        return _summed(x, comm)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _summed(x: Tensor, comm: Communicator) -> Tensor:
    """The sum over ranks, with channels last in memory: flat it has to be in one order on all of them."""
    total = x.movedim(1, -1).clone(memory_format=torch.contiguous_format)
    comm.all_reduce(total.view(-1), "sum")
    return total.movedim(-1, 1)
