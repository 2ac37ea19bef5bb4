"""Optimizers: a subclass of Optimizer or of torch.optim.Optimizer, or a function of weights and lr."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

from annotated_types import Interval

from trainer.components.facts import Imported, Source
from trainer.components.kind import Input, Kind, NotApplicable, Verdict, counted, law
from trainer.components.parameters import checked, signature_of
from trainer.components.random_state import repetition_error, scatter_seeds
from trainer.components.written import VECTORS, WRITTEN, Together, written_on_vectors
from trainer.core.failure import Failure
from trainer.core.user_code import ImportFailure
from trainer.optimizers.base import Equal, Optimizer

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer as TorchOptimizer

SHAPES = ((4, 3, 5, 5), (4,), (6, 100), (6,))  # of weights
LR, LOW_LR = 0.01, 0.001
RTOL, ATOL = 1e-4, 1e-6
LOADING_STEPS = 2  # some optimizers keep state from one to the next
MORE_STEPS = 3  # after state is restored
REMEDY = "read lr from param_groups in each step, and build groups from the lr that is given"

Share = Callable[[list[Any]], list[Any]]  # what a rank has of all tensors


class FunctionOptimizer(Optimizer):
    """A class of torch's, or a function of weights and lr, as an optimizer."""

    function: Any  # a partial, with its parameters

    @property
    def layerwise(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.function.func, "layerwise", False))

    @property
    def equals(self) -> Equal | None:  # type: ignore[override]
        return getattr(self.function.func, "equals", None)

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        return self.function([*parameters], lr=lr)  # type: ignore[no-any-return]


class Steps(Input):
    """So many steps on the weights of a convolution and a linear layer."""

    number: Annotated[int, Interval(ge=1, le=50)]

    def __str__(self) -> str:
        return f"{counted(self.number, 'step')} at lr {LR:g}, weights of shapes 4×3×5×5, 4, 6×100, 6"


