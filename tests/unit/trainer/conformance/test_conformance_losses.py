"""The laws of losses on functions and modules of users: correct ones keep all, wrong ones do not."""

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
from trainer.conformance.loss import laws
from trainer.conformance.report import Finding
from trainer.launch.threads import threads_in_torch
from trainer.user_components.loss import FunctionLoss

WEIGHTS = torch.tensor([1.0, 2.0, 0.5])  # float32


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads_in_torch(1):
        yield


def l1(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().mean()


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
        (l1, close),
        (functional.huber_loss, close),
        (labels, close),
        (tokens, right_tokens),
        (flat_tokens, right_tokens),
        (nn.MSELoss(), close),
        (nn.BCEWithLogitsLoss(), close),
        (nn.BCELoss(), close),
    ],
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


@pytest.mark.parametrize("loss", [weighted, lambda output, target: labels(output, target).float()])
def test_the_gradient_of_a_loss_in_float32_is_checked(loss: Callable[..., Any]) -> None:
    assert findings(loss)["gradient"].status == "ok"
    doubled = findings(lambda output, target: loss(2 * output - output.detach(), target))
    assert doubled["gradient"].status == "failed"


def test_a_loss_that_takes_no_kind_of_outputs_shows_its_own_error() -> None:
    found = findings(functional.gaussian_nll_loss)
    assert (found["runs"].status, found["mean"].status) == ("failed", "skipped")
    assert "none of the 7 kinds" in found["runs"].input
    assert "var" in found["runs"].got
    vector = findings(lambda output, target: (output - target).abs())
    assert vector["runs"].got.endswith("shape (1, 3)")
