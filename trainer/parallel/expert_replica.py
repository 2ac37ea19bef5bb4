"""Expert-parallel replica: some experts of each layer, and a copy of all other weights.

The way of tokens through the experts of all ranks is in trainer/strategies/expert_parallel.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.models.layers.experts import Experts, MixtureOfExperts
from trainer.models.layers.transformer import Mlp
from trainer.parallel.exchanged import all_to_all
from trainer.parallel.tensor_layers import Sharding
from trainer.training.replica import Replica, squares, sum_over_ranks
from trainer.training.task import Task

ThroughRanks = Callable[[Tensor, Sequence[int], Experts, Sharding, Communicator], Tensor]


class DividedExperts(nn.Module):
    """The experts of a layer, of which each rank holds some: rank 0 the first ones, and so on.

    Attributes:
        own: those of this rank.
    """

    def __init__(self, experts: Experts, comm: Communicator, through_ranks: ThroughRanks) -> None:
        """experts: all of them, as many as ranks or more."""
        super().__init__()
        self._sharding = Sharding.of_units(len(experts), 1, comm)
        self._comm, self._through_ranks = comm, through_ranks
        first = sum(self._sharding.sizes[: comm.rank])
        self.own = Experts([*experts][first : first + self._sharding.sizes[comm.rank]])
        self._all: Experts | None = None

    def forward(self, tokens: Tensor, load: Sequence[int]) -> Tensor:
        """As `Experts`."""
        if self._all is not None:
            return cast("Tensor", self._all(tokens, load))
        return self._through_ranks(tokens, load, self.own, self._sharding, self._comm)

    def all_weights(self) -> Tensor:
        """The flat weights of all experts. Every rank calls it."""
        mine = parameters_to_vector(self.own.parameters()).detach()
        each, parts = len(mine) // len(self.own), []
        for rank, experts in enumerate(self._sharding.sizes):
            part = mine if rank == self._comm.rank else mine.new_empty(experts * each)
            self._comm.broadcast(part, root=rank)
            parts.append(part)
        return torch.cat(parts)

    def gather(self) -> None:
        """Hold all experts until `release`. Every rank calls it."""
        one = cast("Mlp", self.own[0])
        self._all = Experts(deepcopy(one) for _ in range(sum(self._sharding.sizes)))
        vector_to_parameters(self.all_weights(), self._all.parameters())

    def release(self) -> None:
        """Hold this rank's experts alone."""
        self._all = None


class ExpertParallelReplica(Replica):
    """A rank's experts, its copy of all other weights, and their optimizer.

    Copies stay equal: they start from equal weights, and the all-reduce makes their gradients bitwise
    equal.
    """

    def __init__(self, task: Task, clock: Clock, comm: Communicator, through_ranks: ThroughRanks) -> None:
        layers: list[DividedExperts] = []

        def divided(name: str, block: nn.Module) -> nn.Module:
            for module in block.modules():
                if isinstance(module, MixtureOfExperts) and comm.size > 1:
                    module.experts = DividedExperts(cast("Experts", module.experts), comm, through_ranks)
                    layers.append(module.experts)
            return block

        super().__init__(task.build_model(comm.rank, device=comm.device, take=divided), task, clock)
        self._layers, self._comm = layers, comm
        of_experts = {parameter for layer in layers for parameter in layer.parameters()}
        # Lists, in the order of the model: sums over a set would differ from process to process.
        self._experts = [parameter for parameter in self._parameters if parameter in of_experts]
        self._copies = [parameter for parameter in self._parameters if parameter not in of_experts]

    def gradient_of_copies(self) -> Tensor:
        """The flat gradient of the weights that all ranks have."""
        return parameters_to_vector(self._gradients())

    def set_gradient_of_copies(self, flat: Tensor) -> None:
        """Replace `gradient_of_copies`."""
        gradients = self._gradients()
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def squared_gradient_norm(self) -> Tensor:
        experts = [each.grad for each in self._experts if each.grad is not None]
        return sum_over_ranks(squares(experts), self._comm, copied=squares(self._gradients()))

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._copies if parameter.grad is not None]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """As `Replica.evaluating`, with all experts: ranks may have different numbers of forward passes.

        Every rank enters.
        """
        for layer in self._layers:
            layer.gather()
        with super().evaluating():
            yield
        for layer in self._layers:
            layer.release()

    def full_weights(self) -> Tensor:
        """Weights of the whole model: all experts, and this rank's copy of the others.

        Every rank calls it.
        """
        layers = {next(layer.parameters()): layer for layer in self._layers}
        copies = {*self._copies}
        parts = []
        for parameter in self._parameters:
            if parameter in copies:
                parts.append(parameter.detach().reshape(-1))
            elif parameter in layers:  # the first of its layer; the others are in the same vector
                parts.append(layers[parameter].all_weights())
        return torch.cat(parts)


def send_rows(
    x: Tensor, sent: Sequence[int], received: Sequence[int], longest: int, comm: Communicator
) -> Tensor:
    """Send the first rows of x to rank 0, the next ones to rank 1, and so on. Gradients come back.

    Args:
        x: shape (rows, width).
        sent, received: how many rows this rank sends to each, and receives from each.
        longest: the largest such number on any rank, to which messages are padded.

    Returns:
        The received rows, ordered by the ranks that sent them.
    """
    padded = torch.stack([pad(rows, (0, 0, 0, longest - len(rows))) for rows in x.split([*sent])])
    arrived = all_to_all(padded, comm)
    return torch.cat([rows[:number] for rows, number in zip(arrived, received, strict=True)])


def transposed(x: Tensor, lengths: Tensor) -> Tensor:
    """Rows that are ordered by two numbers, ordered by the second one first.

    lengths: how many rows have numbers (i, j), shape (first, second). The order of those rows stays.
    """
    chunks = x.split(lengths.flatten().tolist())
    columns = lengths.shape[1]
    return torch.cat([chunk for column in range(columns) for chunk in chunks[column::columns]])
