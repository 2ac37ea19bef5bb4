"""A rank's part of the tokens of every sample, where ranks divide them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from trainer.comm.base import Communicator
from trainer.models.layers.dropout import Dropout, TokenDropout
from trainer.models.layers.transformer import TokenEmbedding
from trainer.training.loader import Batch


class TokenPart:
    """Consecutive tokens of each sample, as many on each rank. A sample's loss is the mean of its parts'.

    Attributes:
        first: the position of this rank's first token.
    """

    def __init__(self, comm: Communicator, tokens: int) -> None:
        """tokens: those of a sample, a multiple of the ranks."""
        self._comm, self._tokens = comm, tokens // comm.size
        self.first = comm.rank * self._tokens

    def of(self, x: Tensor) -> Tensor:
        """This rank's tokens of x, shape (batch, tokens, …)."""
        return x[:, self.first : self.first + self._tokens]

    def of_batch(self, batch: Batch) -> Batch:
        """This rank's tokens of a batch."""
        return replace(batch, inputs=self.of(batch.inputs), targets=self.of(batch.targets))

    def adapt(self, model: nn.Module) -> None:
        """Let positions and dropout be those of this rank's tokens, as in serial training."""
        for module in [*model.modules()]:
            if isinstance(module, TokenEmbedding):
                module.first = self.first
            for name, child in module.named_children():
                if isinstance(child, Dropout):
                    setattr(module, name, TokenDropout(child, self.first, self._comm.size))

    def sum(
        self, parameters: Sequence[nn.Parameter], loss: Tensor, accuracy: float
    ) -> tuple[Tensor, float]:
        """Sum the gradients of parameters over ranks, in place.

        Args:
            parameters: that see this rank's tokens alone. Their losses count 1 / ranks.
            loss, accuracy: of this rank's tokens.

        Returns:
            loss and accuracy of all tokens.
        """
        gradients = [each.grad for each in parameters if each.grad is not None]
        facts = torch.stack([loss, loss.new_tensor(accuracy)]) / self._comm.size
        sums = torch.cat([*(gradient.reshape(-1) for gradient in gradients), facts])
        self._comm.all_reduce(sums, "sum")
        parts = sums[:-2].split([gradient.numel() for gradient in gradients])
        for gradient, total in zip(gradients, parts, strict=True):
            gradient.copy_(total.view_as(gradient))
        return sums[-2], sums[-1].item()

    def gather(self, output: Tensor) -> Tensor | None:
        """The outputs for all tokens, (batch, classes, tokens), on rank 0; None on the others."""
        parts = self._comm.gather(output.contiguous().flatten(), root=0)
        return None if parts is None else torch.cat([part.view_as(output) for part in parts], dim=-1)
