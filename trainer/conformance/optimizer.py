"""Laws of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer.conformance.law import Law, NotApplicable, Outcome
from trainer.core.failure import Failure
from trainer.optimizers.base import Optimizer
from trainer.user_components.optimizer import finite_error, seeded_error

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer

SHAPES = ((4, 3, 5, 5), (4,), (6, 100), (6,))
RTOL, ATOL = 1e-4, 1e-6
LR = 0.01
HALF = 3  # of the rows of the third tensor
DESCENT_STEPS = 20


@dataclass(frozen=True)
class Steps:
    """So many steps on the weights of a convolution and a linear layer."""

    number: int
    lr: float = LR

    def __str__(self) -> str:
        noun = "step" if self.number == 1 else "steps"
        return f"{self.number} {noun} at lr {self.lr:g}, weights of shapes 4×3×5×5, 4, 6×100, 6"


class Stepping:
    """An optimizer at work on weights with drawn gradients."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def after(self, steps: Steps, change: Callable[[TorchOptimizer], None] | None = None) -> list[Tensor]:
        """The weights after the steps. change: changes the torch optimizer before the first."""
        weights = initial()
        built = self.optimizer.build(weights, steps.lr)
        if change:
            change(built)
        take(built, weights, range(steps.number))
        return weights


def initial() -> list[Tensor]:
    """Weights; the convolution's are channels_last, as in training."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(7)
    made = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    made[0].data = made[0].data.contiguous(memory_format=torch.channels_last)
    return [*made]


def gradients(step: int) -> list[Tensor]:
    """The gradients of a step; they shrink, as in training."""
    import torch

    generator = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(shape, generator=generator) / (step + 1) for shape in SHAPES]


def take(built: TorchOptimizer, weights: Iterable[Tensor], steps: Iterable[int]) -> None:
    """Take steps with the drawn gradients."""
    for step in steps:
        for weight, gradient in zip(weights, gradients(step), strict=True):
            weight.grad = gradient
        built.step()


def laws(optimizer: Optimizer, equals: str = "") -> Iterator[Law[Any]]:
    """The laws of an optimizer. equals: the registered one that it equals; empty: what it declares."""
    stepping, equals = Stepping(optimizer), equals or optimizer.equals or ""
    few = [Steps(number) for number in (1, 2, 5)]
    law = partial(Law[Steps], inputs=few)
    yield law(
        "runs", "steps change all weights and keep them finite", partial(_runs, stepping), essential=True
    )
    yield Law(
        "curve",
        f"its weights are those {f'of {equals}' if equals else 'that it declares'}",
        lambda steps: _curve(stepping, steps, equals),
        [*few, Steps(50)],
    )
    yield Law(
        "descends",
        "the loss of a quadratic falls",
        lambda steps: _descends(stepping, steps),
        [Steps(DESCENT_STEPS)],
    )
    yield Law(
        "zero", "a gradient of 0 moves no weight away from 0", lambda steps: _zero(stepping, steps), few
    )
    yield Law("skips", "a weight without gradient stays", lambda steps: _skips(stepping, steps), few[:1])
    yield law("rate", "it follows the learning rate of its groups", lambda steps: _rate(stepping, steps))
    yield law("state", "it continues from its state_dict", lambda steps: _state(stepping, steps))
    yield law("order", "the order of the weights does not matter", lambda steps: _order(stepping, steps))
    yield law("layers", "layerwise is declared if layers matter", lambda steps: _layers(stepping, steps))
    yield law(
        "seeded",
        "it does not depend on global random state",
        lambda steps: seeded_error(lambda: stepping.after(steps)),
    )


def _runs(stepping: Stepping, steps: Steps) -> Outcome:
    import torch

    weights = stepping.after(steps)
    if failure := finite_error(weights):
        return failure
    for shape, before, after in zip(SHAPES, initial(), weights, strict=True):
        if torch.equal(before, after):
            return Failure("changed weights", f"the tensor of shape {shape} is as before")
    return None


def _off(found: list[Tensor], expected: list[Tensor], of: str) -> Failure | None:
    """How weights differ from expected ones; None if they are equal up to rounding."""
    import torch

    for one, other in zip(found, expected, strict=True):
        if not torch.allclose(one, other, rtol=RTOL, atol=ATOL):
            worst = int((one - other).abs().argmax())
            values = (each.detach().flatten()[worst].item() for each in (other, one))
            shape = "×".join(map(str, other.shape))
            return Failure(f"{of}: weight {worst} of {shape} is {next(values):.6g}", f"{next(values):.6g}")
    return None


def _curve(stepping: Stepping, steps: Steps, equals: str) -> Outcome:
    from trainer.spec.registries import OPTIMIZERS

    if not equals:
        raise NotApplicable("it declares no optimizer that it equals, and --equals is not given")
    own = stepping.optimizer.model_dump()
    own = {**own, **own.get("parameters", {})}
    named = OPTIMIZERS.load(equals).model_fields
    same = {name: value for name, value in own.items() if name in named}
    reference = Stepping(OPTIMIZERS.parse({"name": equals, **same}))
    return _off(stepping.after(steps), reference.after(steps), f"as torch's {equals}")


def _descends(stepping: Stepping, steps: Steps) -> Outcome:
    """Half the squared distance to other weights: its gradient is the difference."""
    import torch

    weights = initial()
    generator = torch.Generator().manual_seed(8)
    best = [torch.randn(weight.shape, generator=generator) for weight in weights]

    def loss() -> float:
        pairs = zip(weights, best, strict=True)
        return sum((weight.detach() - to).double().square().sum().item() / 2 for weight, to in pairs)

    before, built = loss(), stepping.optimizer.build(weights, steps.lr)
    for _ in range(steps.number):
        for weight, to in zip(weights, best, strict=True):
            weight.grad = weight.detach() - to
        built.step()
    after = loss()
    return None if after < before else Failure(f"a loss below {before:.6g}", f"{after:.6g}")


def _zero(stepping: Stepping, steps: Steps) -> Outcome:
    """Weight decay may move weights towards 0."""
    import torch

    weights = initial()
    before = [weight.detach().clone() for weight in weights]
    built = stepping.optimizer.build(weights, steps.lr)
    for _ in range(steps.number):
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        built.step()
    for was, now in zip(before, weights, strict=True):
        grown = ~(now.abs() <= was.abs() * (1 + 1e-6)).flatten()  # or nan
        if grown.any():
            at = int(grown.int().argmax())
            return Failure(
                f"a weight of {was.flatten()[at].item():.6g} stays or shrinks",
                f"{now.detach().flatten()[at].item():.6g}",
            )
    return None


def _skips(stepping: Stepping, steps: Steps) -> Outcome:
    import torch

    first, second, *_ = initial()
    before = second.detach().clone()
    built = stepping.optimizer.build([first, second], steps.lr)
    first.grad = torch.ones_like(first)
    built.step()
    return None if torch.equal(second, before) else Failure("the weight as before", "it moved")


def _rate(stepping: Stepping, steps: Steps) -> Outcome:
    """The learning-rate schedule sets `lr` of the parameter groups."""

    def slower(built: TorchOptimizer) -> None:
        for group in built.param_groups:
            group["lr"] /= 10

    low = Steps(steps.number, steps.lr / 10)
    expected, found = stepping.after(low), stepping.after(steps, slower)
    if off := _off(found, expected, f"as built with lr {low.lr:g}"):
        return Failure(off.expected, f"{off.got}; read lr from param_groups in each step")
    moved = [
        sum((now - was).abs().sum().item() for now, was in zip(weights, initial(), strict=True))
        for weights in (expected, stepping.after(steps))
    ]
    if moved[0] < moved[1]:
        return None
    return Failure(f"at lr {low.lr:g} weights move less than by {moved[1]:.6g}", f"by {moved[0]:.6g}")


def _state(stepping: Stepping, steps: Steps) -> Outcome:
    weights = initial()
    built = stepping.optimizer.build(weights, steps.lr)
    take(built, weights, range(steps.number))
    copies = [weight.detach().clone().requires_grad_() for weight in weights]
    restored = stepping.optimizer.build(copies, steps.lr)
    restored.load_state_dict(deepcopy(built.state_dict()))
    more = range(steps.number, steps.number + 3)
    take(built, weights, more)
    take(restored, copies, more)
    return _off(copies, weights, "after 3 more steps")


def _order(stepping: Stepping, steps: Steps) -> Outcome:
    weights = initial()
    _check_one_group(stepping)
    built = stepping.optimizer.build(weights[::-1], steps.lr)
    take(built, weights, range(steps.number))
    return _off(weights, stepping.after(steps), "in the other order")


def _check_one_group(stepping: Stepping) -> None:
    """Raise NotApplicable if the optimizer groups weights, by their place or their shape."""
    if len(stepping.optimizer.build(initial(), LR).param_groups) > 1:
        raise NotApplicable("it groups the weights")


def _layers(stepping: Stepping, steps: Steps) -> Outcome:
    """Step on the third tensor as two: a rank that holds a part of a tensor must get the same weights."""
    import torch

    if stepping.optimizer.layerwise:
        raise NotApplicable("it declares layerwise")
    _check_one_group(stepping)
    halves = [part.detach().clone().requires_grad_() for part in initial()[2].split(HALF)]
    built = stepping.optimizer.build(halves, steps.lr)
    for step in range(steps.number):
        for half, gradient in zip(halves, gradients(step)[2].split(HALF), strict=True):
            half.grad = gradient
        built.step()
    off = _off([torch.cat(halves)], [stepping.after(steps)[2]], "as of the whole tensor")
    return Failure(off.expected, f"{off.got} of its half: declare layerwise = True") if off else None
