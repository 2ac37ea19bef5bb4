"""A replica: one node's copy of the model and its optimiser, seen as flat buffers that can travel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from torch.optim import Optimizer

from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.models.layers.dropout import Dropout
from trainer.models.layers.sync_batch_norm import SyncBatchNorm
from trainer.training.loader import Batch
from trainer.training.task import Task

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
        self._statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._state = [*self._parameters, *self._statistics]
        self._norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        # torch's optimisers refuse to have nothing to do, as in a part of the model without weights.
        self._optimizer = task.spec.optimizer.build(self._parameters or [torch.zeros(0)], task.spec.lr)

    @property
    def blocks(self) -> list[str] | None:
        """The names of the model's blocks that this rank holds; None: all."""
        return None

    def set_lr(self, lr: float) -> None:
        """From now on step with this learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        """The gradient of the batch's mean loss, times `weight`, into the parameters' `.grad`."""
        with self._clock.phase("compute"):
            self._optimizer.zero_grad()
            self._count(bool(weight))
            output = self.model(batch.images)
            loss = nll_loss(output, batch.labels)
            (loss if weight == 1.0 else loss * weight).backward()
            if weight:  # a batch without weight is no sample of this rank's
                self.loss = loss.detach()
                self._output, self._labels = output.detach(), batch.labels

    def _count(self, counts: bool) -> None:
        """Whether the next batch is of samples that statistics know of, or stands by."""
        for norm in self._norms:
            if isinstance(norm, SyncBatchNorm):
                norm.counts_batch = counts
            else:
                norm.train(counts)

    def synchronise_norms(self, comm: Communicator) -> None:
        """From now on let normalisations that are to know all ranks' samples meet over `comm`."""
        for norm in self._norms:
            if isinstance(norm, SyncBatchNorm):
                norm.comm = comm

    def predict(self, images: Tensor) -> Tensor | None:
        """Log-probabilities, shape (batch, classes); None where another rank has them."""
        output: Tensor = self.model(images)
        return output

    @property
    def batch_accuracy(self) -> float:
        """Share of the last batch that the model had right, 0 … 1. Costs nothing until it is asked for."""
        return (self._output.argmax(dim=1) == self._labels).float().mean().item()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """In the block the model is as it is evaluated: without dropout."""
        self.model.eval()
        yield
        self.model.train()

    def step(self) -> None:
        """Move the weights along the gradient, as the optimiser would."""
        with self._clock.phase("compute"):
            self._optimizer.step()

    def use_shared_weights(self, weights: list[Tensor]) -> None:
        """From now on use these tensors, in the order of parameters and buffers, as the weights."""
        for mine, shared in zip([*self._parameters, *self.model.buffers()], weights, strict=True):
            mine.data = shared.data

    def state(self) -> dict[str, Any]:
        """All that the next step depends on: weights, optimiser, the streams that dropout draws from.

        The tensors are the replica's own: to be written down before it moves on.
        """
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "dropout": [generator.get_state() for generator in self._generators()],
            "loss": self.loss,
            "activation_bytes": self.activation_bytes,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Be as the replica was whose `state` it is, bit for bit."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for generator, drawn in zip(self._generators(), state["dropout"], strict=True):
            generator.set_state(drawn)
        self.loss, self.activation_bytes = state["loss"], state["activation_bytes"]

    def _generators(self) -> list[torch.Generator]:
        drops = (module for module in self.model.modules() if isinstance(module, Dropout))
        return list({id(drop.generator): drop.generator for drop in drops}.values())

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self._parameters)

    @property
    def state_bytes(self) -> dict[str, int]:
        """Bytes of memory that this rank keeps from one step to the next, by what is in it.

        weights: parameters and buffers; where ranks share them, they are each rank's. gradient: as the last
        step has left it. optimizer: what torch's optimiser remembers, the counter of its steps too.
        """
        return {what: _stored(tensors) for what, tensors in self._state_tensors().items()}

    def _state_tensors(self) -> dict[str, list[Tensor]]:
        return {
            "weights": [*self._parameters, *self.model.buffers()],
            "gradient": [p.grad for p in self._parameters if p.grad is not None],
            "optimizer": state_of(self._optimizer),
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

    def flat_parameters(self) -> Tensor:
        """A copy of the parameters alone, which gradients move, flat: float32, shape (parameters,)."""
        return _flat(self._parameters)

    def set_flat_parameters(self, flat: Tensor) -> None:
        """Replace the parameters alone by flat ones of shape (parameters,)."""
        _unflatten(flat, self._parameters)

    def flat_buffers(self) -> Tensor:
        """A copy of the floating-point buffers, which follow the samples that pass: float32, flat."""
        return _flat(self._statistics)

    def set_flat_buffers(self, flat: Tensor) -> None:
        """Replace what `statistics` gives."""
        _unflatten(flat, self._statistics)

    def weights(self) -> Tensor:
        """A copy of parameters and floating-point buffers, flat: float32, shape (state,)."""
        return _flat(self._state)

    def parameters_and_buffers(self) -> tuple[Tensor, Tensor]:
        """The two parts of `weights`: parameters, and floating-point buffers."""
        return self.flat_parameters(), self.flat_buffers()

    def full_weights(self) -> Tensor | None:
        """`weights` of the whole model, at the end of training; None where another rank gives them."""
        return self.weights()

    def set_weights(self, flat: Tensor) -> None:
        """Replace parameters and floating-point buffers by flat ones of shape (state,)."""
        _unflatten(flat, self._state)


def channels_last(x: Tensor) -> Tensor:
    """The same numbers as models are fastest with them: of four dimensions channels lie last in memory."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def state_of(optimizer: Optimizer) -> list[Tensor]:
    """The tensors that a torch optimiser remembers."""
    values = (value for each in optimizer.state.values() for value in each.values())
    return [value for value in values if isinstance(value, Tensor)]


def join_stages(stages: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The weights of the whole model from the `parameters_and_buffers` of its stages, in their order."""
    return torch.cat([*(parameters for parameters, _ in stages), *(buffers for _, buffers in stages)])


def _stored(tensors: list[Tensor]) -> int:
    """Bytes of the memory behind these tensors; what several are views of is counted once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(0)
    # reshape and not view: the weights are channels_last, the flat form is in logical order.
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def _unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view(tensor.shape))
