"""A replica: one node's copy of the model and its optimiser, seen as flat buffers that can travel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from trainer.clock import Clock
from trainer.data.feed import Batch
from trainer.task import Task

REMEMBERED = {"momentum_buffer", "exp_avg", "exp_avg_sq"}  # by torch's optimisers, one number per weight


class Replica:
    """One node's copy of the model, its optimiser, and flat views of its weights and gradient."""

    def __init__(self, model: nn.Module, task: Task, clock: Clock) -> None:
        self.model = model
        self.loss: Tensor | None = torch.zeros(())  # of the last batch; None where another rank has it
        self.activation_bytes: int | None = None  # that its first step has kept; no step yet
        self._output = self._labels = torch.zeros(0)
        self._clock = clock
        self._parameters = list(model.parameters())
        self._state = [*self._parameters, *(b for b in model.buffers() if b.is_floating_point())]
        # torch's optimisers refuse to have nothing to do, as in a part of the model without weights.
        self._optimizer = task.spec.optimizer.build(self._parameters or [torch.zeros(0)], task.spec.lr)

    @property
    def blocks(self) -> list[str] | None:
        """The names of the model's blocks that this rank holds; None: all."""
        return None

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        """The gradient of the batch's mean loss, times `weight`, into the parameters' `.grad`."""
        with self._clock.phase("compute"):
            self._optimizer.zero_grad()
            output = self.model(batch.images)
            loss = nll_loss(output, batch.labels)
            (loss if weight == 1.0 else loss * weight).backward()
            if weight:  # a batch without weight is no sample of this rank's
                self.loss = loss.detach()
                self._output, self._labels = output.detach(), batch.labels

    def predict(self, images: Tensor) -> Tensor | None:
        """Log-probabilities, shape (batch, classes); None where another rank has them."""
        output: Tensor = self.model(images)
        return output

    @property
    def batch_accuracy(self) -> float:
        """Share of the last batch that the model had right, 0 … 1. Costs nothing until it is asked for."""
        return (self._output.argmax(dim=1) == self._labels).float().mean().item()

    def step(self) -> None:
        """Move the weights along the gradient, as the optimiser would."""
        with self._clock.phase("compute"):
            self._optimizer.step()

    def share(self, weights: list[Tensor]) -> None:
        """From now on use these tensors, in the order of parameters and buffers, as the weights."""
        for mine, shared in zip([*self._parameters, *self.model.buffers()], weights, strict=True):
            mine.data = shared.data

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self._parameters)

    @property
    def held_bytes(self) -> dict[str, int]:
        """Bytes of memory that this rank keeps from one step to the next, by what is in it.

        weights: parameters and buffers; where ranks share them, they are each rank's. gradient: as the last
        step has left it. optimizer: what torch's optimiser remembers, the counter of its steps too.
        """
        state = (value for each in self._optimizer.state.values() for value in each.values())
        return {
            "weights": _stored([*self._parameters, *self.model.buffers()]),
            "gradient": _stored([p.grad for p in self._parameters if p.grad is not None]),
            "optimizer": _stored([value for value in state if isinstance(value, Tensor)]),
        }

    @property
    def shapes(self) -> list[torch.Size]:
        """Of the parameters, in the order in which they are in the flat gradient."""
        return [p.shape for p in self._parameters]

    def gradient(self) -> Tensor:
        """A copy of the gradient, flat: float32, shape (parameters,)."""
        return _flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters])

    def set_gradient(self, flat: Tensor) -> None:
        """Replace the gradient by a flat one of shape (parameters,)."""
        for parameter in self._parameters:
            if parameter.grad is None:  # it took no part in the loss
                parameter.grad = torch.zeros_like(parameter)
        _unflatten(flat, [p.grad for p in self._parameters if p.grad is not None])

    def optimizer_state(self) -> Tensor:
        """A copy of what the optimiser remembers of every weight (momentum, moments), flat: float32."""
        return _flat(self._remembered)

    def set_optimizer_state(self, flat: Tensor) -> None:
        """Replace what `optimizer_state` gives."""
        _unflatten(flat, self._remembered)

    def reset_optimizer(self) -> None:
        """Let the optimiser forget, as if it had not stepped yet."""
        self._optimizer.state.clear()

    @property
    def _remembered(self) -> list[Tensor]:
        states = [self._optimizer.state[parameter] for parameter in self._parameters]
        return [state[name] for state in states for name in sorted(state) if name in REMEMBERED]

    def weights(self) -> Tensor:
        """A copy of parameters and floating-point buffers, flat: float32, shape (state,)."""
        return _flat(self._state)

    def whole_weights(self) -> Tensor | None:
        """`weights` of the whole model, at the end of training; None where another rank gives them."""
        return self.weights()

    def set_weights(self, flat: Tensor) -> None:
        """Replace parameters and floating-point buffers by flat ones of shape (state,)."""
        _unflatten(flat, self._state)


def _stored(tensors: list[Tensor]) -> int:
    """Bytes of the memory behind these tensors; what several are views of is counted once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _flat(tensors: list[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(0)
    # reshape and not view: the weights are channels_last, the flat form is in logical order.
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def _unflatten(flat: Tensor, tensors: list[Tensor]) -> None:
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view(tensor.shape))
