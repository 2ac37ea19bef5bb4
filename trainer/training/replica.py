"""A replica: one rank's model and optimizer, with weights and gradients as flat tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from trainer.comm.base import Communicator
from trainer.core.clock import Clock
from trainer.models.layers.draws import Draws
from trainer.models.layers.dropout import Dropout
from trainer.models.layers.experts import MixtureOfExperts
from trainer.models.layers.sync_batch_norm import SyncBatchNorm
from trainer.training.loader import Batch
from trainer.training.noise import GradientNoise
from trainer.training.task import Task
from trainer.training.trained import statistics, trained_parameters


class Moment(NamedTuple):
    """A moment within the passes of a batch.

    Attributes:
        micro_batch: its number, from 1.
        last: whether it is the last of the batch.
        event: forward, backward: of a block, which has begun; gradient: of a parameter, which is ready.
        number: of the block in the chain, or of the parameter among those that are trained.
    """

    micro_batch: int
    last: bool
    event: Literal["forward", "backward", "gradient"]
    number: int


Listener = Callable[[Moment], object]


class Replica:
    """One rank's copy of the model, with its optimizer.

    Weights and gradients are read and replaced as flat tensors: copies of the parameters that are trained,
    in the order of the model. They are float32 unless the model has other types. Frozen parameters and
    buffers that training does not change are not among them. `model` is the torch module, for what these
    methods do not offer.

    Attributes:
        model: the torch module.
        loss: mean loss of the last batch of the epoch; None if there was none, or if another rank has it.
        noise: measures the noise of gradients in `backward` and `step`; None: it is not measured.
        unused_fields: fields of the run that `backward` and `step` put into practice, and have not yet.
    """

    def __init__(self, model: nn.Module, task: Task, clock: Clock) -> None:
        self.model = model
        self.loss: Tensor | None = None
        self.noise: GradientNoise | None = None
        self.activation_bytes: int | None = None  # measured in the first step
        # Of the last batch, by micro-batch.
        self._outputs: Sequence[Tensor] = [torch.zeros(0)]
        self._targets: Sequence[Tensor] = self._outputs
        self._clock, self._loss_function = clock, task.spec.loss
        self._micro_batches, self._clip_norm = task.spec.accumulate, task.spec.clip_norm
        self._micro_batch = 0  # the number of the present one
        self._listener: Listener | None = None
        self._notifies_of_blocks = False
        self._bf16 = task.spec.precision == "bf16"
        is_set = {
            "accumulate": self._micro_batches > 1,
            "clip_norm": self._clip_norm is not None,
            "precision": self._bf16,
        }
        self.unused_fields = {field for field in is_set if is_set[field]}
        self._parameters = trained_parameters(model)
        self._statistics = statistics(model, task.spec.model.statistics)
        self._state = [*self._parameters, *self._statistics]
        self._drops = [module for module in model.modules() if isinstance(module, Dropout | Draws)]
        self._norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        self._paused: list[_BatchNorm] = []  # in evaluation mode for batches that do not count
        of_norms = {id(buffer) for norm in self._norms for buffer in norm.buffers()}
        # That a user's model changes itself.
        self._own_buffers = [
            buffer
            for buffer in (model.buffers() if task.spec.model.statistics else ())
            if id(buffer) not in of_norms
        ]
        self._before: list[Tensor] = []  # their values, while a batch that does not count passes
        self._mixtures = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
        self._channels_last = task.spec.model.channels_last
        # With frozen parameters: an optimizer may group all of them.
        self._optimizer = task.spec.optimizer.of_model(model, task.spec.lr)
        self._lr = self._built_lr = task.spec.lr

    @property
    def blocks(self) -> list[str] | None:
        """Names of the blocks that this rank holds; None: all."""
        return None

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self._lr

    @property
    def _own_optimizer(self) -> Optimizer:
        """The optimizer that has this rank's state."""
        return self._optimizer

    def set_lr(self, lr: float) -> None:
        """Set the learning rate. The session does so before each step.

        Each group of parameters keeps its ratio to the run's rate, as with torch's LambdaLR.
        """
        self._lr = lr
        for group in self._optimizer.param_groups:
            group["lr"] = lr * (group.setdefault("initial_lr", group["lr"]) / self._built_lr)

    def listen(self, listener: Listener | None, blocks: bool = False) -> None:
        """Call `listener` in each `backward`, whenever a gradient is ready.

        Args:
            listener: None: no more calls.
            blocks: whether to call it also when a block begins its forward or its backward pass.
        """
        self._listener, self._notifies_of_blocks = listener, blocks

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        """Compute the gradient of `weight` times the batch's mean loss. It replaces the previous gradient.

        With `accumulate`, it is the sum of those of micro-batches, each weighted by its samples.

        Args:
            batch: a batch from `session.batches` or `session.synchronous_batches`.
            weight: 0 lets the samples not count, neither in the gradient nor in BatchNorm statistics.
        """
        losses, outputs = [], []
        self.unused_fields.discard("accumulate")
        measuring = self.noise.measuring(self._parameters, batch, weight) if self.noise else nullcontext()
        with self._clock.phase("compute"), measuring, self._notifying(len(batch.targets)):
            self.zero_grad()
            for number, (inputs, targets, share, counts) in enumerate(self._in_micro_batches(batch), 1):
                self._micro_batch = number
                self._begin_micro_batch(last=number == self._micro_batches)
                # Of ignored targets, samples have no weight in the loss and count in statistics.
                ignored = self._loss_function.weighted and batch.samples > 0
                self._track_statistics(counts and (bool(weight) or ignored))
                self._weigh_balance(weight * share)
                output = self._forward(self.model, inputs)
                # Of no weight, it may be nan, as a mean over ignored targets is.
                loss = self._loss_function.of(output, targets) if weight * share else output.sum() * 0.0
                (loss if weight * share == 1.0 else loss * (weight * share)).backward()
                self._restore_statistics()
                if share:
                    losses.append(loss.detach() * share)
                    outputs.append(output.detach())
            self._clock.charge(len(batch.targets))
            if weight:
                self.loss = torch.stack(losses).sum()
                self._outputs, self._targets = outputs, [batch.targets]

    @contextmanager
    def _notifying(self, samples: int) -> Iterator[None]:
        """Call the listener in the passes of a block of code. samples: of the batch."""
        if (listener := self._listener) is None:
            yield
            return

        def notify(event: Literal["forward", "backward", "gradient"], number: int, *_: object) -> None:
            moment = Moment(self._micro_batch, self._micro_batch == self._micro_batches, event, number)
            self._clock.charge(samples, moment)
            listener(moment)

        def follow(number: int, _: object, inputs: object, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(partial(notify, "backward", number))

        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(notify, "gradient", number))
            for number, parameter in enumerate(self._parameters)
            if parameter.requires_grad
        ]
        for number, block in enumerate(self.model.children() if self._notifies_of_blocks else ()):
            hooks.append(block.register_forward_pre_hook(partial(notify, "forward", number)))
            hooks.append(block.register_forward_hook(partial(follow, number)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _in_micro_batches(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, float, bool]]:
        """The micro-batches of a batch: inputs, targets, their share of the loss, and whether they count.

        There are equally many in every step and on every rank, because their passes may exchange data. A
        batch with fewer samples gives micro-batches of one sample with share 0.
        """
        inputs, targets = (each.tensor_split(self._micro_batches) for each in (batch.inputs, batch.targets))
        total = self._loss_function.total(batch.targets)
        for own_inputs, own_targets in zip(inputs, targets, strict=True):
            if not len(own_targets):
                yield batch.inputs[:1], batch.targets[:1], 0.0, False
            elif total:
                yield own_inputs, own_targets, self._loss_function.total(own_targets) / total, True
            else:
                yield own_inputs, own_targets, len(own_targets) / len(batch.targets), True

    def _forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """The output of a forward pass in training, in the precision of the run; itself in float32."""
        if not self._bf16:
            output: Tensor = model(inputs)
            return output
        self.unused_fields.discard("precision")
        with torch.autocast(inputs.device.type, torch.bfloat16):
            output = model(inputs)
        return output.float()

    def _begin_micro_batch(self, last: bool) -> None:
        """What precedes the forward pass of a micro-batch. last: of its step."""

    def _track_statistics(self, counts: bool) -> None:
        """Whether the next batch updates BatchNorm statistics, of layers in training mode."""
        for norm in self._norms:
            if isinstance(norm, SyncBatchNorm):
                norm.counts_batch = counts
            elif counts and norm in self._paused:
                norm.train()
            elif not counts and norm.training:
                self._paused.append(norm.eval())
        if counts:
            self._paused.clear()
        else:
            self._before = [buffer.clone() for buffer in self._own_buffers]

    def _restore_statistics(self) -> None:
        """Undo what a batch that does not count has changed in buffers."""
        for buffer, value in zip(self._own_buffers, self._before, strict=False):
            buffer.copy_(value)
        self._before = []

    def _weigh_balance(self, weight: float) -> None:
        """The weight of the load-balance losses of the next forward pass: that of its loss."""
        for mixture in self._mixtures:
            mixture.router.weight = weight

    @property
    def choices_of_experts(self) -> tuple[int, int] | None:
        """How often a token has chosen an expert in training, and how often that was dropped.

        None if this rank has no mixture of experts.
        """
        if not self._mixtures:
            return None
        made, dropped = torch.stack([mixture.counts for mixture in self._mixtures]).sum(dim=0).tolist()
        return made, dropped

    def in_format(self, x: Tensor) -> Tensor:
        """Images or activations in the memory format of the model; other tensors as they are."""
        return channels_last(x) if self._channels_last else x

    def synchronise_norms(self, comm: Communicator) -> None:
        """Connect synchronised BatchNorm layers over `comm`."""
        for norm in self._norms:
            if isinstance(norm, SyncBatchNorm):
                norm.comm = comm

    def predict(self, inputs: Tensor) -> Tensor | None:
        """The output of the model, shape (batch, …); None if another rank has it."""
        output: Tensor = self.model(inputs)
        return output

    @property
    def batch_accuracy(self) -> float:
        """Accuracy on the last batch, 0 … 1, computed on demand."""
        output, targets = torch.cat([*self._outputs]), torch.cat([*self._targets])
        return self._loss_function.right(output, targets).float().mean().item()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the model into evaluation mode within the block."""
        self.model.eval()
        yield
        self.model.train()
        self._paused.clear()

    def step(self) -> None:
        """Take one step of the optimizer with the present gradient, clipped to `clip_norm`."""
        self.unused_fields.discard("clip_norm")
        with self._clock.phase("compute"):
            if self.noise:
                self.noise.applied(self._state_tensors()["gradient"])
            if self._clip_norm is not None:
                self._clip_gradient(self._clip_norm)
            self._optimizer.step()
            self._clock.charge_update()

    def _clip_gradient(self, norm: float) -> None:
        """Scale the gradient so that its norm is at most `norm` (Pascanu et al. 2013, Alg. 1)."""
        scale = (norm / self.squared_gradient_norm().sqrt()).clamp(max=1.0)
        for gradient in self._state_tensors()["gradient"]:
            gradient.mul_(scale)

    def squared_gradient_norm(self) -> Tensor:
        """The squared norm of the gradient of the whole model, shape (1,). Every rank calls it."""
        return self._squares().sum().reshape(1)

    def _squares(self) -> Tensor:
        """`squares` of the gradient of each of this rank's parameters; 0 of those without gradient."""
        return squares([p.new_zeros(1) if p.grad is None else p.grad for p in self._parameters])

    def scaled_step(self, scale: float) -> None:
        """Like `step`, with `scale` times the learning rate."""
        lr = self.lr
        self.set_lr(lr * scale)
        self.step()
        self.set_lr(lr)

    def use_shared_weights(self, weights: list[Tensor]) -> None:
        """Use these tensors, in the order of parameters and buffers, as the weights."""
        for mine, shared in zip([*self.model.parameters(), *self.model.buffers()], weights, strict=True):
            mine.data = shared.data

    def state(self) -> dict[str, Any]:
        """Everything the next step depends on: weights, optimizer state, dropout's generators.

        The tensors are the replica's own, not copies.
        """
        return {
            "model": self.model.state_dict(),
            "optimizer": self._own_optimizer.state_dict(),
            "dropout": [generator.get_state() for generator in self._generators()],
            "loss": self.loss,
            "activation_bytes": self.activation_bytes,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a `state`, bit for bit."""
        self.model.load_state_dict(state["model"])
        self._own_optimizer.load_state_dict(state["optimizer"])
        for generator, drawn in zip(self._generators(), state["dropout"], strict=True):
            generator.set_state(drawn)
        self.loss, self.activation_bytes = state["loss"], state["activation_bytes"]
        self.unused_fields.clear()  # the steps before have used them

    def _generators(self) -> list[torch.Generator]:
        return list({id(drop.generator): drop.generator for drop in self._drops}.values())

    def use_generator(self, generator: torch.Generator) -> None:
        """Let all layers that draw do so from this generator."""
        for drop in self._drops:
            drop.generator = generator

    @property
    def parameter_count(self) -> int:
        """The number of parameters of this rank's model that are trained."""
        return sum(p.numel() for p in self._parameters)

    @property
    def state_bytes(self) -> dict[str, int]:
        """Bytes that this rank keeps from step to step, for weights, gradient and optimizer state.

        Weights are parameters and buffers; shared memory counts for each rank. The gradient is that after
        the last step. The optimizer state includes its step counters.
        """
        return {kind: _storage_bytes(tensors) for kind, tensors in self._state_tensors().items()}

    def _state_tensors(self) -> dict[str, list[Tensor]]:
        return {
            "weights": [*self.model.parameters(), *self.model.buffers()],
            "gradient": [p.grad for p in self._parameters if p.grad is not None],
            "optimizer": optimizer_tensors(self._own_optimizer),
        }

    @property
    def shapes(self) -> list[torch.Size]:
        """Shapes of the parameters, in the order of the flat gradient."""
        return [p.shape for p in self._parameters]

    def gradient(self) -> Tensor:
        """The flat gradient, shape (parameters,); 0 for parameters that are not part of the loss."""
        return _flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters])

    def set_gradient(self, flat: Tensor) -> None:
        """Replace the gradient by `flat`, shape (parameters,).

        A parameter without a gradient here and on all other ranks keeps none: the optimizer leaves it out.
        """
        sizes = [parameter.numel() for parameter in self._parameters]
        for parameter, values in zip(self._parameters, flat.split(sizes), strict=True):
            if parameter.grad is None:
                if not values.any():
                    continue
                parameter.grad = torch.empty_like(parameter)
            unflatten(values, [parameter.grad])

    def zero_grad(self) -> None:
        """Clear the gradient, also of parameters that the optimizer does not have."""
        self._optimizer.zero_grad()
        for parameter in self._parameters:
            parameter.grad = None

    def optimizer_state(self) -> Tensor:
        """The flat optimizer state (momentum, moments) without counters; empty before the first step."""
        return _flat(self._per_weight_state)

    def set_optimizer_state(self, flat: Tensor) -> None:
        """Replace `optimizer_state`."""
        unflatten(flat, self._per_weight_state)

    def reset_optimizer(self) -> None:
        """Clear the optimizer state."""
        self._optimizer.state.clear()

    @property
    def _per_weight_state(self) -> list[Tensor]:
        optimizer = self._optimizer.state
        states = [optimizer[parameter] for parameter in self._parameters if parameter in optimizer]
        return [
            state[name]
            for state in states
            for name in sorted(state)
            if name != "step" and _is_number(state[name])
        ]

    def flat_parameters(self) -> Tensor:
        """The flat parameters, shape (parameters,)."""
        return _flat(self._parameters)

    def set_flat_parameters(self, flat: Tensor) -> None:
        """Replace the parameters by `flat`, shape (parameters,)."""
        unflatten(flat, self._parameters)

    def flat_buffers(self) -> Tensor:
        """The flat buffers that training changes (BatchNorm statistics), shape (buffers,)."""
        return _flat(self._statistics)

    def set_flat_buffers(self, flat: Tensor) -> None:
        """Replace the buffers that training changes by `flat`, shape (buffers,)."""
        unflatten(flat, self._statistics)

    def weights(self) -> Tensor:
        """The flat parameters and buffers that training changes, shape (parameters + buffers,)."""
        return _flat(self._state)

    def parameters_and_buffers(self) -> tuple[Tensor, Tensor]:
        """The two parts of `weights`: parameters, and buffers."""
        return self.flat_parameters(), self.flat_buffers()

    def full_weights(self) -> Tensor | None:
        """`weights` of the full model; None if another rank has them. Every rank calls it."""
        return self.weights()

    def set_weights(self, flat: Tensor) -> None:
        """Replace `weights` by `flat`, shape (parameters + buffers,)."""
        unflatten(flat, self._state)


