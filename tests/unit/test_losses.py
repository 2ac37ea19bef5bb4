"""Losses: their formulas, and which answers are right."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.losses.base import Loss
from trainer.losses.cross_entropy import CrossEntropy
from trainer.losses.nll import Nll
from trainer.spec.registries import LOSSES
from trainer.spec.run_spec import RunSpec

SCORES = torch.tensor([[2.0, 0.5, -1.0], [0.0, 0.3, 0.1], [1.0, 1.5, 3.0], [-2.0, 0.0, 0.5]])
TARGETS = torch.tensor([0, 2, 2, 1])
LOG_PROBABILITIES = nn.functional.log_softmax(SCORES, dim=1)


@pytest.mark.parametrize("name", LOSSES.entries)
def test_the_mean_is_the_sum_over_the_batch_size(name: str) -> None:
    loss = LOSSES.parse(name)
    mean, total = (loss.of(LOG_PROBABILITIES, TARGETS, reduction) for reduction in ("mean", "sum"))
    torch.testing.assert_close(4 * mean, total)


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


@pytest.mark.parametrize("loss", [*map(LOSSES.parse, LOSSES.entries)])
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
