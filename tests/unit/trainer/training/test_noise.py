"""Mistakes in the gradient noise scale: formulas, weights of ranks, which gradients are measured, when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.training import Training, train
from trainer.spec.noise_scale import unmeasured_reason
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import Batch
from trainer.training.noise import GradientNoise
from trainer.training.partition import StepSizes

STEPS, LENGTH = 600, 5
MEAN = np.array([0.3, -0.2, 0.1, 0.0, 0.4])
DEVIATIONS = np.array([1.0, 0.5, 2.0, 0.1, 1.5])


def measured(steps: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Noise and signal of each step, over all ranks. steps: of each rank the gradients of its samples."""
    ranks = [GradientNoise(len(steps[0])) for _ in steps[0]]
    found = []
    for gradients in steps:
        sizes = StepSizes(len(each) for each in gradients)
        mean = sum(each.sum(axis=0) for each in gradients) / sizes.total
        for rank, (noise, own) in enumerate(zip(ranks, gradients, strict=True)):
            weights = nn.Parameter(torch.zeros(LENGTH, dtype=torch.float64))
            nothing = torch.zeros(1)
            batch = Batch(nothing, nothing, rank, sizes, step=1, steps=1)
            # Of the loss wᵢ gᵢ·w, whose gradient is wᵢ gᵢ.
            weight = batch.share * len(ranks)
            slope = torch.from_numpy(own.mean(axis=0) if len(own) else np.zeros(LENGTH))
            with noise.measuring([weights], batch, weight):
                (weight * (slope * weights).sum()).backward()
            noise.applied([torch.from_numpy(mean)])
        sums = [noise.taken() for noise in ranks]
        found.append([sum(each[name] for each in sums) for name in ("gradient_noise", "gradient_signal")])
    return np.array(found)


def drawn(sizes: Sequence[int], seed: int = 0) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [[MEAN + DEVIATIONS * rng.normal(size=(n, LENGTH)) for n in sizes] for _ in range(STEPS)]


def squared(gradient: np.ndarray) -> float:
    return float(gradient @ gradient)


@pytest.mark.parametrize("ranks", [2, 4])
def test_equal_ranks_estimate_as_the_paper(ranks: int) -> None:
    """Appendix A.1, of the mean of the ranks' squared norms."""
    b, steps = 3, drawn([3] * ranks)
    for gradients, (noise, signal) in zip(steps, measured(steps), strict=True):
        means = [each.mean(axis=0) for each in gradients]
        small, big = np.mean([squared(each) for each in means]), squared(np.mean(means, axis=0))
        total = ranks * b
        assert signal == pytest.approx((total * big - b * small) / (total - b))
        assert noise == pytest.approx((small - big) / (1 / b - 1 / total))


@pytest.mark.parametrize("sizes", [(3, 3), (1, 7), (6, 2, 0), (2, 2, 2, 5)])
def test_the_estimates_have_the_known_means(sizes: Sequence[int]) -> None:
    found = measured(drawn(sizes))
    errors = found.std(axis=0, ddof=1) / np.sqrt(STEPS)
    truth = np.array([squared(DEVIATIONS), squared(MEAN)])
    assert (np.abs(found.mean(axis=0) - truth) < 3 * errors).all()
    assert (errors < 0.3 * np.array([truth[0], 1.0])).all()  # which notices a wrong factor


def test_a_rank_alone_and_a_gradient_of_before_the_resumption_say_nothing() -> None:
    assert measured(drawn((4, 0))[:3]).tolist() == [[0, 0]] * 3
    noise = GradientNoise(2)
    noise.applied([torch.ones(3)])
    assert noise.taken() == {"gradient_noise": 0.0, "gradient_signal": 0.0}
    noise._sums[0] = float("inf")
    assert noise.taken() == {}


# Training

ALIKE = ["all_gather", "reduce_broadcast", "zero1", "zero2", "zero3"]
UNEVEN: dict[str, Any] = {"batch_size": 7, "partitioner": "quantity"}


