"""Conformance of augmentations: every registered one obeys the contract of `Augment`."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from trainer.data.augmentations.base import Augment
from trainer.data.base import PixelScale
from trainer.spec.registries import AUGMENTATIONS

SHAPES = [(1, 3, 32, 32), (7, 3, 20, 24), (128, 3, 8, 8)]


@pytest.fixture(params=list(AUGMENTATIONS.entries))
def augment(request: pytest.FixtureRequest) -> Augment:
    scale = PixelScale(
        np.array([0.5, 0.4, 0.45], np.float32).reshape(3, 1, 1), np.full((3, 1, 1), 0.25, np.float32)
    )
    return AUGMENTATIONS.parse(request.param).build(scale, "cpu") or unchanged


def unchanged(images: Tensor, _: np.random.Generator) -> Tensor:
    return images


def images(shape: tuple[int, int, int, int]) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    return drawn.contiguous(memory_format=torch.channels_last)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_keeps_shape_and_memory_format(augment: Augment, shape: tuple[int, int, int, int]) -> None:
    before = images(shape)
    given = before.clone()
    changed = augment(given, rng())
    assert torch.equal(given, before)
    assert changed.shape == shape
    assert changed.dtype == torch.float32
    assert changed.is_contiguous(memory_format=torch.channels_last)
    assert changed.isfinite().all()


def test_result_depends_only_on_the_given_generator(augment: Augment) -> None:
    batch = images((20, 3, 16, 16))
    torch.manual_seed(1)
    first = augment(batch, rng(5))
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    augment(batch, rng(6))  # no state is kept between batches
    assert torch.equal(augment(batch, rng(5)), first)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]
    assert random.getstate() == before[2]
    assert torch.equal(augment(batch, rng(6)), first) == (augment is unchanged)
