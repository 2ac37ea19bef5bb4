"""The law that a component is trained as it is written: see trainer/component_trials/written.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer.component_trials.written import LONG, compare, described
from trainer.components.samples import TRIED_SAMPLES
from trainer.conformance.law import Law, NotApplicable, Note, Outcome
from trainer.core.failure import Failure
from trainer.core.user_code import ImportFailure
from trainer.data.base import Dataset
from trainer.models.shapes import noise
from trainer.spec.registries import REGISTRIES

if TYPE_CHECKING:
    from torch import Tensor

Form = dict[str, Any]
MakeForm = Callable[[], Form]

CLASSES = 3
MODEL: Form = {"name": "mlp", "hidden": [8]}
OPTIMIZER: Form = {"name": "momentum"}
# For targets that are classes, of samples or of tokens, and for numbers.
OF_CLASSES: Form = {"name": "cross_entropy", "label_smoothing": 0.0}
OF_NUMBERS: Form = {"name": "mse"}


@dataclass(frozen=True)
class Few:
    """Samples on which components are trained together.

    forms: dataset, model, loss and optimizer as a spec has them. Raises ImportFailure.
    """

    forms: MakeForm
    inputs: Tensor
    targets: Tensor

    def __str__(self) -> str:
        shape = "×".join(map(str, self.inputs.shape[1:]))
        return f"{len(self.inputs)} samples of shape {shape or '1'}"


def law_of_model(form: MakeForm, on: Dataset, on_form: Form | None, inputs: Tensor | None) -> Law[Few]:
    """Of a model. on_form: the form of a registered dataset. inputs: samples of a user's; None: noise."""
    import torch

    generator = torch.Generator().manual_seed(0)
    inputs = noise(on, TRIED_SAMPLES, generator) if inputs is None else inputs
    shape = len(inputs), *on.target_shape
    if on.class_count == 1 and not on.target_shape:
        targets, loss = torch.randn(*shape, 1, generator=generator), OF_NUMBERS
    else:
        targets, loss = torch.arange(len(inputs)) % on.outputs, OF_CLASSES
        if on.target_shape:
            targets = torch.randint(on.outputs, shape, generator=generator)
    dataset = on_form or described(on.shape, on.input_type, on.class_count, len(inputs))
    others = {"dataset": dataset, "loss": loss, "optimizer": OPTIMIZER}
    return _law([Few(partial(_joined, others, lambda: {"model": form()}), inputs, targets)])


def law_of_optimizer(form: MakeForm) -> Law[Few]:
    """Of an optimizer."""
    return _law([next(_vectors(lambda: {"loss": OF_CLASSES, "optimizer": form()}))])


def law_of_loss(form: MakeForm) -> Law[Few]:
    """Of a loss: of classes, or of one number."""
    return _law([*_vectors(lambda: {"loss": form(), "optimizer": OPTIMIZER})])


def _vectors(forms: MakeForm) -> Iterator[Few]:
    """Vectors with classes, with numbers and with labels of 0 or 1, on which a model has its outputs."""
    import torch

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(TRIED_SAMPLES, 4, generator=generator)
    classes, number = torch.arange(len(inputs)) % CLASSES, torch.randn(len(inputs), 1, generator=generator)
    for targets, count in ((classes, CLASSES), (number, 1), ((number > 0).long(), 1)):
        others = {"dataset": described((4,), "float32", count, len(inputs)), "model": MODEL}
        yield Few(partial(_joined, others, forms), inputs, targets)


def _joined(others: Form, forms: MakeForm) -> Form:
    return {**others, **forms()}


def _law(inputs: list[Few]) -> Law[Few]:
    return Law("written", "a run takes the steps of plain torch", _compared, inputs)


def _compared(few: Few) -> Outcome:
    import torch
    from torch import nn

    try:
        forms = few.forms()
        on, model, loss = (REGISTRIES[field].parse(forms[field]) for field in ("dataset", "model", "loss"))
        with torch.random.fork_rng(devices=[]):
            blocks = model.blocks(on.shape, on.outputs, torch.Generator())
            output = nn.Sequential(*(block for _, block in blocks))(few.inputs)
            reason = loss.output_error(output, few.targets)
            fits = reason is None and bool(torch.isfinite(loss.of(output, few.targets)))
    except ImportFailure as error:
        raise NotApplicable(f"another law fails: {error}") from error
    except Exception as error:  # the model or the loss takes other samples
        raise NotApplicable(f"no loss of classes or numbers fits: {error}") from error
    if not fits:
        raise NotApplicable(f"no loss of classes or numbers fits: {reason or 'the loss is not finite'}")
    try:
        compared = compare(forms, few.inputs, few.targets)
    except ImportFailure as error:
        return Failure("the weights of a loop of plain torch", str(error))
    return None if str(LONG) in compared else Note(f"compared in {compared}")
