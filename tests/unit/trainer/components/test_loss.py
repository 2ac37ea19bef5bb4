"""Mistakes in laws of losses, in what is refused of them, and in how the registered ones count samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, l1_loss, log_softmax, mse_loss, one_hot, poisson_nll_loss

from tests.support.laws import assert_faults, assert_sound, findings
from trainer.components.facts import Source
from trainer.components.kind import On
from trainer.components.loss import (
    FunctionLoss,
    ImportedLoss,
    LossKind,
    fit_error,
    mean_error,
    right_error,
    rounded_error,
    weights_error,
)
from trainer.core.user_code import ImportFailure
from trainer.losses.base import Loss
from trainer.spec.registries import LOSSES


@pytest.mark.parametrize("name", LOSSES.entries)
def test_a_registered_loss_keeps_all_laws(name: str) -> None:
    assert {each.status for each in findings(LossKind(LOSSES.parse(name))).values()} == {"ok"}


# Laws


def losses(of: Callable[..., Any], **members: Any) -> LossKind:
    """A subclass of Loss for outputs and targets of the same shape."""

    def of_loss(self: Loss, output: Tensor, target: Tensor, reduction: str = "mean") -> Any:
        return of(output, target, reduction)

    def output_error(self: Loss, output: Tensor, target: Tensor) -> str | None:
        return None if output.shape == target.shape and target.is_floating_point() else "other shapes"

    defaults = {"output_error": output_error, "right": lambda self, output, target: output[:, 0] * 0}
    own = type("Own", (Loss,), {"__module__": __name__, "of": of_loss, **defaults, **members})
    return LossKind(own())


def function(of: Callable[..., Any]) -> LossKind:
    return LossKind(FunctionLoss(function=of))


def squared(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    mean = (output - target).square().mean()
    return mean if reduction == "mean" else mean * len(output)


def moving(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    value = squared(output, target, reduction)
    target += 1
    return value


def weighted(output: Tensor, target: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 0.5])  # float32
    return cross_entropy(output, target, weight=weights, reduction="none").mean()


# What is tried, by the law that it breaks and a pattern of the smallest input and of what is found for it.
FAULTS = {
    r"runs: 1 sample.*shape \(1, 3\)": losses(lambda output, target, _: (output - target).abs()),
    "runs: none of the 7 kinds.*var": function(functional.gaussian_nll_loss),
    "mean: 2 samples": losses(lambda output, target, _: squared(output, target) * len(output)),
    "sum: 2 samples": losses(lambda output, target, _: squared(output, target)),
    "gradient: ^1 sample": losses(lambda x, *of: squared(2 * x - x.detach(), *of)),
    "gradient: 1 sample": function(lambda x, target: weighted(2 * x - x.detach(), target)),
    "right: 1 sample.*2 to 2": losses(squared, right=lambda self, output, target: 2 + output[:, 0] * 0),
    "unchanged: 1 sample.*other ones": losses(moving),
    "shapes: 1 sample.*none": losses(squared, output_error=lambda self, output, target: None),
}
# A law that is not broken, its status, a part of the reason, and what is tried.
SOUND = [
    ("gradient", "ok", "", function(weighted)),
    # Differences in float32 are rounded: a large loss is allowed more.
    ("gradient", "ok", "", function(lambda output, target: 1000 + weighted(output, target))),
    ("right", "note", "--set accuracy=NAME", function(functional.huber_loss)),
    ("shapes", "skipped", "only a subclass", function(weighted)),
    # Tokens, tokens in a row, labels, and probabilities of them.
    ("mean", "ok", "", function(lambda x, y: cross_entropy(x.transpose(1, 2), y))),
    ("mean", "ok", "", function(lambda x, y: cross_entropy(x.flatten(0, 1), y.flatten()))),
    ("mean", "ok", "", function(lambda x, y: functional.binary_cross_entropy_with_logits(x, y.float()))),
    ("mean", "ok", "", function(functional.binary_cross_entropy)),
]


def test_every_law_has_faults_that_break_it_alone() -> None:
    assert_faults(FAULTS, unbroken={"written"})


def test_what_is_no_fault_breaks_no_law() -> None:
    assert_sound(SOUND)


# What becomes a loss, and what is known of it


class Named(Source):
    """A source in which names are those of torch's functions."""

    def load(self) -> Any:
        return getattr(torch, self.attribute)


