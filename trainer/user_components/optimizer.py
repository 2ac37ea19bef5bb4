"""Optimizers of users: a subclass of Optimizer or of torch.optim.Optimizer, or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer.components.facts import Source
from trainer.components.kind import refuse
from trainer.components.parameters import checked, configured, signature_of
from trainer.components.random_state import repetition_error, scatter_seeds
from trainer.core.failure import Failure
from trainer.core.registry import ImportedComponent
from trainer.core.user_code import ImportFailure
from trainer.optimizers.base import Optimizer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer


SHAPES = ((4, 3), (4,), (2, 4), (2,))  # of weights
LR = 0.1
STEPS = 2  # with which an optimizer is tried: some keep state from one to the next


class OptimizerFacts(Source):
    """What is known of an optimizer when a sweep is loaded, by the names of Optimizer."""

    layerwise: bool
    couples_tensors: bool = False
    groups_by_place: bool = False


class ImportedOptimizer(ImportedComponent, Optimizer):
    """A user's optimizer."""

    imported: OptimizerFacts

    @property
    def layerwise(self) -> bool:  # type: ignore[override]
        return self.imported.layerwise

    @property
    def couples_tensors(self) -> bool:  # type: ignore[override]
        return self.imported.couples_tensors

    @property
    def groups_by_place(self) -> bool:  # type: ignore[override]
        return self.imported.groups_by_place

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        return build(self.imported, self.parameters, parameters, lr)


def build(
    source: Source, parameters: Mapping[str, Any], weights: Iterable[Tensor], lr: float
) -> TorchOptimizer:
    """The torch optimizer over `weights`. Raises ImportFailure or ParameterFailure."""
    from torch.optim import Optimizer as TorchOptimizer

    called = source.load()
    if isinstance(called, type) and issubclass(called, Optimizer):
        return configured(called, parameters).build(weights, lr)
    if getattr(called, "step", None) is TorchOptimizer.step:
        raise ImportFailure("it does not define the method step")
    first, *others = signature_of(called) or [""]
    if "lr" not in others:
        raise ImportFailure("its parameters must be the weights, lr, and others by name")
    given = checked(called, parameters, {first: [*weights], "lr": lr})
    built = called(**given)
    if not isinstance(built, TorchOptimizer):
        raise ImportFailure(f"it gives {type(built).__name__}; it must be a torch.optim.Optimizer")
    return built


def _stepped(source: Source, parameters: Mapping[str, Any]) -> list[Tensor]:
    """Weights after steps of the optimizer. Raises ImportFailure if a run cannot take them."""
    weights = _weights()
    optimizer = build(source, parameters, weights, LR)
    if not all("lr" in group for group in optimizer.param_groups):
        raise ImportFailure("its groups of parameters have no lr, which the learning-rate schedule sets")
    try:
        _take_steps(optimizer, weights, range(len(weights)))
    except TypeError as error:
        if "closure" in str(error):
            raise ImportFailure("its step needs a closure, which a run does not give") from error
        raise
    return [each.detach() for each in weights]


def _weights() -> list[Tensor]:
    import torch

    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]


def _take_steps(optimizer: TorchOptimizer, weights: Sequence[Tensor], numbers: Iterable[int]) -> None:
    """Take steps with drawn gradients. numbers: of the weights that have one."""
    for gradients in _gradients():
        for number in numbers:
            weights[number].grad = gradients[number]
        optimizer.step()


def _gradients() -> Iterator[list[Tensor]]:
    """The gradients of each step."""
    import torch

    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step + 1)
        yield [torch.randn(shape, generator=generator) for shape in SHAPES]


def facts(source: Source, parameters: Mapping[str, Any]) -> OptimizerFacts:
    """What a spec says about the optimizer. Raises ImportFailure."""
    whole = _stepped(source, parameters)
    refuse(finite_error(whole))
    refuse(seeded_error(lambda: _stepped(source, parameters)))
    called, makes = source.load(), partial(build, source, parameters, lr=LR)
    return OptimizerFacts(
        **dict(source),
        layerwise=bool(getattr(called, "layerwise", False)) or _is_layerwise(whole, makes),
        couples_tensors=_differ(whole, makes, _with_one),
        groups_by_place=_differ(whole, makes, _over_one),
    )


Makes = Callable[[Iterable["Tensor"]], "TorchOptimizer"]


def _differ(
    whole: Sequence[Tensor], makes: Makes, alone: Callable[[Makes, list[Tensor], int], TorchOptimizer]
) -> bool:
    """Whether a rank that has one tensor takes other steps than one that has all.

    alone: makes the optimizer of such a rank, for all weights and the number of its own.
    """
    import torch

    for number, expected in enumerate(whole):
        weights = _weights()
        try:
            _take_steps(alone(makes, weights, number), weights, [number])
        except Exception:  # it needs the others
            return True
        if not torch.allclose(weights[number], expected, rtol=1e-4, atol=1e-6):
            return True
    return False


def _over_one(makes: Makes, weights: list[Tensor], number: int) -> TorchOptimizer:
    """Built over one tensor, as by a stage of a pipeline."""
    return makes([weights[number]])


def _with_one(makes: Makes, weights: list[Tensor], number: int) -> TorchOptimizer:
    """Built over all, with one tensor left in its groups, as by zero1."""
    optimizer = makes(weights)
    for group in optimizer.param_groups:
        group["params"] = [each for each in group["params"] if each is weights[number]]
    return optimizer


def _is_layerwise(whole: Sequence[Tensor], makes: Makes) -> bool:
    """Whether the steps of a tensor differ if a rank has one row of it, as with fsdp."""
    import torch

    for number, expected in enumerate(whole):
        weights = _weights()
        optimizer, row = _with_one(makes, weights, number), weights[number].detach()[:1].clone()
        for group in optimizer.param_groups:
            group["params"] = [row for _ in group["params"]]
        for gradients in _gradients():
            row.grad = gradients[number][:1].clone()
            optimizer.step()
        if not torch.allclose(row, expected[:1], rtol=1e-4, atol=1e-6):
            return True
    return False


def finite_error(weights: Iterable[Tensor]) -> Failure | None:
    """How weights are not finite after steps; or None."""
    import torch

    for weight in weights:
        if not torch.isfinite(weight).all():
            return Failure("finite weights", f"nan or infinity in a tensor of shape {tuple(weight.shape)}")
    return None


def seeded_error(steps: Callable[[], list[Tensor]]) -> Failure | None:
    """How equal steps give other weights; or None. steps: builds the optimizer and takes them."""
    import torch

    scatter_seeds(1)
    return repetition_error(
        steps(),
        steps,
        lambda *both: "" if all(map(torch.equal, *both)) else "weights",
        "use a torch.Generator with a seed of its own",
    )
