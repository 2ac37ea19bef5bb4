"""Losses of users: a subclass of Loss, an nn.Module, or a function of output and target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import getdoc
from typing import TYPE_CHECKING, Any, cast

from trainer.components.facts import Source
from trainer.components.parameters import bound, checked, configured, signature_of
from trainer.core.failure import Failure
from trainer.core.registry import ImportedComponent
from trainer.core.user_code import ImportFailure
from trainer.losses.base import CHOICE, Loss, Reduction, class_error, per_sample

if TYPE_CHECKING:
    from torch import Tensor

RTOL, ATOL = 1e-4, 1e-6  # of losses that sums in another order give
ACCURACY = "accuracy"  # the parameter that names the function of how right an answer is
WEIGHT = "weight"  # that of the weight of each sample


class LossFacts(Source):
    """What is known of a loss when a sweep is loaded.

    accuracy_is: what the accuracy means. weighted: whether samples have weights.
    """

    accuracy_is: str | None
    weighted: bool = False


class ImportedLoss(ImportedComponent, Loss):
    """A user's loss."""

    imported: LossFacts

    @property
    def accuracy_is(self) -> str | None:
        return self.imported.accuracy_is

    @property
    def weighted(self) -> bool:
        return self.imported.weighted

    @cached_property
    def _own(self) -> Loss:
        return build(self.imported, self.parameters)

    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        return self._own.of(output, target, reduction)

    def weights(self, target: Tensor) -> Tensor | None:
        return self._own.weights(target)

    def right(self, output: Tensor, target: Tensor) -> Tensor:
        return self._own.right(output, target)

    def output_error(self, output: Tensor, target: Tensor) -> str | None:
        return self._own.output_error(output, target)


class FunctionLoss(Loss):
    """A function of output and target that returns the mean over the batch, as a loss.

    accuracy: a function of output and target that returns how right each answer is, 0 … 1, shape
    (batch, …); None: the share of samples of the right class. weight: a function of the target that returns
    the weight of each sample in the mean, shape (batch, …); None: all count alike.
    """

    function: Callable[..., Any]
    accuracy: Callable[..., Any] | None
    weight: Callable[..., Any] | None = None

    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        mean: Tensor = self.function(output, target)
        if reduction == "mean":
            return mean
        total = self.total(target)
        return mean * total if total else output.sum() * 0.0  # a mean over no weight is nan

    @property
    def weighted(self) -> bool:
        return self.weight is not None

    def weights(self, target: Tensor) -> Tensor | None:
        if self.weight is None:
            return None
        weights: Tensor = self.weight(target)
        return weights.flatten(1).sum(1) if weights.dim() > 1 else weights

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


def scores_error(loss: Loss, output: Tensor, classes: int) -> str | None:
    """Return an error message if the model has fewer scores than the dataset classes; or None.

    A loss with its own measure of accuracy may need fewer.
    """
    own = loss._own if isinstance(loss, ImportedLoss) else loss
    measured = (
        own.accuracy is not None if isinstance(own, FunctionLoss) else type(own).right is not Loss.right
    )
    if classes == 1 or measured or output.dim() < 2 or output.shape[1] >= classes:
        return None
    return (
        f"the model returns {output.shape[1]} score{'s' * (output.shape[1] > 1)} for each sample, and the "
        f"dataset has {classes} classes, 0 to {classes - 1}"
    )


def rounded_error(loss: Loss, output: Tensor, target: Tensor) -> str | None:
    """Return an error message if the loss takes floating-point targets as classes; or None.

    A loss of numbers has another value for targets between whole numbers. One that rounds them trains on
    classes that partitioners, reports and the number of the model's outputs do not know.
    """
    import torch

    low, high = target.min(), target.max()
    if target.dim() != 1 or not target.is_floating_point() or low == high:
        return None
    if not torch.equal(target, target.round()):
        return None
    between = target + 0.25 * (target < high)  # within their range, which some losses need
    try:
        rounds = torch.equal(loss.of(output, target), loss.of(output, between))
    except Exception:  # it takes whole numbers alone
        rounds = True
    if not rounds:
        return None
    return (
        f"it takes the targets as classes, and they are floating-point numbers, {low:g} to {high:g}; "
        f"{CHOICE}, or targets of shape (samples, 1)"
    )


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
    parts = [
        (loss.of(*part), loss.total(part[1]))
        for part in zip(output.split(size), target.split(size), strict=True)
    ]
    mean = sum(value * total for value, total in parts if total) / loss.total(target)
    of = (
        f"the mean of the losses of {size} sample{'s' * (size > 1)} each, since ranks share a batch; the "
        f"parameter `{WEIGHT}` states weights of samples"
    )
    return value_difference(loss.of(output, target), cast("Tensor", mean), of)


def weights_error(loss: Loss, target: Tensor) -> Failure | None:
    """How the weights of samples are none; or None."""
    import torch

    weights: Any = loss.weights(target)
    if weights is None:
        return None
    if not isinstance(weights, torch.Tensor) or tuple(weights.shape) != (len(target),):
        return Failure(f"shape ({len(target)},), a weight for each sample", _described("weights", weights))
    if not (torch.isfinite(weights).all() and weights.min() >= 0 and weights.sum() > 0):
        return Failure("weights from 0 on, not all 0", f"{weights.min():g} to {weights.max():g}")
    return None


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
    named = {}
    for parameter in (ACCURACY, WEIGHT):
        if parameter in parameters and parameter not in signature_of(called):
            named[parameter] = _named(source, parameter, parameters.pop(parameter))
    accuracy, weight = named.get(ACCURACY), named.get(WEIGHT)
    if isinstance(called, type) and issubclass(called, nn.Module):
        function: Callable[..., Any] = called(**checked(called, parameters, {}))
        accuracy = accuracy or getattr(function, "right", None)
        weight = weight or getattr(function, "weights", None) or _class_weights(function)
    else:
        function = bound(called, parameters, ("output", "target"))
    return FunctionLoss(function=function, accuracy=accuracy, weight=weight)


def _named(source: Source, parameter: str, name: Any) -> Any:
    """The function that a parameter names. Raises ImportFailure."""
    if not isinstance(name, str):
        raise ImportFailure(f"{parameter} is {name!r}; allowed: the name of a function in the same file")
    return source.model_copy(update={"attribute": name}).load()


def _class_weights(module: Any) -> Callable[[Tensor], Tensor] | None:
    """The weights of samples in torch's losses of classes, as their mean uses them; or None."""
    import torch
    from torch import nn

    if type(module).forward not in (nn.CrossEntropyLoss.forward, nn.NLLLoss.forward):
        return None

    def weights(target: Tensor) -> Tensor:
        if target.is_floating_point():  # probabilities
            return torch.ones(len(target))
        counts = target != module.ignore_index
        classes = torch.where(counts, target, 0)
        found: Tensor = counts.double() if module.weight is None else counts * module.weight[classes]
        return found

    return weights


def facts(source: Source, parameters: Mapping[str, Any]) -> LossFacts:
    """What a spec says about the loss. Raises ImportFailure."""
    own = build(source, parameters)
    return LossFacts(**dict(source), accuracy_is=own.accuracy_is, weighted=own.weighted)