def _is_number(value: object) -> bool:
    """Whether a value of the optimizer's state is one that ranks can average."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def channels_last(x: Tensor) -> Tensor:
    """Convert a tensor of four dimensions to the channels_last memory format."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of the squares of each tensor's values, shape (tensors,).

    The order of the tensors must be that of the model's parameters: a float sum depends on its order.
    """
    return torch.cat([each.square().sum().reshape(1) for each in tensors] or [torch.zeros(0)])


def sum_over_ranks(divided: Tensor, comm: Communicator, copied: Tensor | None = None) -> Tensor:
    """The sum of the `squares` of all ranks, shape (1,). Every rank calls it.

    Args:
        divided: those of the tensors that only this rank has.
        copied: those of the tensors of which every rank has the same copy. They count once.
    """
    of_ranks = divided.sum().reshape(1)
    comm.all_reduce(of_ranks, "sum")
    return of_ranks if copied is None else of_ranks + copied.sum()


def optimizer_tensors(optimizer: Optimizer) -> list[Tensor]:
    """The state tensors of a torch optimizer."""
    values = (value for each in optimizer.state.values() for value in each.values())
    return [value for value in values if isinstance(value, Tensor)]


def join_stages(stages: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The weights of the whole model from the `parameters_and_buffers` of its stages, in their order."""
    return torch.cat([*(parameters for parameters, _ in stages), *(buffers for _, buffers in stages)])


def _storage_bytes(tensors: list[Tensor]) -> int:
    """Bytes of the storages of these tensors; a shared storage counts once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    # Not by data_ptr(), which ends copy-on-write.
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(0)
    # reshape, not view: weights are channels_last, the flat tensor is in logical order.
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the values of a flat tensor into tensors, in their order."""
    for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_((values if tensor.is_complex() else values.real).view(tensor.shape))
