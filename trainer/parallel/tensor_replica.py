"""A slice: one rank's share of the weights of a model whose layers are shared out."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.parallel.tensor_layers import Slicer
from trainer.training.replica import Replica
from trainer.training.task import Task


class Slice(Replica):
    """A share of each pair of layers, the rest of the model whole, and the optimiser for both.

    What is whole stays the same on all ranks without a message: it starts from the same weights, and its
    gradient comes from activations and gradients that all-reduce has left with the same bits on all ranks,
    through the same kernels. It is not taken for granted: `full_weights`, whose digests are compared, has
    each rank's own.
    """

    def __init__(self, task: Task, clock: Clock, comm: Communicator) -> None:
        slicer = Slicer(task.spec.model.tensor_parallel_pairs if comm.size > 1 else [], comm)
        # Dropout of whole activations draws the same on all ranks: they are all the first copy.
        super().__init__(task.build_model(0, device=comm.device, take=slicer), task, clock)
        self._slices, self._comm = slicer.slices, comm

    def predict(self, images: Tensor) -> Tensor | None:
        """As of the whole model; every rank calls it, and the first one tells."""
        output = super().predict(images)
        return output if self._comm.rank == 0 else None

    def full_weights(self) -> Tensor:
        """All ranks' shares, and what is whole as this rank has it, in the order of the whole model.

        Every rank calls it.
        """
        return torch.cat([self._whole(tensor).reshape(-1) for tensor in self._state])

    def _whole(self, tensor: Tensor) -> Tensor:
        mine = tensor.detach()
        if tensor not in self._slices:
            return mine
        shares, dim = self._slices[tensor]
        pieces = []
        for rank, size in enumerate(shares.sizes):
            shape = [*mine.shape[:dim], size, *mine.shape[dim + 1 :]]
            piece = mine.reshape(-1).clone() if rank == self._comm.rank else mine.new_empty(prod(shape))
            self._comm.broadcast(piece, root=rank)
            pieces.append(piece.view(shape))
        return torch.cat(pieces, dim)
