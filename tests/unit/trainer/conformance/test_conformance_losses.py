"""Mistakes in the laws of losses: which kind of targets a function takes, and what a run needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.conformance.law import examine_all
from trainer.conformance.loss import laws, measures_answers
from trainer.conformance.report import Finding
from trainer.launch.threads import threads_in_torch
from trainer.user_components.loss import FunctionLoss

WEIGHTS = torch.tensor([1.0, 2.0, 0.5])  # float32


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads_in_torch(1):
        yield


def labels(output: Tensor, target: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(output, target.float())


def tokens(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.transpose(1, 2), target)


def flat_tokens(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def weighted(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, weight=WEIGHTS, reduction="none").mean()


def close(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs() <= 0.3


def right_tokens(output: Tensor, target: Tensor) -> Tensor:
    return output.argmax(2) == target


def findings(loss: Callable[..., Any], accuracy: Callable[..., Any] | None = None) -> dict[str, Finding]:
    with warnings.catch_warnings(action="error"):
        found = examine_all(laws(FunctionLoss(function=loss, accuracy=accuracy)), Path(__file__).parent)
        return {finding.law: finding for finding in found}


@pytest.mark.parametrize(
    ("loss", "accuracy"),
    [
        (functional.huber_loss, close),
        (labels, close),
        (tokens, right_tokens),
        (flat_tokens, right_tokens),
        (nn.BCELoss(), close),
    ],
    ids=["huber", "labels", "tokens", "flat_tokens", "probabilities"],
)
def test_a_loss_without_scores_of_classes_needs_accuracy_only_in_a_run(
    loss: Callable[..., Any], accuracy: Callable[..., Any]
) -> None:
    without, complete = findings(loss), findings(loss, accuracy)
    rest = {"runs", "mean", "sum", "gradient", "unchanged"}
    assert {law for law, each in complete.items() if each.status == "ok"} == rest | {"right"}
    assert complete["shapes"].status == "skipped"
    assert {law for law, each in without.items() if each.status == "ok"} == rest
    assert without["right"].status == "note"
    assert "--set accuracy=NAME" in without["right"].reason


def test_the_gradient_of_a_loss_in_float32_is_checked() -> None:
    """Differences in float32 are rounded: a large loss is allowed more."""
    assert findings(weighted)["gradient"].status == "ok"
    assert findings(lambda output, target: 1000 + weighted(output, target))["gradient"].status == "ok"
    doubled = findings(lambda output, target: weighted(2 * output - output.detach(), target))
    assert doubled["gradient"].status == "failed"


def test_a_loss_that_gives_a_vector_shows_its_shape() -> None:
    found = findings(lambda output, target: (output - target).abs())
    assert found["runs"].got.endswith("shape (1, 3)")
    assert found["mean"].status == "skipped"


@pytest.mark.parametrize(
    ("function", "measures"),
    [
        (close, True),
        (lambda output, target: output.argmax(1) == target, True),
        (lambda output, target: ((output - target) ** 2).mean(), False),
        (lambda output, target: (output - target) ** 2, False),  # it lacks the mean, and fails `runs`
        (lambda output, target: close(output, target).float().mean(), False),
    ],
    ids=["close", "right", "mean", "squares", "no vector"],
)
def test_functions_that_measure_accuracy_are_no_losses(
    function: Callable[..., Any], measures: bool
) -> None:
    assert measures_answers(FunctionLoss(function=function, accuracy=None)) is measures
