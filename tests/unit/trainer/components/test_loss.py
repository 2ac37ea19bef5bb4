"""Mistakes in laws of losses, in what is refused of them, and in how the registered ones count samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, l1_loss, log_softmax, mse_loss, one_hot

from tests.support.laws import assert_faults, declaring, failing, imported, refused
from trainer.components import loss as module
from trainer.components.facts import Source
from trainer.components.loss import FunctionLoss, ImportedLoss, LossKind
from trainer.losses.base import Loss
from trainer.spec.registries import LOSSES


def losses(of: Callable[..., Any], **members: Any) -> LossKind:
    """A subclass of Loss for outputs and targets of the same shape."""

    def output_error(self: Loss, output: Tensor, target: Tensor) -> str | None:
        return None if output.shape == target.shape and target.is_floating_point() else "other shapes"

    given: dict[str, Any] = {"right": lambda self, output, target: output[:, 0] * 0, **members}
    given = {"of": lambda self, x, y, reduction="mean": of(x, y, reduction), **given}
    return LossKind(declaring(Loss, **{"output_error": output_error, **given})())


def function(of: Callable[..., Any]) -> LossKind:
    return LossKind(FunctionLoss(function=of))


def squared(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    mean = (output - target).square().mean()
    return mean if reduction == "mean" else mean * len(output)


def weighted(output: Tensor, target: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 0.5])  # float32
    return cross_entropy(output, target, weight=weights, reduction="none").mean()


FAULTS = {
    r"runs: 1 sample.*shape \(1, 3\)": losses(lambda output, target, _: (output - target).abs()),
    "runs: none of the 7 kinds.*var": function(functional.gaussian_nll_loss),
    "mean: 2 samples": losses(lambda output, target, _: squared(output, target) * len(output)),
    "sum: 2 samples": losses(lambda output, target, _: squared(output, target)),
    "gradient: ^1 sample": losses(lambda x, *of: squared(2 * x - x.detach(), *of)),
    "gradient: 1 sample": function(lambda x, target: weighted(2 * x - x.detach(), target)),
    "right: 1 sample.*2 to 2": losses(squared, right=lambda self, output, target: 2 + output[:, 0] * 0),
    "unchanged: 1 sample.*other ones": losses(lambda x, target, *of: squared(x, target.add_(1), *of)),
    "shapes: 1 sample.*none": losses(squared, output_error=lambda self, output, target: None),
}
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
    assert_faults(FAULTS, {"written"}, SOUND)


# Names are those of torch's functions.
Named = declaring(Source, load=lambda self: getattr(torch, self.attribute))


def adapted(called: Any, **parameters: Any) -> Any:
    return LossKind.adapt(called, parameters, Named())


def test_losses_that_cannot_be_built_are_refused() -> None:
    assert "output, target" in refused(lambda: adapted(lambda output: output))
    assert "accuracy is 3" in refused(lambda: adapted(mse_loss, accuracy=3))


def test_the_accuracy_that_a_sweep_names_comes_before_that_of_a_module() -> None:
    flat = declaring(nn.Flatten, right=torch.exp, weights=torch.abs)
    own, named = adapted(flat), adapted(flat, accuracy="sin", weight="cos")
    assert (own.accuracy, own.weight) == (torch.exp, torch.abs)
    assert (named.accuracy, named.weight) == (torch.sin, torch.cos)


def test_what_is_known_of_a_loss() -> None:
    numbers = adapted(declaring(Loss, takes_classes=False, of=squared))
    for built, both in ((adapted(squared, weight="abs"), True), (numbers, False)):
        known = LossKind(built).facts()
        own = imported(ImportedLoss, known)
        assert known == {name: getattr(own, name) for name in known}
        assert known == {"accuracy_is": None, "weighted": both, "takes_classes": both}


SCORES = torch.tensor([[2.0, 0.5, -1.0], [0.0, 0.3, 0.1], [1.0, 1.5, 3.0], [-2.0, 0.0, 0.5]])
CLASSES = torch.tensor([0, 2, 2, 1])


def fit(
    of: Callable[..., Any],
    output: Tensor = SCORES,
    classes: int = 3,
    target: Tensor = CLASSES,
    **others: Any,
) -> None:
    module.fit_error(FunctionLoss(function=of, **others), output.clone().requires_grad_(), target, classes)


def test_a_loss_that_does_not_fit_a_models_output_is_refused() -> None:
    """Imports of sweeps refuse others, too."""
    cases: dict[str, Callable[[], None]] = {
        "give the loss the parameter accuracy": lambda: fit(l1_loss, SCORES[:, 0], 1),
        "weights from 0 on": lambda: fit(weighted, weight=torch.neg),
        "a loss of nan": lambda: fit(lambda x, y: x.sum() * torch.nan),
        "takes the targets as classes": lambda: fit(
            lambda x, y: cross_entropy(x, y.long()), target=CLASSES.float(), accuracy=lambda x, y: y > 0
        ),
        "3 scores for each sample": lambda: fit(weighted, classes=4),
        "0 to 1": lambda: fit(weighted, accuracy=lambda x, y: y),
    }
    assert failing(cases, lambda work: work()) == {}
    with pytest.raises(IndexError, match=r"; the model returns shape \(4, 3\), and no classes"):
        fit(lambda x, y: x[9], classes=1)
    fit(weighted, classes=3)
    fit(weighted, classes=4, accuracy=lambda x, y: y > 0)


def test_what_is_wrong_with_weights_of_samples() -> None:
    for weight, error in (
        (None, "None"), (torch.clone, "None"), (torch.neg, "-2 to -0; expected: weights from 0"),
        (torch.zeros_like, "0 to 0"), (torch.log, "-inf to"), (sum, "weights of type Tensor and shape ()"),
    ):  # fmt: skip
        loss = FunctionLoss(function=mse_loss, weight=weight)
        assert error in str(module.weights_error(loss, torch.tensor([0.0, 1, 2])))


def test_a_loss_that_rounds_floating_point_targets_takes_them_as_classes() -> None:
    classes, shares = torch.tensor([0.0, 1, 2, 1]), torch.tensor([0.0, 1, 1, 0])
    for of, scores, target, rounds in (
        (cross_entropy, SCORES, classes, True),  # it takes whole numbers alone
        (l1_loss, SCORES[:, 0], classes, False),
        (nn.BCELoss(), SCORES[:, 0].sigmoid(), shares, False),  # targets of 0 to 1
    ):
        assert bool(module.rounded_error(FunctionLoss(function=of), scores, target)) is rounds


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
    assert module.mean_error(loss, 1, output, target) is None
    answers = loss.right(output, target)
    assert module.right_error(answers, 4) is None
    right = right or (output.argmax(1) == target).float().mean(1).tolist()
    assert answers.tolist() == pytest.approx(right)
    assert loss.total(target) == 4
