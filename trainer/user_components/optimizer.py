"""Optimizers of users: a subclass of Optimizer or of torch.optim.Optimizer, or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trainer.core.failure import Failure
from trainer.core.registry import ImportedComponent
from trainer.optimizers.base import Optimizer
from trainer.user_components.random_state import repetition_error, scatter_seeds
from trainer.user_components.signature import checked, configured, signature_of
from trainer.user_components.source import ImportFailure, Source, refuse

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer as TorchOptimizer


STEPS = 2  # with which an optimizer is tried: some keep state from one to the next


class OptimizerFacts(Source):
    """What is known of an optimizer when a sweep is loaded."""

    layerwise: bool


class ImportedOptimizer(ImportedComponent, Optimizer):
    """A user's optimizer."""

    imported: OptimizerFacts

    @property
    def layerwise(self) -> bool:  # type: ignore[override]
        return self.imported.layerwise

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
    """Weights after steps of the optimizer on gradients of 1."""
    import torch

    weights = [torch.ones(3, 2, requires_grad=True), torch.ones(2, requires_grad=True)]
    optimizer = build(source, parameters, weights, 0.1)
    if not all("lr" in group for group in optimizer.param_groups):
        raise ImportFailure("its groups of parameters have no lr, which the learning-rate schedule sets")
    for _ in range(STEPS):
        for each in weights:
            each.grad = torch.ones_like(each)
        try:
            optimizer.step()
        except TypeError as error:
            if "closure" in str(error):
                raise ImportFailure("its step needs a closure, which a run does not give") from error
            raise
    return [each.detach() for each in weights]


def facts(source: Source, parameters: Mapping[str, Any]) -> OptimizerFacts:
    """What a spec says about the optimizer. Raises ImportFailure."""
    refuse(finite_error(_stepped(source, parameters)))
    refuse(seeded_error(lambda: _stepped(source, parameters)))
    called = source.load()
    return OptimizerFacts(**dict(source), layerwise=bool(getattr(called, "layerwise", False)))


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
