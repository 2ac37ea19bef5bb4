"""Mistakes in losses: means and sums of samples with several targets, ties, and outputs that do not fit."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot

from trainer.spec.registries import LOSSES
from trainer.user_components.loss import mean_error, right_error

SCORES = torch.tensor([[2.0, 0.5, -1.0], [0.0, 0.3, 0.1], [1.0, 1.5, 3.0], [-2.0, 0.0, 0.5]])
CLASSES = torch.tensor([0, 2, 2, 1])
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
