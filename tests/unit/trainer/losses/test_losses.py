"""Mistakes in losses: outputs that do not fit."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from trainer.losses.base import Reduction
from trainer.spec.registries import LOSSES

SCORES = torch.tensor([[2.0, 0.5, -1.0], [0.0, 0.3, 0.1], [1.0, 1.5, 3.0], [-2.0, 0.0, 0.5]])
CLASSES = torch.tensor([0, 2, 2, 1])
LABELS = torch.tensor([[1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]])  # several for each sample
NUMBERS = torch.tensor([[2.0, 0.0, -1.4], [1.0, 0.3, 0.1], [1.0, 1.5, 3.0], [-2.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("name", "output", "target", "named"),
    [
        ("nll", torch.cat([log_softmax(SCORES, 1), SCORES])[3:5], CLASSES[:2], "no log-probabilities"),
        ("nll", log_softmax(SCORES, 1), NUMBERS[:, 0], "integers"),
        ("nll", log_softmax(SCORES, 1), CLASSES + 1, "1 to 3; allowed: 0 to 2"),
        ("cross_entropy", SCORES, CLASSES - 1, "-1 to 1; allowed: 0 to 2"),
        ("cross_entropy", SCORES[:, 0], CLASSES, r"shape \(4,\)"),
        ("mse", SCORES, CLASSES, r"\(4, 3\).*\(4,\)"),
        ("binary_cross_entropy", SCORES, 2 * LABELS, "0 to 2"),
    ],
    ids=range(7),
)
def test_an_output_that_does_not_fit_is_named(
    name: str, output: Tensor, target: Tensor, named: str
) -> None:
    assert re.search(named, LOSSES.parse(name).output_error(output, target) or "")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy_without_smoothing_has_the_bits_of_the_plain_one(reduction: Reduction) -> None:
    loss, output = (
        LOSSES.parse({"name": "cross_entropy", "label_smoothing": 0}),
        SCORES.clone().requires_grad_(),
    )
    plain = cross_entropy(output, CLASSES, reduction=reduction)
    found = loss.of(output, CLASSES, reduction)
    assert torch.equal(found, plain)
    assert torch.equal(*(torch.autograd.grad(each, output)[0] for each in (found, plain)))