def test_losses_that_cannot_be_built_are_refused() -> None:
    for text, called, parameters in (
        ("does not define the method of", Loss, {}),
        ("output, target", lambda output: output, {}),
        ("accuracy is 3", mse_loss, {"accuracy": 3}),
    ):
        with pytest.raises(ImportFailure, match=text):
            LossKind.adapt(called, parameters, Named())


class Flat(nn.Flatten):
    right, weights = torch.exp, torch.abs


def test_the_accuracy_that_a_sweep_names_comes_before_that_of_a_module() -> None:
    for parameters, comes in (
        ({}, (torch.exp, torch.abs)),
        ({"accuracy": "sin", "weight": "cos"}, (torch.sin, torch.cos)),
    ):
        built: Any = LossKind.adapt(Flat, parameters, Named())
        assert (built.accuracy, built.weight) == comes


def test_what_is_known_of_a_loss() -> None:
    numbers = type("Numbers", (Loss,), {"takes_classes": False, "of": squared, "__module__": __name__})
    for called, parameters, expected in (
        (mse_loss, {}, {"accuracy_is": None, "weighted": False, "takes_classes": True}),
        (squared, {"weight": "abs"}, {"accuracy_is": None, "weighted": True, "takes_classes": True}),
        (numbers, {}, {"accuracy_is": None, "weighted": False, "takes_classes": False}),
    ):
        known = LossKind(LossKind.adapt(called, parameters, Named())).facts()
        own = ImportedLoss.model_validate({"name": "it", "imported": known})
        assert known == {name: getattr(own, name) for name in known} == expected


def test_modules_and_functions_of_answers_are_told_from_losses() -> None:
    focal = type("Focal", (nn.Module,), {"forward": lambda self, output, target: None})
    cases = {focal: True, type("Own", (nn.CrossEntropyLoss,), {}): True, nn.Linear: False, int: False}
    assert {each: LossKind.recognises(each) for each in cases} == cases
    on = On(source=Source(module="mine.py", attribute="it"))
    for of, left_out in (
        (lambda output, target: output.argmax(1) == target, True),
        (lambda output, target: (output.argmax(1) == target).float().mean(), False),
        (lambda output, target: cross_entropy(output, target, reduction="none"), False),
    ):
        assert ("check it as own" in (LossKind(FunctionLoss(function=of), on).left_out() or "")) is left_out


# What does not fit the output of a model

SCORES = torch.tensor([[2.0, 0.5, -1.0], [0.0, 0.3, 0.1], [1.0, 1.5, 3.0], [-2.0, 0.0, 0.5]])
CLASSES = torch.tensor([0, 2, 2, 1])
RIGHT = {"accuracy": lambda x, y: y > 0}
UNFIT: list[tuple[str, Callable[..., Any], dict[str, Any], Tensor, Tensor, int]] = [
    ("3 scores for each sample.*4 classes, 0 to 3", cross_entropy, {}, SCORES, CLASSES, 4),
    ("give the loss the parameter accuracy", l1_loss, {}, SCORES[:, 0], CLASSES, 1),
    ("weights from 0 on", weighted, {"weight": torch.neg}, SCORES, CLASSES, 3),
    (r"; the model returns shape \(4, 3\), and .* 3 c", lambda x, y: x[9], {}, SCORES, CLASSES, 3),
    (r"shape \(4, 3\), and no classes", lambda x, y: x[9], {}, SCORES, CLASSES, 1),
    ("a loss of nan", lambda x, y: x.sum() * torch.nan, {}, SCORES, CLASSES, 3),
    ("targets as classes", lambda x, y: cross_entropy(x, y.long()), RIGHT, SCORES, CLASSES.float(), 1),
    ("0 to 1", weighted, {"accuracy": lambda x, y: y}, SCORES, CLASSES, 3),
    ("2 samples each", lambda x, y: cross_entropy(x, y, reduction="sum"), {}, SCORES, CLASSES, 3),
]


def test_a_loss_that_does_not_fit_a_models_output_is_refused() -> None:
    for text, of, others, output, target, classes in UNFIT:
        loss = FunctionLoss(function=of, **others)
        with pytest.raises((ImportFailure, IndexError), match=text):
            fit_error(loss, output.clone().requires_grad_(), target, classes)
    for others, classes in (({}, 3), (RIGHT, 4)):
        loss = FunctionLoss(function=weighted, **others)
        fit_error(loss, SCORES.clone().requires_grad_(), CLASSES, classes)


