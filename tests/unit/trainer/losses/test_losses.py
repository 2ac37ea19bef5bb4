"""Losses: their formulas, and which answers are right."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from trainer.losses.base import Loss
from trainer.losses.binary_cross_entropy import BinaryCrossEntropy
from trainer.losses.cross_entropy import CrossEntropy
from trainer.losses.mse import Mse
from trainer.losses.nll import Nll
from trainer.spec.registries import LOSSES
from trainer.spec.run_spec import RunSpec
from trainer.user_components.loss import mean_error, right_error

SCORES = torch.tensor([[2.0, 0.5, -1.0], [0.0, 0.3, 0.1], [1.0, 1.5, 3.0], [-2.0, 0.0, 0.5]])
TARGETS = torch.tensor([0, 2, 2, 1])
LOG_PROBABILITIES = nn.functional.log_softmax(SCORES, dim=1)


OF_CLASSES = ["nll", "cross_entropy"]
LABELS = torch.tensor([[1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]])  # several for each sample
NUMBERS = torch.tensor([[2.0, 0.0, -1.4], [1.0, 0.3, 0.1], [1.0, 1.5, 3.0], [-2.0, 0.0, 0.0]])
TOKENS = torch.tensor([[0, 1], [2, 2], [1, 0], [2, 1]])
TOKEN_SCORES = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0)).log_softmax(1)
EXAMPLES = [
    ("nll", LOG_PROBABILITIES, TARGETS),
    ("nll", TOKEN_SCORES, TOKENS),
    ("cross_entropy", SCORES, TARGETS),
    ("cross_entropy", TOKEN_SCORES, TOKENS),
    ("binary_cross_entropy", SCORES, LABELS),
    ("mse", SCORES, NUMBERS),
]


def test_every_loss_has_an_example() -> None:
    assert {name for name, _, _ in EXAMPLES} == {*LOSSES.entries}


@pytest.mark.parametrize(("name", "output", "target"), EXAMPLES)
def test_a_loss_is_the_mean_over_samples(name: str, output: torch.Tensor, target: torch.Tensor) -> None:
    loss = LOSSES.parse(name)
    assert loss.output_error(output, target) is None
    mean, total = (loss.of(output, target, reduction) for reduction in ("mean", "sum"))
    torch.testing.assert_close(4 * mean, total)
    assert mean_error(loss, 1, output, target) is None
    assert right_error(loss.right(output, target), 4) is None


def test_formulas_equal_torch() -> None:
    torch.testing.assert_close(
        Mse().of(SCORES, NUMBERS), nn.functional.mse_loss(SCORES, NUMBERS), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        BinaryCrossEntropy().of(SCORES, LABELS),
        nn.functional.binary_cross_entropy_with_logits(SCORES, LABELS.float()),
    )
    torch.testing.assert_close(Nll().of(TOKEN_SCORES, TOKENS), nn.functional.nll_loss(TOKEN_SCORES, TOKENS))


def test_answers_that_are_partly_right() -> None:
    torch.testing.assert_close(Mse().right(SCORES, NUMBERS), torch.tensor([1.0, 2 / 3, 1.0, 1.0]))
    torch.testing.assert_close(
        BinaryCrossEntropy().right(SCORES, LABELS), torch.tensor([1.0, 2 / 3, 2 / 3, 2 / 3])
    )
    best = TOKEN_SCORES.argmax(1)
    torch.testing.assert_close(Nll().right(TOKEN_SCORES, best), torch.ones(4))


@pytest.mark.parametrize(
    ("name", "output", "target", "named"),
    [
        ("nll", SCORES, TARGETS, "no log-probabilities"),
        ("nll", LOG_PROBABILITIES, NUMBERS[:, 0], "integers"),
        ("nll", LOG_PROBABILITIES, TARGETS + 1, "1 to 3; allowed: 0 to 2"),
        ("cross_entropy", SCORES[:, 0], TARGETS, r"shape \(4,\)"),
        ("mse", SCORES, TARGETS, r"\(4, 3\).*\(4,\)"),
        ("binary_cross_entropy", SCORES, 2 * LABELS, "0 to 2"),
    ],
)
def test_an_output_that_does_not_fit_is_named(
    name: str, output: torch.Tensor, target: torch.Tensor, named: str
) -> None:
    assert re.search(named, LOSSES.parse(name).output_error(output, target) or "")


def test_nll_is_minus_the_log_probability_of_the_right_class() -> None:
    expected = -LOG_PROBABILITIES[range(4), TARGETS].mean()
    torch.testing.assert_close(Nll().of(LOG_PROBABILITIES, TARGETS), expected)


@pytest.mark.parametrize("output", [SCORES, LOG_PROBABILITIES], ids=["scores", "log-probabilities"])
def test_cross_entropy_spreads_a_share_over_all_classes(output: torch.Tensor) -> None:
    wanted = 0.7 * nn.functional.one_hot(TARGETS, 3) + 0.3 / 3
    expected = -(wanted * LOG_PROBABILITIES).sum(dim=1).mean()
    torch.testing.assert_close(CrossEntropy(label_smoothing=0.3).of(output, TARGETS), expected)


def test_cross_entropy_without_smoothing_is_nll() -> None:
    torch.testing.assert_close(
        CrossEntropy(label_smoothing=0.0).of(LOG_PROBABILITIES, TARGETS),
        Nll().of(LOG_PROBABILITIES, TARGETS),
    )


@pytest.mark.parametrize("loss", [*map(LOSSES.parse, OF_CLASSES)])
def test_the_largest_output_is_the_answer(loss: Loss) -> None:
    assert loss.right(SCORES, TARGETS).tolist() == [True, False, True, False]


def test_the_default_is_not_part_of_the_run_key() -> None:
    plain, smooth = (
        RunSpec.model_validate({"strategy": "serial", **fields})
        for fields in ({}, {"loss": "cross_entropy"})
    )
    assert "loss" not in plain.canonical()
    assert plain.key == RunSpec.model_validate({"strategy": "serial", "loss": "nll"}).key
    assert plain.key != smooth.key
