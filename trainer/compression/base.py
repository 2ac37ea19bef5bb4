"""The interface of a gradient compression, and error feedback."""

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
    """How ranks average their gradients with fewer bytes.

    Docstrings give the bytes that each rank sends per step, for n float32 entries and P ranks. An
    all-reduce without compression sends 8n(P-1)/P.
    """

    # State that a checkpoint does not contain, for error messages; None if there is none.
    not_checkpointed: ClassVar[str | None] = "the error feedback residual of each rank"

    @abstractmethod
    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        """The compressor of one rank.

        shapes: the shapes of the parameters, in the order of the flat gradient.
        """


class Compressor(ABC):
    """Averages gradients on one rank, and keeps the state that this needs between steps."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    def mean(self, gradient: Tensor, lr: float) -> None:
        """Replace `gradient`, float32 of shape (n,), by approximately its mean over all ranks.

        lr: the learning rate of the gradient's step, equal on all ranks.

        The result has the same bits on every rank. A single rank compresses nothing. The clock counts
        compression as phase `compute`.
        """
        if self.comm.size > 1:
            with self.comm.clock.phase("compute"):
                self._mean(gradient, lr)

    @abstractmethod
    def _mean(self, gradient: Tensor, lr: float) -> None: ...


class ErrorFeedback(Compressor):
    """All-gather of compressed gradients with error feedback.

        p ← g + (lr' / lr) e   the gradient g plus the residual e of earlier steps, the last at rate lr'
        m = encode(p)          the message to all ranks
        e ← p − decode(m)      what the message left out
        g ← mean over ranks of decode(m)

    So the compression delays parts of the gradient but loses none. The papers keep steps: p ← lr g + e.
    Here the optimizer multiplies by the learning rate, so p and e are the papers' divided by lr, and the
    factor lr' / lr applies what is left of a gradient at the rate of its own step (Zheng et al. 2019,
    Alg. 1). The compression must commute with such factors. With plain SGD the steps are those of the
    papers at any learning rate. Other optimizers take g as their gradient, so momentum sums what has
    arrived, as in Vogels et al. 2019, Alg. 2. All ranks add the same messages in rank order, and so get the
    same bits.

    Source: Karimireddy et al. 2019, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
    Alg. 2; Stich et al. 2018, "Sparsified SGD with Memory", Alg. 1; Zheng et al. 2019,
    "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback".
    """

    def __init__(self, comm: Communicator, parameters: int) -> None:
        import torch

        super().__init__(comm)
        self.residual = torch.zeros(parameters, device=comm.device)  # e
        self._last_lr: float | None = None

    def _mean(self, gradient: Tensor, lr: float) -> None:
        earlier = self.residual
        if lr:
            self.residual *= (self._last_lr or lr) / lr
            self._last_lr = lr
        else:  # the step changes no weight: it neither takes nor leaves a residual
            self.residual = earlier.new_zeros(earlier.shape)
        self.residual += gradient
        message = self.encode(self.residual)
        self.residual -= self._decoded_sum([message])
        messages = self.comm.all_gather(message)
        gradient.copy_(self._decoded_sum(messages).div_(self.comm.size))
        self.residual = self.residual if lr else earlier

    def weighted_mean(self, values: Tensor, weight: float) -> Tensor:
        """About Σ wᵢ vᵢ / Σ wᵢ over all ranks i, see `message`."""
        messages = self.comm.all_gather(self.message(values, weight))
        return self.mean_of(messages, len(values) - len(self.residual))

    def message(self, values: Tensor, weight: float) -> Tensor:
        """What a rank sends of its `values` v for a mean in which it has the `weight` w ≥ 0.

        Args:
            values: n values that are compressed, then any that are sent as they are.
            weight: a rank of weight 0 keeps its residual for its next message.
        """
        import torch

        with self.comm.clock.phase("compute"):
            changes, others = values.tensor_split([len(self.residual)])
            wanted = self.residual + changes
            encoded = self.encode(wanted)
            if weight:
                self.residual = wanted - self._decoded_sum([encoded])
            return torch.cat([encoded, others, values.new_tensor([weight])])

    def mean_of(self, messages: Tensor, others: int = 0) -> Tensor:
        """The mean of the values in the ranks' messages, the same bits on every rank; 0 if no rank counts.

        others: how many values are sent as they are.
        """
        import torch

        with self.comm.clock.phase("compute"):
            total = self.residual.new_zeros(len(self.residual) + others)
            weights = messages[:, -1]
            for weight, own in zip(weights, messages, strict=True):
                encoded, plain = own[:-1].tensor_split([len(own) - 1 - others])
                total += weight * torch.cat([self._decoded_sum([encoded]), plain])
            return total / weights.sum().clamp(min=1e-30)

    def _decoded_sum(self, messages: Sequence[Tensor] | Tensor) -> Tensor:
        """The sum of the decoded messages: float32 of shape (n,)."""
        total = self.residual.new_zeros(self.residual.shape)
        for message in messages:
            self.add(message, total)
        return total

    @abstractmethod
    def encode(self, gradient: Tensor) -> Tensor:
        """The message for a gradient of shape (n,), float32, of the same length on all ranks.

        Data of other types travels as the bits of float32 values.
        """

    @abstractmethod
    def add(self, message: Tensor, total: Tensor) -> None:
        """Decode a message and add the result to `total`, shape (n,), in place."""
