"""Laws of losses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer.conformance.law import Law, NotApplicable, Note, Outcome
from trainer.core.failure import Failure
from trainer.losses.base import Loss
from trainer.user_components.loss import (
    ACCURACY,
    FunctionLoss,
    mean_error,
    right_error,
    value_difference,
    value_error,
)

if TYPE_CHECKING:
    from torch import Tensor

CLASSES, TOKENS = 3, 4
STEP, STEP32 = 1e-5, 1e-3  # of finite differences, in float64 and in float32


@dataclass(frozen=True)
class Batch:
    """Outputs of a model, and targets.

    outputs: scores, log-probabilities or probabilities of classes, scores for each of 4 tokens, or numbers.
    targets: classes, 0 or 1 for each of several labels, or numbers. fits: whether the loss takes them.
    """

    samples: int
    outputs: str
    targets: str
    fits: bool = True

    def __str__(self) -> str:
        noun = "sample" if self.samples == 1 else "samples"
        shown = f"{self.samples} {noun}: outputs are {self.outputs} of 3, targets {self.targets}"
        return shown if self.fits else f"{shown}; the loss takes none of the {len(FORMS)} kinds"

    def tensors(self, double: bool = False) -> tuple[Tensor, Tensor]:
        """float32 or float64 outputs of shape (samples, 3) or (samples, 4, 3), and their targets."""
        import torch

        drawn = torch.Generator().manual_seed(self.samples)
        places = (self.samples, TOKENS) if self.targets == TOKEN_CLASSES else (self.samples,)
        output = torch.randn(*places, CLASSES, generator=drawn, dtype=torch.float64)
        if self.outputs == "log-probabilities":
            output = output.log_softmax(-1)
        elif self.outputs == "probabilities":
            output = output.softmax(-1)
        targets = torch.randint(CLASSES, places, generator=drawn)
        if self.targets.startswith("labels"):
            targets = torch.randint(2, output.shape, generator=drawn)
        elif self.targets == "numbers":
            targets = torch.randn(output.shape, generator=drawn)
        if self.targets == FLOAT_LABELS or targets.is_floating_point():
            targets = targets.double() if double else targets.float()
        return output if double else output.float(), targets


TOKEN_CLASSES = "classes of 4 tokens"
FLOAT_LABELS = "labels, floating-point"
FORMS = (
    ("log-probabilities", "classes"),
    ("scores", "classes"),
    ("scores", TOKEN_CLASSES),  # before numbers, as which cross_entropy takes flattened tokens
    ("numbers", "numbers"),
    ("scores", "labels"),
    ("probabilities", "labels"),
    ("probabilities", FLOAT_LABELS),
)
SIZES = (1, 2, 5)


def laws(loss: Loss) -> Iterator[Law[Any]]:
    """The laws of a loss."""
    distances = {form: _distance(loss, Batch(2, *form)) for form in FORMS}
    form = min(distances, key=distances.__getitem__)
    batches = [Batch(size, *form, fits=not distances[form]) for size in SIZES]
    law = partial(Law[Batch], inputs=batches)
    yield law("runs", "a batch gives a finite scalar", lambda batch: _runs(loss, batch), essential=True)
    yield law("mean", "it is the mean over the samples", lambda each: mean_error(loss, 1, *each.tensors()))
    yield law(
        "sum",
        "with reduction sum, it is that of the samples",
        lambda batch: _sum(loss, batch),
    )
    yield law("gradient", "gradients equal finite differences", lambda batch: _gradient(loss, batch))
    yield law("right", "answers are right from 0 to 1, one a sample", lambda batch: _right(loss, batch))
    yield law("unchanged", "it leaves its arguments unchanged", lambda batch: _unchanged(loss, batch))
    yield law("shapes", "output_error reports a wrong shape", lambda batch: _shapes(loss, batch))


def _distance(loss: Loss, batch: Batch) -> int:
    """0 if the loss takes the batch; 1 if it gives a wrong value; 2 if it gives none."""
    try:
        if _output_error(loss, *batch.tensors()):
            return 2
        return 1 if _runs(loss, batch) else 0
    except Exception:  # these outputs and targets are not what it takes
        return 2


def measures_answers(loss: Loss) -> bool:
    """Whether it gives a number for each answer, without a gradient, as the accuracy of a loss does."""
    import torch

    for form in FORMS:
        output, targets = Batch(2, *form).tensors()
        try:
            with warnings.catch_warnings(action="ignore"):  # of torch, on kinds that do not fit
                value: Any = loss.of(output.requires_grad_(), targets)
        except Exception:  # these outputs and targets are not what it takes
            continue
        return isinstance(value, torch.Tensor) and value.dim() > 0 and not value.requires_grad
    return False


def _output_error(loss: Loss, output: Tensor, targets: Tensor) -> str | None:
    """Why the outputs do not fit. That of a plain function concerns the accuracy: see `_right`."""
    return None if isinstance(loss, FunctionLoss) else loss.output_error(output, targets)


def _runs(loss: Loss, batch: Batch) -> Outcome:
    output, targets = batch.tensors()
    if error := _output_error(loss, output, targets):
        return Failure(f"outputs and targets of one of {len(FORMS)} kinds fit", error)
    with warnings.catch_warnings(action="ignore"):  # of torch, on kinds that do not fit
        value: Any = loss.of(output.requires_grad_(), targets)
    return value_error(value)


def _sum(loss: Loss, batch: Batch) -> Outcome:
    output, targets = batch.tensors()
    return value_difference(
        loss.of(output, targets, "sum"),
        loss.of(output, targets) * loss.total(targets),
        f"{loss.total(targets):g} times the mean",
    )


def _gradient(loss: Loss, batch: Batch) -> Outcome:
    """Compare with differences to both sides: at a kink of the loss, any slope between them is right."""
    import torch

    double = _computes_in_float64(loss, batch)
    output, targets = batch.tensors(double)
    step = STEP if double else STEP32
    leaf = output.clone().requires_grad_()
    value = loss.of(leaf, targets)
    value.backward()
    found = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
    rounding = 4 * torch.finfo(value.dtype).eps * abs(value.item()) / step
    for at in range(output.numel()):
        slopes = []
        for way in (step, -step):
            moved = output.clone()
            moved.view(-1)[at] += way
            slopes.append((loss.of(moved, targets) - value).item() / way)
        low, high = sorted(slopes)
        got = found.view(-1)[at].item()
        allowed = 1e-3 * max(1.0, abs(low), abs(high)) + rounding
        if not low - allowed <= got <= high + allowed:
            return Failure(f"gradient {sum(slopes) / 2:.6g} of output {at}", f"{got:.6g}")
    return None


def _computes_in_float64(loss: Loss, batch: Batch) -> bool:
    """Whether it does: it may convert to float32, or have float32 constants, which float64 does not fit."""
    import torch

    try:
        return loss.of(*batch.tensors(double=True)).dtype == torch.float64
    except Exception:  # it is tried in float32
        return False


def _right(loss: Loss, batch: Batch) -> Outcome:
    if error := _lacks_accuracy(loss, batch):
        return Note(f"in a run, {error}; --set {ACCURACY}=NAME tries it")
    return right_error(loss.right(*batch.tensors()), batch.samples)


def _lacks_accuracy(loss: Loss, batch: Batch) -> str | None:
    """Why a run refuses a function that the share of right classes does not measure; or None."""
    return loss.output_error(*batch.tensors()) if isinstance(loss, FunctionLoss) else None


def _unchanged(loss: Loss, batch: Batch) -> Outcome:
    import torch

    output, targets = batch.tensors()
    loss.of(output, targets)
    if not _lacks_accuracy(loss, batch):
        loss.right(output, targets)
    for what, now, before in zip(("outputs", "targets"), (output, targets), batch.tensors(), strict=True):
        if not torch.equal(now, before):
            return Failure(f"the {what} as before", "other ones")
    return None


def _shapes(loss: Loss, batch: Batch) -> Outcome:
    """Outputs without a dimension fit no targets of classes or of several numbers."""
    if isinstance(loss, FunctionLoss):
        raise NotApplicable("only a subclass of Loss defines output_error")
    output, targets = batch.tensors()
    wrong = output[:, 0]
    if loss.output_error(wrong, targets) is None:
        return Failure(
            f"an error for outputs of shape {tuple(wrong.shape)} and targets of {tuple(targets.shape)}",
            "none",
        )
    return None