def test_what_is_wrong_with_weights_of_samples() -> None:
    for weight, error in (
        (None, "None"), (torch.clone, "None"), (torch.neg, "-2 to -0; expected: weights from 0"),
        (torch.zeros_like, "0 to 0"), (torch.log, "-inf to"), (sum, "weights of type Tensor and shape ()"),
    ):  # fmt: skip
        found = weights_error(FunctionLoss(function=mse_loss, weight=weight), torch.tensor([0.0, 1, 2]))
        assert error in str(found)


def test_a_loss_that_rounds_floating_point_targets_takes_them_as_classes() -> None:
    classes, shares = torch.tensor([0.0, 1, 2, 1]), torch.tensor([0.0, 1, 1, 0])
    output = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    for of, scores, target, rounds in (
        (lambda x, y: cross_entropy(x, y.long()), output, classes, True),
        (cross_entropy, output, classes, True),  # it takes whole numbers alone
        (mse_loss, output[:, 0], classes, False),
        (l1_loss, output[:, 0], classes, False),
        (poisson_nll_loss, output[:, 0], classes, False),
        (nn.BCELoss(), output[:, 0].sigmoid(), shares, False),  # targets of 0 to 1
    ):
        assert bool(rounded_error(FunctionLoss(function=of), scores, target)) is rounds


# Registered losses

TOKENS = torch.tensor([[0, 1], [2, 2], [1, 0], [2, 1]])
TOKEN_SCORES = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]])  # several for each sample
NUMBERS = torch.tensor([[2.0, 0.0, -1.4], [1.0, 0.3, 0.1], [1.0, 1.5, 3.0], [-2.0, 0.0, 0.0]])


def smoothed(scores: Tensor, classes: Tensor, share: float) -> Tensor:
    """The cross-entropy of each target of each sample, after Szegedy et al. 2016."""
    scores = scores.movedim(1, -1)
    wanted = (1 - share) * one_hot(classes, 3) + share / 3
    return -(wanted * log_softmax(scores, dim=-1)).sum(dim=-1)


BINARY = (1 + (-(2 * LABELS - 1) * SCORES).exp()).log()
SOFT = {"name": "cross_entropy", "label_smoothing": 0.3}
# The loss, outputs, targets, the loss of each target, and how right each sample's answer is.
EXAMPLES = [
    ("nll", log_softmax(SCORES, 1), CLASSES, smoothed(SCORES, CLASSES, 0), [1, 0, 1, 0]),
    ("nll", log_softmax(TOKEN_SCORES, 1), TOKENS, smoothed(TOKEN_SCORES, TOKENS, 0), None),
    (SOFT, SCORES, CLASSES, smoothed(SCORES, CLASSES, 0.3), [1, 0, 1, 0]),
    (SOFT, TOKEN_SCORES, TOKENS, smoothed(TOKEN_SCORES, TOKENS, 0.3), None),
    # A score of 0 says that a sample has no label.
    ("binary_cross_entropy", SCORES, LABELS, BINARY, [1, 2 / 3, 2 / 3, 2 / 3]),
    ("mse", SCORES, NUMBERS, (SCORES - NUMBERS) ** 2, [1, 2 / 3, 1, 1]),  # off by 0.5 is right
]


@pytest.mark.parametrize(("form", "output", "target", "losses", "right"), EXAMPLES, ids=range(6))
def test_a_loss_follows_its_formula_and_a_sample_counts_with_the_mean_of_its_targets(
    form: object, output: Tensor, target: Tensor, losses: Tensor, right: list[float] | None
) -> None:
    loss, each = LOSSES.parse(form), losses.reshape(4, -1).mean(dim=1)
    assert loss.output_error(output, target) is None
    torch.testing.assert_close(loss.of(output, target), each.mean())
    torch.testing.assert_close(loss.of(output, target, "sum"), each.sum())
    assert mean_error(loss, 1, output, target) is None
    answers = loss.right(output, target)
    assert right_error(answers, 4) is None
    if right is None:
        assert loss.right(output, output.argmax(1)).tolist() == [1] * 4
        right = (output.argmax(1) == target).float().mean(1).tolist()
    assert answers.tolist() == pytest.approx(right)
    assert loss.total(target) == 4
