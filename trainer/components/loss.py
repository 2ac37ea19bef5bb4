"""Losses: a subclass of Loss, an nn.Module, or a function of output and target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any, cast

from annotated_types import Interval

from trainer.components.facts import Imported, Source
from trainer.components.kind import Input, Kind, NotApplicable, Note, Verdict, counted, law, refuse
from trainer.components.parameters import bound, checked, is_class, signature_of
from trainer.components.written import VECTORS, WRITTEN, Together, written_on_vectors
from trainer.core.failure import Failure
from trainer.core.user_code import ImportFailure
from trainer.losses.base import CHOICE, Loss, Reduction, class_error, per_sample

if TYPE_CHECKING:
    from torch import Tensor

RTOL, ATOL = 1e-4, 1e-6  # of losses that sums in another order give
STEP, STEP32 = 1e-5, 1e-3  # of finite differences, in float64 and in float32
ACCURACY = "accuracy"  # the parameter that names the function of how right an answer is
WEIGHT = "weight"  # that of the weight of each sample

CLASSES, TOKENS = 3, 4
TOKEN_CLASSES = "classes of 4 tokens"
FLOAT_LABELS = "labels, floating-point"
# Outputs of a model, and targets: each kind of them that a loss may take.
FORMS = (
    ("log-probabilities", "classes"),
    ("scores", "classes"),
    ("scores", TOKEN_CLASSES),  # before numbers, as which cross_entropy takes flattened tokens
    ("numbers", "numbers"),
    ("scores", "labels"),
    ("probabilities", "labels"),
    ("probabilities", FLOAT_LABELS),
)


class FunctionLoss(Loss):
    """A function of output and target that returns the mean over the batch, as a loss.

    accuracy: a function of output and target that returns how right each answer is, 0 … 1, shape
    (batch, …); None: the share of samples of the right class. weight: a function of the target that returns
    the weight of each sample in the mean, shape (batch, …); None: all count alike.
    """

    function: Callable[..., Any]
    accuracy: Callable[..., Any] | None = None
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
        """Return an error message where the share of right classes is no measure of these outputs."""
        error = class_error(output, target) if self.accuracy is None else None
        if error is None:
            return None
        return (
            f"its accuracy would be the share of right classes, but {error}; give the loss the parameter "
            f"{ACCURACY}: the name of a function in the same file that returns how right each answer is, "
            "0 … 1"
        )

    @property
    def accuracy_is(self) -> str | None:
        if self.accuracy is None:
            return None
        summary = (getdoc(self.accuracy) or "").strip().partition("\n")[0]
        return summary[:1].lower() + summary[1:].rstrip(".") or f"what {self.accuracy.__name__} returns"


class Batch(Input):
    """Outputs of a model, and targets. form: of FORMS. fits: whether the loss takes them."""

    samples: Annotated[int, Interval(ge=1, le=5)]
    form: Annotated[int, Interval(ge=0, lt=len(FORMS))]
    fits: bool = True

    def __str__(self) -> str:
        outputs, targets = FORMS[self.form]
        shown = f"{counted(self.samples, 'sample')}: outputs are {outputs} of 3, targets {targets}"
        return shown if self.fits else f"{shown}; the loss takes none of the {len(FORMS)} kinds"

    def tensors(self, double: bool = False) -> tuple[Tensor, Tensor]:
        """float32 or float64 outputs of shape (samples, 3) or (samples, 4, 3), and their targets."""
        import torch

        outputs, targets = FORMS[self.form]
        drawn = torch.Generator().manual_seed(self.samples)
        places = (self.samples, TOKENS) if targets == TOKEN_CLASSES else (self.samples,)
        output = torch.randn(*places, CLASSES, generator=drawn, dtype=torch.float64)
        if outputs == "log-probabilities":
            output = output.log_softmax(-1)
        elif outputs == "probabilities":
            output = output.softmax(-1)
        target = torch.randint(CLASSES, places, generator=drawn)
        if targets.startswith("labels"):
            target = torch.randint(2, output.shape, generator=drawn)
        elif targets == "numbers":
            target = torch.randn(output.shape, generator=drawn)
        if targets in ("numbers", FLOAT_LABELS):
            target = target.double() if double else target.float()
        return output if double else output.float(), target


class LossKind(Kind[Loss]):
    """A loss that is tried, on the outputs and targets that it takes."""

    name = "loss"
    base = Loss
    torch_base = "torch.nn.modules.loss:_Loss"
    needs = ()
    arguments = ("output", "target")

    @classmethod
    def wrap(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> Loss:
        from torch import nn

        parameters = dict(parameters)
        named = {
            parameter: _named(source, parameter, parameters.pop(parameter))
            for parameter in (ACCURACY, WEIGHT)
            if parameter in parameters and parameter not in signature_of(called)
        }
        if not is_class(called, nn.Module):
            return FunctionLoss(function=bound(called, parameters, cls.arguments), **named)
        module = called(**checked(called, parameters, {}))
        accuracy = getattr(module, "right", None)
        weight = getattr(module, "weights", None) or _class_weights(module)
        return FunctionLoss(**{"function": module, ACCURACY: accuracy, WEIGHT: weight, **named})

    @classmethod
    def recognises(cls, found: type) -> bool:
        """Also a module whose forward pass has the arguments of a loss."""
        from torch import nn

        if issubclass(found, nn.Module) and {*cls.arguments} <= {*signature_of(found.forward)}:
            return True
        return super().recognises(found)

    @cached_property
    def inputs(self) -> Sequence[Batch]:
        distance, form = min((self._distance(form), form) for form in range(len(FORMS)))
        return [Batch(samples=samples, form=form, fits=not distance) for samples in (1, 2, 5)]

    def _distance(self, form: int) -> int:
        """0 if the loss takes such outputs and targets; 1 if it gives a wrong value; 2 if it gives none."""
        batch = Batch(samples=2, form=form)
        with suppress(Exception):  # these outputs and targets are not what it takes
            return 2 if self._misfit(batch) else 1 if self.runs(batch) else 0
        return 2

    def left_out(self) -> str | None:
        """Why it is no loss after all: it measures answers, as the accuracy of a loss does; or None."""
        for form in range(len(FORMS)):
            with suppress(Exception):  # these outputs and targets are not what it takes
                value = self._value(Batch(samples=2, form=form))
                if not value.dim() or value.requires_grad:
                    break
                return (
                    "it gives a number for each answer, as the accuracy of a loss does; a loss gives one: "
                    f"check it as {self.on.name}"
                )
        return None

    def _value(self, batch: Batch) -> Any:
        output, targets = batch.tensors()
        with warnings.catch_warnings(action="ignore"):  # of torch, on kinds that do not fit
            return self.own.of(output.requires_grad_(), targets)

    @property
    def _is_function(self) -> bool:
        return isinstance(self.own, FunctionLoss)

    def _misfit(self, batch: Batch) -> str | None:
        """Why the outputs do not fit; or None."""
        return None if self._is_function else self.own.output_error(*batch.tensors())

    def _lacks_accuracy(self, batch: Batch) -> str | None:
        """Why a run refuses a function that the share of right classes does not measure; or None."""
        return self.own.output_error(*batch.tensors()) if self._is_function else None

    @law("a batch gives a finite scalar", essential=True)
    def runs(self, batch: Batch) -> Verdict:
        if error := self._misfit(batch):
            return Failure(f"outputs and targets of one of {len(FORMS)} kinds fit", error)
        return value_error(self._value(batch))

    @law("it is the mean over the samples")
    def mean(self, batch: Batch) -> Verdict:
        return mean_error(self.own, 1, *batch.tensors())

    @law("with reduction sum, it is that of the samples")
    def sum(self, batch: Batch) -> Verdict:
        output, targets = batch.tensors()
        found, total = self.own.of(output, targets, "sum"), self.own.total(targets)
        return value_difference(found, self.own.of(output, targets) * total, f"{total:g} times the mean")

    @law("gradients equal finite differences")
    def gradient(self, batch: Batch) -> Verdict:
        """Compare with differences to both sides: at a kink, any slope between them is right."""
        import torch

        double = self._computes_in_float64(batch)
        output, targets = batch.tensors(double)
        step = STEP if double else STEP32
        leaf = output.clone().requires_grad_()
        value = self.own.of(leaf, targets)
        value.backward()
        found = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
        rounding = 4 * torch.finfo(value.dtype).eps * abs(value.item()) / step
        for at in range(output.numel()):
            slopes = []
            for way in (step, -step):
                moved = output.clone()
                moved.view(-1)[at] += way
                slopes.append((self.own.of(moved, targets) - value).item() / way)
            low, high = sorted(slopes)
            got = found.view(-1)[at].item()
            allowed = 1e-3 * max(1.0, abs(low), abs(high)) + rounding
            if not low - allowed <= got <= high + allowed:
                return Failure(f"gradient {(low + high) / 2:.6g} of output {at}", f"{got:.6g}")
        return None

    def _computes_in_float64(self, batch: Batch) -> bool:
        """Whether it does: it may convert to float32, or have constants of float32, which do not fit."""
        import torch

        try:
            return self.own.of(*batch.tensors(double=True)).dtype == torch.float64
        except Exception:  # it is tried in float32
            return False

    @law("answers are right from 0 to 1, one a sample")
    def right(self, batch: Batch) -> Verdict:
        if error := self._lacks_accuracy(batch):
            return Note(f"in a run, {error}; --set {ACCURACY}=NAME tries it")
        return right_error(self.own.right(*batch.tensors()), batch.samples)

    @law("it leaves its arguments unchanged")
    def unchanged(self, batch: Batch) -> Verdict:
        import torch

        given = batch.tensors()
        self.own.of(*given)
        if not self._lacks_accuracy(batch):
            self.own.right(*given)
        for what, now, before in zip(("outputs", "targets"), given, batch.tensors(), strict=True):
            if not torch.equal(now, before):
                return Failure(f"the {what} as before", "other ones")
        return None

    @law("output_error reports a wrong shape")
    def shapes(self, batch: Batch) -> Verdict:
        """Outputs without a dimension fit no targets of classes or of several numbers."""
        if self._is_function:
            raise NotApplicable("only a subclass of Loss defines output_error")
        output, targets = batch.tensors()
        wrong = output[:, 0]
        if self.own.output_error(wrong, targets) is None:
            shapes = f"outputs of shape {tuple(wrong.shape)} and targets of {tuple(targets.shape)}"
            return Failure(f"an error for {shapes}", "none")
        return None

    @law(WRITTEN, lambda self: VECTORS)
    def written(self, together: Together) -> Verdict:
        return written_on_vectors({"loss": self.in_run()}, together)


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


def fit_error(loss: Loss, output: Tensor, target: Tensor, classes: int) -> None:
    """Refuse a loss that does not fit the output of a model, from which gradients flow, and the targets.

    classes: of the dataset; 1 if it has none. Raises ImportFailure, or what users' code raises.
    """
    if reason := scores_error(loss, output, classes) or loss.output_error(output, target):
        raise ImportFailure(reason)
    refuse(weights_error(loss, target))
    try:
        value = loss.of(output, target)
    except IndexError as error:
        has = f"and the dataset has {classes} classes" if classes > 1 else "and no classes"
        raise IndexError(f"{error}; the model returns shape {tuple(output.shape)}, {has}") from error
    refuse(value_error(value))
    if reason := rounded_error(loss, output, target):
        raise ImportFailure(reason)
    output, half = output.detach(), len(output) // 2
    refuse(right_error(loss.right(output, target), len(output)))
    if half:
        refuse(mean_error(loss, half, output[: 2 * half], target[: 2 * half]))


def scores_error(loss: Loss, output: Tensor, classes: int) -> str | None:
    """Return an error message if the model has fewer scores than the dataset classes; or None.

    A loss with its own measure of accuracy may need fewer.
    """
    own = loss.own if isinstance(loss, ImportedLoss) else loss
    measured = (
        own.accuracy is not None if isinstance(own, FunctionLoss) else type(own).right is not Loss.right
    )
    if measured or output.dim() < 2 or output.shape[1] >= classes:
        return None
    return (
        f"the model returns {counted(output.shape[1], 'score')} for each sample, and the dataset has "
        f"{classes} classes, 0 to {classes - 1}"
    )


def rounded_error(loss: Loss, output: Tensor, target: Tensor) -> str | None:
    """Return an error message if the loss takes floating-point targets as classes; or None.

    A loss of numbers has another value for targets between whole numbers. One that rounds them trains on
    classes that partitioners, reports and the number of the model's outputs do not know.
    """
    import torch

    low, high = target.min(), target.max()
    whole = target.is_floating_point() and torch.equal(target, target.round())
    if target.dim() != 1 or low == high or not whole:
        return None
    between = target + 0.25 * (target < high)  # within their range, which some losses need
    with suppress(Exception):  # it takes whole numbers alone
        if not torch.equal(loss.of(output, target), loss.of(output, between)):
            return None
    return (
        f"it takes the targets as classes, and they are floating-point numbers, {low:g} to {high:g}; "
        f"{CHOICE}, or targets of shape (samples, 1)"
    )


def value_error(value: Any) -> Failure | None:
    """How the loss of a batch cannot be minimised; or None."""
    if wrong := _shape_error(value, (), "a tensor without dimensions, the mean over the batch", "a loss"):
        return wrong
    if not value.isfinite():
        return Failure("a finite loss", f"a loss of {value.item()}")
    return None if value.requires_grad else Failure("a gradient", "no gradient flows to the outputs")


def right_error(right: Any, samples: int) -> Failure | None:
    """How a measure of right answers is none; or None."""
    expected = f"shape ({samples},), an accuracy for each sample"
    if wrong := _shape_error(right, (samples,), expected, "an accuracy"):
        return wrong
    if right.min() < 0 or right.max() > 1 or right.isnan().any():
        return Failure("0 to 1", f"an accuracy of {right.min().item():g} to {right.max().item():g}")
    return None


def weights_error(loss: Loss, target: Tensor) -> Failure | None:
    """How the weights of samples are none; or None."""
    weights, samples = loss.weights(target), len(target)
    if weights is None:
        return None
    expected = f"shape ({samples},), a weight for each sample"
    if wrong := _shape_error(weights, (samples,), expected, "weights"):
        return wrong
    if not (weights.isfinite().all() and weights.min() >= 0 and weights.sum() > 0):
        return Failure("weights from 0 on, not all 0", f"{weights.min():g} to {weights.max():g}")
    return None


def _shape_error(value: Any, shape: tuple[int, ...], expected: str, what: str) -> Failure | None:
    import torch

    if isinstance(value, torch.Tensor) and tuple(value.shape) == shape:
        return None
    of_shape = f" and shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return Failure(expected, f"{what} of type {type(value).__name__}{of_shape}")


def mean_error(loss: Loss, size: int, output: Tensor, target: Tensor) -> Failure | None:
    """How the loss of a batch is not the mean of those of its parts, of `size` samples each; or None."""
    parts = [
        (loss.of(*part), loss.total(part[1]))
        for part in zip(output.split(size), target.split(size), strict=True)
    ]
    mean = sum(value * total for value, total in parts if total) / loss.total(target)
    of = (
        f"the mean of the losses of {counted(size, 'sample')} each, since ranks share a batch; the "
        f"parameter `{WEIGHT}` states weights of samples"
    )
    return value_difference(loss.of(output, target), cast("Tensor", mean), of)


def value_difference(found: Tensor, expected: Tensor, of: str) -> Failure | None:
    """How a loss differs from an expected one; None if they are equal up to rounding."""
    import torch

    if torch.allclose(found, expected.to(found.dtype), rtol=RTOL, atol=ATOL):
        return None
    return Failure(f"{expected.item():.6g}, {of}", f"a loss of {found.item():.6g}")


class ImportedLoss(Imported, Loss):
    """A user's loss."""

    kind = LossKind

    def of(self, output: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
        return self.own.of(output, target, reduction)  # type: ignore[no-any-return]

    def weights(self, target: Tensor) -> Tensor | None:
        return self.own.weights(target)  # type: ignore[no-any-return]

    def right(self, output: Tensor, target: Tensor) -> Tensor:
        return self.own.right(output, target)  # type: ignore[no-any-return]

    def output_error(self, output: Tensor, target: Tensor) -> str | None:
        return self.own.output_error(output, target)  # type: ignore[no-any-return]