class OptimizerKind(Kind[Optimizer]):
    """An optimizer that is tried."""

    name = "optimizer"
    base = Optimizer
    torch_base = "torch.optim:Optimizer"
    needs = ()
    arguments = ("lr",)
    equal_to = get_args(Equal)

    @classmethod
    def wrap(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> Optimizer:
        from torch.optim import Optimizer as TorchOptimizer

        if getattr(called, "step", None) is TorchOptimizer.step:
            raise ImportFailure("it does not define the method step")
        first, *others = signature_of(called) or [""]
        if "lr" not in others:
            raise ImportFailure("its parameters must be the weights, lr, and others by name")
        chosen = checked(called, parameters, dict.fromkeys((first, "lr")))
        others = [name for name in chosen if name not in (first, "lr")]
        return FunctionOptimizer(function=partial(called, **{name: chosen[name] for name in others}))

    @property
    def inputs(self) -> Sequence[Steps]:
        numbers = (LOADING_STEPS,) if self.on.loading else (1, 2, 5)
        return [Steps(number=number) for number in numbers]

    @property
    def equal(self) -> str:
        """The registered optimizer with which it is compared; empty if there is none."""
        return self.on.equals or self.own.equals or ""

    @property
    def compared(self) -> Sequence[Steps]:
        """The steps that are compared with those of another. Raises NotApplicable if there is none."""
        if not self.equal:
            raise NotApplicable("it declares no optimizer that it equals, and --equals is not given")
        return [*self.inputs, Steps(number=50)]

    def built(self, weights: Iterable[Tensor], lr: float = LR) -> TorchOptimizer:
        """The torch optimizer over these weights. Raises ImportFailure if a run cannot use it."""
        from torch.optim import Optimizer as TorchOptimizer

        found: Any = self.own.build(weights, lr)
        if not isinstance(found, TorchOptimizer):
            raise ImportFailure(f"it gives {type(found).__name__}; it must be a torch.optim.Optimizer")
        if not all("lr" in group for group in found.param_groups):
            raise ImportFailure(
                "its groups of parameters have no lr, which the learning-rate schedule sets"
            )
        return found

    def after(self, number: int, lr: float = LR, share: Share = list) -> list[Tensor]:
        """The weights of a rank after so many steps."""
        weights = [weight.requires_grad_() for weight in share(initial())]
        take(self.built(weights, lr), weights, range(number), share)
        return weights

    def facts(self) -> dict[str, Any]:
        """What it declares, and what a rank does otherwise that has a part of the weights."""
        found, whole = super().facts(), self.after(LOADING_STEPS)
        parts = {
            "layerwise": lambda: self._in_halves(LOADING_STEPS),
            "couples_tensors": lambda: self._one_by_one(whole, over_all=True),
            "groups_by_place": lambda: self._one_by_one(whole, over_all=False),
        }
        return {**found, **{name: found[name] or _differ(test) for name, test in parts.items()}}

    def _in_halves(self, number: int) -> Failure | None:
        """How steps differ if a rank has the first half of the rows of each tensor, as with fsdp."""
        return _off(self.after(number, share=halves), halves(self.after(number)), "as of the whole tensor")

    def _one_by_one(self, whole: list[Tensor], over_all: bool) -> Failure | None:
        """How steps differ if a rank has one tensor.

        over_all: the optimizer is built over all tensors, and one is left in its groups, as by zero1. Else
        it is built over one, as by a stage of a pipeline.
        """

        def alone(number: int) -> Tensor:
            weights = initial()
            mine = weights[number]
            built = self.built(weights if over_all else [mine])
            for group in built.param_groups:
                group["params"] = [each for each in group["params"] if each is mine]
            take(built, [mine], range(LOADING_STEPS), lambda drawn: [drawn[number]])
            return mine

        return _off([*map(alone, range(len(whole)))], whole, "with the others")

    @law("steps change all weights and keep them finite", essential=True, at_loading=True)
    def runs(self, steps: Steps) -> Verdict:
        import torch

        weights = self.after(steps.number)
        for weight in weights:
            if not torch.isfinite(weight).all():
                shape = tuple(weight.shape)
                return Failure("finite weights", f"nan or infinity in a tensor of shape {shape}")
        for shape, before, after in zip(SHAPES, initial(), weights, strict=True):
            if torch.equal(before, after) and not self.on.loading:  # a run may train some weights alone
                return Failure("changed weights", f"the tensor of shape {shape} is as before")
        return None

    @law("its weights are those of the optimizer that it equals", lambda self: self.compared)
    def curve(self, steps: Steps) -> Verdict:
        from trainer.spec.registries import OPTIMIZERS

        own = {**dict(self.own), **self.on.parameters}
        same = {name: own[name] for name in OPTIMIZERS.load(self.equal).model_fields if name in own}
        reference = OptimizerKind(OPTIMIZERS.parse({"name": self.equal, **same}))
        return _off(self.after(steps.number), reference.after(steps.number), f"as torch's {self.equal}")

    @law("the loss of a quadratic falls", lambda self: [Steps(number=20)])
    def descends(self, steps: Steps) -> Verdict:
        """Half the squared distance to other weights: its gradient is the difference."""
        weights, best = initial(), drawn(8)

        def differences() -> list[Tensor]:
            return [weight.detach() - to for weight, to in zip(weights, best, strict=True)]

        def loss() -> float:
            return sum(each.double().square().sum().item() / 2 for each in differences())

        before = loss()
        take(self.built(weights), weights, range(steps.number), lambda _: differences())
        after = loss()
        return None if after < before else Failure(f"a loss below {before:.6g}", f"{after:.6g}")

    @law("a gradient of 0 moves no weight away from 0")
    def zero(self, steps: Steps) -> Verdict:
        """Weight decay may move weights towards 0."""
        weights = initial()
        take(self.built(weights), weights, range(steps.number), lambda drawn: [0 * each for each in drawn])
        for was, now in zip(initial(), weights, strict=True):
            grown = ~(now.abs() <= was.abs() * (1 + 1e-6)).flatten()  # or nan
            if grown.any():
                before, after = (each.flatten()[int(grown.int().argmax())].item() for each in (was, now))
                return Failure(f"a weight of {before:.6g} stays or shrinks", f"{after:.6g}")
        return None

    @law("a weight without gradient stays", lambda self: self.inputs[:1])
    def skips(self, steps: Steps) -> Verdict:
        import torch

        first, second, *_ = initial()
        take(self.built([first, second]), [first], range(steps.number), lambda drawn: drawn[:1])
        return None if torch.equal(second, initial()[1]) else Failure("the weight as before", "it moved")

    @law("it follows the learning rate of its groups")
    def rate(self, steps: Steps) -> Verdict:
        """The learning-rate schedule sets `lr` of the parameter groups."""
        weights, low, high = initial(), self.after(steps.number, LOW_LR), self.after(steps.number)
        built = self.built(weights)
        for group in built.param_groups:
            group["lr"] *= LOW_LR / LR
        take(built, weights, range(steps.number))
        if off := _off(weights, low, f"as built with lr {LOW_LR:g}"):
            return Failure(off.expected, f"{off.got}; {REMEDY}")
        moved = [
            sum((now - was).abs().sum().item() for now, was in zip(each, initial(), strict=True))
            for each in (low, high)
        ]
        if moved[0] < moved[1]:
            return None
        return Failure(f"at lr {LOW_LR:g} weights move less than by {moved[1]:.6g}", f"by {moved[0]:.6g}")

    @law("it continues from its state_dict")
    def state(self, steps: Steps) -> Verdict:
        weights = initial()
        built = self.built(weights)
        take(built, weights, range(steps.number))
        copies = [weight.detach().clone().requires_grad_() for weight in weights]
        restored = self.built(copies)
        restored.load_state_dict(deepcopy(built.state_dict()))
        more = range(steps.number, steps.number + MORE_STEPS)
        take(built, weights, more)
        take(restored, copies, more)
        return _off(copies, weights, f"after {MORE_STEPS} more steps")

    @law("the order of the weights does not matter")
    def order(self, steps: Steps) -> Verdict:
        if len(self.built(initial()).param_groups) > 1:  # by their place or their shape
            raise NotApplicable("it groups the weights")
        backwards = self.after(steps.number, share=lambda tensors: tensors[::-1])
        return _off(backwards[::-1], self.after(steps.number), "in the other order")

    @law("layerwise is declared if layers matter")
    def layers(self, steps: Steps) -> Verdict:
        """A rank that holds a part of a tensor must get the same weights."""
        if self.own.layerwise:
            raise NotApplicable("it declares layerwise")
        off = self._in_halves(steps.number)
        return Failure(off.expected, f"{off.got} of its half: declare layerwise = True") if off else None

    @law("it does not depend on global random state", at_loading=True)
    def seeded(self, steps: Steps) -> Verdict:
        import torch

        scatter_seeds(1)
        return repetition_error(
            self.after(steps.number),
            lambda: self.after(steps.number),
            lambda *both: "" if all(map(torch.equal, *both)) else "weights",
            "use a torch.Generator with a seed of its own",
        )

    @law(WRITTEN, lambda self: VECTORS[:1])
    def written(self, together: Together) -> Verdict:
        return written_on_vectors({"optimizer": self.in_run()}, together)


def initial() -> list[Tensor]:
    """Weights; the convolution's are channels_last, as in training."""
    import torch

    convolution, *others = drawn(7)
    weights = [convolution.contiguous(memory_format=torch.channels_last), *others]
    return [torch.nn.Parameter(each) for each in weights]


def drawn(seed: int) -> list[Tensor]:
    """Numbers in the shapes of the weights."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def halves(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of the first half of the rows of each tensor."""
    return [each.detach()[: len(each) // 2].clone() for each in tensors]


def take(built: TorchOptimizer, weights: Iterable[Tensor], steps: range, share: Share = list) -> None:
    """Take steps with drawn gradients, which shrink, as in training. share: those of these weights."""
    for step in steps:
        gradients = [each / (step + 1) for each in drawn(1000 + step)]
        for weight, gradient in zip(weights, share(gradients), strict=True):
            weight.grad = gradient
        try:
            built.step()
        except TypeError as error:
            if "closure" in str(error):
                raise ImportFailure("its step needs a closure, which a run does not give") from error
            raise


def _off(found: list[Tensor], expected: list[Tensor], of: str) -> Failure | None:
    """How weights differ from expected ones; None if they are equal up to rounding."""
    import torch

    for one, other in zip(found, expected, strict=True):
        if not torch.allclose(one, other, rtol=RTOL, atol=ATOL):
            worst = int((one - other).abs().argmax())
            wrong, right = (each.detach().flatten()[worst].item() for each in (one, other))
            shape = "×".join(map(str, other.shape))
            return Failure(f"{of}: weight {worst} of {shape} is {right:.6g}", f"{wrong:.6g}")
    return None


def _differ(test: Callable[[], Failure | None]) -> bool:
    """Whether the steps of a rank with a part of the weights differ."""
    try:
        return test() is not None
    except Exception:  # it needs the others
        return True


class ImportedOptimizer(Imported, Optimizer):
    """A user's optimizer."""

    kind = OptimizerKind

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        return self.own.build(parameters, lr)  # type: ignore[no-any-return]

    def of_model(self, model: nn.Module, lr: float) -> TorchOptimizer:
        return self.own.of_model(model, lr)  # type: ignore[no-any-return]
