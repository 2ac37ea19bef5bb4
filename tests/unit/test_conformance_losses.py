"""Laws of losses that are functions: which targets they take, and what they need to be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
)

from trainer.conformance.law import examine_all
from trainer.conformance.loss import laws
from trainer.imported.loss import FunctionLoss

WEIGHTS = torch.tensor([1.0, 2.0, 0.5])  # float32, as a user would write it


def of_tokens(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(output.transpose(1, 2), target)


def weighted(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(output, target, weight=WEIGHTS, reduction="none").mean()


def summed(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().sum()


def close(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs() < 0.5


def of_right_tokens(output: Tensor, target: Tensor) -> Tensor:
    return output.argmax(-1) == target


def failed(function: Callable[..., Any], accuracy: Callable[..., Any] | None) -> dict[str, str]:
    """What breaks which law."""
    loss = FunctionLoss(function=function, accuracy=accuracy)
    return {each.law: each.got for each in examine_all(laws(loss), Path()) if each.status == "failed"}


@pytest.mark.parametrize(
    ("function", "accuracy"),
    [
        (cross_entropy, None),
        (weighted, None),
        (huber_loss, close),
        (binary_cross_entropy_with_logits, close),
        (binary_cross_entropy, close),
        (of_tokens, of_right_tokens),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_correct_function_keeps_all_laws(
    function: Callable[..., Any], accuracy: Callable[..., Any] | None
) -> None:
    assert failed(function, accuracy) == {}


@pytest.mark.parametrize("function", [huber_loss, of_tokens])
def test_a_function_without_a_measure_of_right_answers_is_advised(function: Callable[..., Any]) -> None:
    (law, got), *others = failed(function, None).items()
    assert (law, others) == ("right", [])
    assert "parameter accuracy" in got


def test_a_wrong_function_breaks_its_law() -> None:
    assert {*failed(summed, close)} == {"mean"}
