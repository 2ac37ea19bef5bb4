"""What a compression is: how the mean gradient is found with fewer bytes than an all-reduce sends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from trainer.core.registry import Component

if TYPE_CHECKING:
    from torch import Size, Tensor

    from trainer.comm.base import Communicator
    from trainer.core.rng import RngFactory


class Compression(Component):
    """How a gradient is made smaller before it is sent.

    Formulas of bytes are of one step, one rank: n floats of 4 bytes, P ranks. Without compression an
    all-reduce sends 8n(P-1)/P.
    """

    not_checkpointed: ClassVar[str | None] = (
        "what a rank has not sent yet"  # that it remembers from step to step
    )

    @abstractmethod
    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        """One rank's part in it. shapes: of the parameters, in the order of the flat gradient."""


class Compressor(ABC):
    """One rank's part in finding the mean gradient, and what it remembers from step to step."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    def mean(self, gradient: Tensor) -> None:
        """Replace `gradient`, float32 of shape (n,), by about its mean over ranks: on all the same bits.

        One rank alone sends nothing, so nothing is compressed. What compressing computes is booked as
        computing.
        """
        if self.comm.size > 1:
            with self.comm.clock.phase("compute"):
                self._mean(gradient)

    @abstractmethod
    def _mean(self, gradient: Tensor) -> None: ...


class ErrorFeedback(Compressor):
    """Every rank sends one message to all, and adds what it left out to its next gradient.

    Stich et al. 2018 ("Sparsified SGD with Memory", Alg. 1), Karimireddy et al. 2019 ("Error Feedback
    Fixes SignSGD", Alg. 2): whatever the message leaves out is sent later and not lost. The papers
    remember steps, lr times gradient; here the lr is constant and the optimiser's, so gradients are
    remembered, which is the same for plain SGD.

    All ranks add up the same messages in rank order, and so hold the same bits.
    """

    def __init__(self, comm: Communicator, parameters: int) -> None:
        import torch

        super().__init__(comm)
        self.residual = torch.zeros(parameters, device=comm.device)  # what this rank has not sent yet

    def _mean(self, gradient: Tensor) -> None:
        self.residual += gradient
        message = self.encode(self.residual)
        self.residual -= self._total([message])
        gradient.copy_(self._total(self.comm.all_gather(message)).div_(self.comm.size))

    def _total(self, messages: Sequence[Tensor] | Tensor) -> Tensor:
        """The sum of what the messages say: float32 of shape (n,)."""
        total = self.residual.new_zeros(self.residual.shape)
        for message in messages:
            self.add(message, total)
        return total

    @abstractmethod
    def encode(self, gradient: Tensor) -> Tensor:
        """The message about a gradient of shape (n,). As long on all ranks; it travels as float32, and
        what is no float32 as the bits of some, with which nobody computes."""

    @abstractmethod
    def add(self, message: Tensor, total: Tensor) -> None:
        """Add to `total`, shape (n,), the gradient that a message stands for."""