def sums(training: Training, ranks: int) -> np.ndarray:
    """Noise and signal over all ranks, in each epoch."""
    events = [training.of("epoch", rank) for rank in range(ranks)]
    names = ("gradient_noise", "gradient_signal")
    parts = [[[each.fields[name] for name in names] for each in of_rank] for of_rank in events]
    return np.sum(parts, axis=0)


@pytest.fixture(scope="module")
def of_all_reduce() -> Training:
    return train("all_reduce", 3, noise_scale=True, **UNEVEN)


def test_measuring_changes_no_bit_and_sends_nothing(of_all_reduce: Training) -> None:
    for strategy in ("all_reduce", {"name": "all_reduce", "bucket_mib": 0.001}, "zero1"):
        with_it = train(strategy, 3, noise_scale=True, **UNEVEN)
        without = train(strategy, 3, **UNEVEN)
        np.testing.assert_array_equal(with_it.weights, without.weights)
        assert with_it.results[0].bytes_sent == without.results[0].bytes_sent
        assert "gradient_noise" not in without.of("epoch")[0].fields
        np.testing.assert_allclose(sums(with_it, 3), sums(of_all_reduce, 3), rtol=1e-5)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("strategy", ALIKE)
def test_each_strategy_measures_what_all_reduce_does(strategy: str) -> None:
    expected, found = (
        sums(train(each, 3, noise_scale=True, **UNEVEN), 3) for each in ("all_reduce", strategy)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert (expected > 0).all()


@pytest.mark.usefixtures("double")
def test_delayed_gradients_are_compared_with_their_own_mean() -> None:
    """With a rate near 0 all steps are at the same weights, in other epochs."""
    delayed = {"name": "delayed_all_reduce", "delay": 2}
    same = {"noise_scale": True, "lr": 1e-12, "partitioner": "quantity"}
    expected, found = (sums(train(each, 2, **same), 2) for each in ("all_reduce", delayed))
    np.testing.assert_allclose(found.sum(axis=0), expected.sum(axis=0), rtol=1e-9)


@pytest.mark.usefixtures("double")
def test_clipping_changes_no_estimate() -> None:
    """In one step, since later ones start from other weights."""
    one_step = {"noise_scale": True, "batch_size": 60, "epochs": 1}
    free, clipped = (sums(train("all_reduce", 2, clip_norm=most, **one_step), 2) for most in (None, 1e-3))
    np.testing.assert_allclose(clipped, free, rtol=1e-9)


@pytest.mark.usefixtures("double")
def test_micro_batches_have_the_noise_of_their_batch() -> None:
    whole, split = (sums(train("all_reduce", 2, noise_scale=True, accumulate=k), 2) for k in (1, 3))
    np.testing.assert_allclose(split, whole, rtol=1e-9)


def test_runs_whose_gradients_say_less_do_not_measure_it() -> None:
    measures: dict[str, Any] = {"strategy": "all_reduce", "nodes": 2, "noise_scale": True}
    assert unmeasured_reason(RunSpec.model_validate(measures)) is None
    for other in (
        {"noise_scale": False},
        {"nodes": 1},
        {"strategy": "local_sgd"},
        {"strategy": {"name": "all_reduce", "compression": "top_k"}},
        {"strategy": {"name": "all_gather", "aggregation": "median"}, "nodes": 4},
        {"strategy": "all_gather", "byzantine": {"nodes": [1], "attack": "sign_flip"}},
        {"partitioner": "dirichlet"},
        {"partitioner": "contiguous"},
        {"model": {"name": "vgg_small", "norm": "sync_batch"}},
        {"strategy": "zero2", "accumulate": 2},
    ):
        assert unmeasured_reason(RunSpec.model_validate(measures | other)), other
    for changed in ({"on_loss": "continue"}, {"loss": Mock(weighted=True)}):  # with strategies of users
        assert unmeasured_reason(RunSpec.model_validate(measures).model_copy(update=changed)), changed
