"""Losses of users: a subclass of Loss, an nn.Module, or a function of output and target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import getdoc
from typing import TYPE_CHECKING, Any

from trainer.core.failure import Failure
from trainer.core.registry import ImportedComponent
from trainer.losses.base import Loss, Reduction, class_error, per_sample
from trainer.user_components.signature import bound, checked, configured
from trainer.user_components.source import ImportFailure, Source

if TYPE_CHECKING:
    from torch import Tensor

RTOL, ATOL = 1e-4, 1e-6  # of losses that sums in another order give
ACCURACY = "accuracy"  # the parameter that names the function of how right an answer is


class LossFacts(Source):
    """What is known of a loss when a sweep is loaded. accuracy_is: what the accuracy means."""

    accuracy_is: str | None


class ImportedLoss(ImportedComponent, Loss):
    """A user's loss."""

    imported: LossFacts

    @property
    def accuracy_is(self) -> str | None:
        return self.imported.accuracy_is

    @cached_property
    def _own(self) -> Loss:
        return build(self.imported, self.parameters)

    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        return self._own.of(output, target, reduction)

    def right(self, output: Tensor, target: Tensor) -> Tensor:
        return self._own.right(output, target)

    def output_error(self, output: Tensor, target: Tensor) -> str | None:
        return self._own.output_error(output, target)


class FunctionLoss(Loss):
    """A function of output and target that returns the mean over the batch, as a loss.

    accuracy: a function of output and target that returns how right each answer is, 0 … 1, shape
    (batch, …); None: the share of samples of the right class.
    """

    function: Callable[..., Any]
    accuracy: Callable[..., Any] | None

    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        mean: Tensor = self.function(output, target)
        return mean if reduction == "mean" else mean * len(output)

    def right(self, output: Tensor, target: Tensor) -> Tensor:
        if self.accuracy is None:
            return super().right(output, target)
        return per_sample(self.accuracy(output, target).float())

    def output_error(self, output: Tensor, target: Tensor) -> str | None:
        return class_accuracy_error(output, target) if self.accuracy is None else None

    @property
    def accuracy_is(self) -> str | None:
        if self.accuracy is None:
            return None
        summary = (getdoc(self.accuracy) or "").strip().partition("\n")[0]
        return summary[:1].lower() + summary[1:].rstrip(".") or f"what {self.accuracy.__name__} returns"


def class_accuracy_error(output: Tensor, target: Tensor) -> str | None:
    """Return an error message where the share of right classes is no measure of these outputs."""
    error = class_error(output, target)
    if error is None:
        return None
    return (
        f"its accuracy would be the share of right classes, but {error}; give the loss the parameter "
        f"{ACCURACY}: the name of a function in the same file that returns how right each answer is, 0 … 1"
    )


def value_error(value: Any) -> Failure | None:
    """How the loss of a batch cannot be minimised; or None."""
    import torch

    if not isinstance(value, torch.Tensor) or value.dim():
        return Failure("a tensor without dimensions, the mean over the batch", _described("a loss", value))
    if not torch.isfinite(value):
        return Failure("a finite loss", f"a loss of {value.item()}")
    return None if value.requires_grad else Failure("a gradient", "no gradient flows to the outputs")


def right_error(right: Any, samples: int) -> Failure | None:
    """How a measure of right answers is none; or None."""
    import torch

    if not isinstance(right, torch.Tensor) or tuple(right.shape) != (samples,):
        return Failure(f"shape ({samples},), an accuracy for each sample", _described("an accuracy", right))
    if right.min() < 0 or right.max() > 1 or right.isnan().any():
        return Failure("0 to 1", f"an accuracy of {right.min().item():g} to {right.max().item():g}")
    return None


def _described(what: str, value: Any) -> str:
    shape = f" and shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return f"{what} of type {type(value).__name__}{shape}"


def mean_error(loss: Loss, size: int, output: Tensor, target: Tensor) -> Failure | None:
    """How the loss of a batch is not the mean of those of its parts, of `size` samples each; or None."""
    import torch

    parts = [loss.of(*part) for part in zip(output.split(size), target.split(size), strict=True)]
    of = f"the mean of the losses of {size} sample{'s' * (size > 1)} each, since ranks share a batch"
    return value_difference(loss.of(output, target), torch.stack(parts).mean(), of)


def value_difference(found: Tensor, expected: Tensor, of: str) -> Failure | None:
    """How a loss differs from an expected one; None if they are equal up to rounding."""
    import torch

    if torch.allclose(found, expected.to(found.dtype), rtol=RTOL, atol=ATOL):
        return None
    return Failure(f"{expected.item():.6g}, {of}", f"a loss of {found.item():.6g}")


def build(source: Source, parameters: Mapping[str, Any]) -> Loss:
    """The loss. Raises ImportFailure or ParameterFailure."""
    from torch import nn

    called = source.load()
    if isinstance(called, type) and issubclass(called, Loss):
        return configured(called, parameters)
    parameters = dict(parameters)
    accuracy = parameters.pop(ACCURACY, None)
    if accuracy is not None and not isinstance(accuracy, str):
        raise ImportFailure(f"{ACCURACY} is {accuracy!r}; allowed: the name of a function in the same file")
    measure = None
    if accuracy is not None:
        measure = source.model_copy(update={"attribute": accuracy}).load()
    if isinstance(called, type) and issubclass(called, nn.Module):
        function = called(**checked(called, parameters, {}))
        return FunctionLoss(function=function, accuracy=measure or getattr(function, "right", None))
    return FunctionLoss(function=bound(called, parameters, ("output", "target")), accuracy=measure)


def facts(source: Source, parameters: Mapping[str, Any]) -> LossFacts:
    """What a spec says about the loss. Raises ImportFailure."""
    own = build(source, parameters)
    return LossFacts(**dict(source), accuracy_is=own.accuracy_is)
