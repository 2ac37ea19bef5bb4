"""Laws of losses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.conformance.law import Failure, Law, NotApplicable, Outcome
from trainer.imported.loss import FunctionLoss
from trainer.losses.base import Loss

if TYPE_CHECKING:
    from torch import Tensor

CLASSES, LENGTH = 3, 4
RTOL, ATOL = 1e-4, 1e-6
STEP = 1e-5  # of finite differences, in float64


@dataclass(frozen=True)
class Batch:
    """Outputs of a model, and targets.

    outputs: scores, probabilities or log-probabilities of classes, or numbers. targets: classes, 0 or 1 for
    each of several labels, or numbers.
    """

    samples: int
    outputs: str
    targets: str

    def __str__(self) -> str:
        noun = "sample" if self.samples == 1 else "samples"
        return f"{self.samples} {noun}: outputs are {self.outputs} of 3, targets {self.targets}"

    def tensors(self, double: bool = False) -> tuple[Tensor, Tensor]:
        """Outputs of shape (samples, 3), of tokens (samples, 4, 3), in float32 or float64; and targets."""
        import torch

        drawn = torch.Generator().manual_seed(self.samples)
        shape = (self.samples, LENGTH) if self.targets == "a class per token" else (self.samples,)
        output = torch.randn(*shape, CLASSES, generator=drawn, dtype=torch.float64)
        if self.outputs == "log-probabilities":
            output = output.log_softmax(-1)
        elif self.outputs == "probabilities":
            output = output.softmax(-1)
        targets = torch.randint(CLASSES, shape, generator=drawn)
        if self.targets.startswith("labels"):
            targets = torch.randint(2, (self.samples, CLASSES), generator=drawn)
        elif self.targets == "numbers":
            targets = torch.randn(self.samples, CLASSES, generator=drawn, dtype=torch.float64)
        if self.targets in ("numbers", "labels as floating-point numbers"):
            targets = targets.to(torch.float64 if double else torch.float32)
        return output if double else output.float(), targets


FORMS = (
    ("log-probabilities", "classes"),
    ("scores", "classes"),
    ("numbers", "numbers"),
    ("scores", "labels"),
    ("probabilities", "labels"),
    ("probabilities", "labels as floating-point numbers"),
    ("scores", "a class per token"),
)
SIZES = (1, 2, 5)


def laws(loss: Loss) -> Iterator[Law[Any]]:
    """The laws of a loss."""
    fitting = [form for form in FORMS if _fits(loss, Batch(2, *form))]
    form = fitting[0] if fitting else FORMS[0]
    batches = [Batch(size, *form) for size in SIZES]

    def law(
        name: str, statement: str, test: Callable[[Batch], Outcome], essential: bool = False
    ) -> Law[Batch]:
        return Law(name, statement, test, batches, essential=essential)

    yield law("runs", "a batch gives a finite scalar", lambda batch: _runs(loss, batch), True)
    yield law("mean", "it is the mean over the samples", lambda batch: _mean(loss, batch))
    yield law("sum", "with reduction sum, it is n times the mean", lambda batch: _sum(loss, batch))
    yield law("gradient", "gradients equal finite differences", lambda batch: _gradient(loss, batch))
    yield law("right", "answers are right from 0 to 1, one a sample", lambda batch: _right(loss, batch))
    yield law("unchanged", "it leaves its arguments unchanged", lambda batch: _unchanged(loss, batch))
    yield law("shapes", "output_error reports a wrong shape", lambda batch: _shapes(loss, batch))


def _fits(loss: Loss, batch: Batch) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it broadcasts targets to other outputs
            return _runs(loss, batch) is None
    except Exception:  # these outputs and targets are not what it takes
        return False


def _runs(loss: Loss, batch: Batch) -> Outcome:
    import torch

    output, targets = batch.tensors()
    # That of a function is about its accuracy, see `_right`.
    if not isinstance(loss, FunctionLoss) and (error := loss.output_error(output, targets)):
        return Failure(f"outputs and targets of one of {len(FORMS)} kinds fit", error)
    value = loss.of(output.requires_grad_(), targets)
    if not isinstance(value, torch.Tensor) or value.dim():
        shape = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        return Failure("a tensor without dimensions", shape)
    if not torch.isfinite(value):
        return Failure("a finite loss", f"{value.item()}")
    return None if value.requires_grad else Failure("a gradient", "no gradient flows to the outputs")


def _mean(loss: Loss, batch: Batch) -> Outcome:
    import torch

    output, targets = batch.tensors()
    both = loss.of(output, targets)
    each = torch.stack([loss.of(output[i : i + 1], targets[i : i + 1]) for i in range(batch.samples)])
    return _off(both, each.mean(), "the mean of the samples' losses")


def _off(found: Tensor, expected: Tensor, of: str) -> Outcome:
    import torch

    if torch.allclose(found, expected.to(found.dtype), rtol=RTOL, atol=ATOL):
        return None
    return Failure(f"{of}, {expected.item():.6g}", f"{found.item():.6g}")


def _sum(loss: Loss, batch: Batch) -> Outcome:
    output, targets = batch.tensors()
    return _off(
        loss.of(output, targets, "sum"),
        loss.of(output, targets) * batch.samples,
        f"{batch.samples} times the mean",
    )


def _gradient(loss: Loss, batch: Batch) -> Outcome:
    import torch

    output, targets = batch.tensors(double=True)
    try:
        computed = loss.of(output, targets).dtype
    except RuntimeError as error:
        if not {"Float", "Double"} <= {*str(error).split()}:
            raise
        computed = torch.float32  # it has numbers of its own of this type, such as weights of classes
    if computed != torch.float64:
        raise NotApplicable("it does not compute in float64, in which differences are exact enough")
    leaf = output.clone().requires_grad_()
    loss.of(leaf, targets).backward()
    found = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
    for at in range(output.numel()):
        values = []
        for step in (STEP, -STEP):
            moved = output.clone()
            moved.view(-1)[at] += step
            values.append(loss.of(moved, targets))
        difference = (values[0] - values[1]).item() / (2 * STEP)
        got = found.view(-1)[at].item()
        if abs(got - difference) > 1e-3 * max(1.0, abs(difference)):
            return Failure(f"gradient {difference:.6g} of output {at}", f"{got:.6g}")
    return None


def _right(loss: Loss, batch: Batch) -> Outcome:
    import torch

    if isinstance(loss, FunctionLoss) and (error := loss.output_error(*batch.tensors())):
        return Failure("a measure of how right an answer is", error)
    right = loss.right(*batch.tensors())
    if not isinstance(right, torch.Tensor) or tuple(right.shape) != (batch.samples,):
        shape = f"shape {tuple(right.shape)}" if isinstance(right, torch.Tensor) else type(right).__name__
        return Failure(f"shape ({batch.samples},)", shape)
    if right.min() < 0 or right.max() > 1 or right.isnan().any():
        return Failure("0 to 1", f"{right.min().item():g} to {right.max().item():g}")
    return None


def _unchanged(loss: Loss, batch: Batch) -> Outcome:
    import torch

    output, targets = batch.tensors()
    loss.of(output, targets)
    if not isinstance(loss, FunctionLoss) or not loss.output_error(output, targets):
        loss.right(output, targets)
    for what, now, before in zip(("outputs", "targets"), (output, targets), batch.tensors(), strict=True):
        if not torch.equal(now, before):
            return Failure(f"the {what} as before", "other ones")
    return None


def _shapes(loss: Loss, batch: Batch) -> Outcome:
    """Outputs without a second dimension fit no targets of classes or of several numbers."""
    if isinstance(loss, FunctionLoss):
        raise NotApplicable("a function has no output_error")
    output, targets = batch.tensors()
    if loss.output_error(output[:, 0], targets) is None:
        return Failure(
            f"an error for outputs of shape ({batch.samples},) and targets of {tuple(targets.shape)}",
            "none",
        )
    return None
