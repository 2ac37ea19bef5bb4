"""Mistakes in the augmentation `standard`: ranges, signs, centres, groups, and what it must not change."""

from __future__ import annotations

from colorsys import rgb_to_hsv
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.unit.training import train
from trainer.data.augmentations.standard import StandardAugmentation
from trainer.data.base import PixelScale
from trainer.spec.run_spec import RunSpec

MEAN, DEVIATION = torch.tensor([0.5, 0.4, 0.45]), torch.tensor([0.25, 0.2, 0.22])
AFFINE, JITTER = ("degrees", "shear", "scale"), ("brightness", "contrast", "saturation", "hue")
NOTHING: dict[str, float] = dict.fromkeys(("flip", *AFFINE, *JITTER), 0.0)
GREY = torch.tensor([0.2989, 0.587, 0.114]).view(1, 3, 1, 1)  # ITU-R BT.601, as in torchvision
ERRORS = 4  # allowed deviation of an estimate, in standard errors


def augmented(pixels: Tensor, seed: int = 0, **fields: Any) -> Tensor:
    """Pixels between 0 and 1, normalised, augmented with these parameters alone, and made pixels again."""
    mean, deviation = (each[: pixels.shape[1], None, None] for each in (MEAN, DEVIATION))
    augmentation = StandardAugmentation(**{**NOTHING, **fields})
    augment: Any = augmentation.build(PixelScale(mean.numpy(), deviation.numpy()), "cpu")
    return augment((pixels - mean) / deviation, np.random.default_rng(seed)) * deviation + mean


def drawn(number: int, channels: int = 3) -> Tensor:
    """Pixel values that a jitter of 0.2 does not clip."""
    return torch.rand(number, channels, 9, 8, generator=torch.Generator().manual_seed(1)) * 0.3 + 0.3


def assert_uniform(values: np.ndarray, most: float, slack: float) -> None:
    """Check that values are uniform in ±most, to within `slack`."""
    assert np.abs(values).max() == pytest.approx(most, rel=0.05)
    assert np.abs(values).max() < most + slack
    assert values.mean() == pytest.approx(0, abs=ERRORS * most / sqrt(3 * len(values)))
    assert values.std() == pytest.approx(most / sqrt(3), rel=0.1)


# Transforms


def test_each_image_flips_independently() -> None:
    images = drawn(1000, 1)
    changed = augmented(images, flip=0.2)
    same, flipped = ((changed - each).abs().amax((1, 2, 3)) < 1e-6 for each in (images, images.flip(3)))
    assert (same ^ flipped).all()
    assert flipped.float().mean().item() == pytest.approx(0.2, abs=ERRORS * sqrt(0.2 * 0.8 / 1000))
    assert flipped[:8].unique().numel() == 2  # not in groups


def test_each_group_has_its_own_parameters() -> None:
    images = drawn(1).expand(10, -1, -1, -1)
    for draws, kinds in ((1, 1), (4, 4), (16, 10)):
        for field in (*AFFINE, *JITTER):
            assert len(torch.unique(augmented(images, draws=draws, **{field: 0.3}), dim=0)) == kinds


AT = torch.arange(32) - 15.5  # from the middle
DOWN, RIGHT = torch.meshgrid(AT, AT, indexing="ij")


def shown(picture: Tensor, **fields: Any) -> Tensor:
    """A picture of 32×32 on black, augmented 120 times."""
    return augmented(picture.expand(120, 1, -1, -1), draws=120, **fields)[:, 0]


def blob_centres(**fields: Any) -> np.ndarray:
    """Where a blob 6 pixels right of the middle is then: right of and above the middle, shape (120, 2)."""
    changed = shown(torch.exp(-((RIGHT - 6) ** 2 + DOWN**2) / 8), **fields)
    moments = torch.stack([changed.sum(dim=1) @ AT, -(changed.sum(dim=2) @ AT)], dim=1)
    return (moments / changed.sum(dim=(1, 2))[:, None]).numpy()


def test_rotation_scale_and_shear_are_uniform_about_the_centre() -> None:
    centres = blob_centres(degrees=40)
    assert np.hypot(*centres.T) == pytest.approx(6, abs=0.05)
    assert_uniform(np.degrees(np.arctan2(centres[:, 1], centres[:, 0])), 40, slack=0.5)
    centres = blob_centres(scale=0.3)
    assert centres[:, 1] == pytest.approx(0, abs=0.02)
    assert_uniform(centres[:, 0] / 6 - 1, 0.3, slack=0.01)
    # The middle row does not move; a column leans by up to the angle.
    assert blob_centres(shear=30) == pytest.approx(np.tile([6, 0], (120, 1)), abs=0.05)
    leaning = shown((RIGHT.abs() < 1).float(), shear=30)
    top, bottom = ((leaning[:, row] @ AT) / leaning[:, row].sum(dim=1) for row in (8, 23))
    assert_uniform(np.degrees(np.arctan(((top - bottom) / 15).numpy())), 30, slack=1)


def test_outside_the_image_is_black() -> None:
    corners = augmented(torch.ones(5, 3, 16, 16), scale=0.9, seed=3, draws=5)[:, :, 0, 0]
    assert corners.min().item() == pytest.approx(0, abs=1e-6)
    assert torch.equal(corners.round(), corners.round().clamp(0, 1))


def test_colour_jitter_scales_the_distance_from_what_it_keeps_and_turns_hues() -> None:
    x, dims = drawn(120), (1, 2, 3)
    grey = (x * GREY).sum(dim=1, keepdim=True)
    for kind, kept in {"brightness": 0, "contrast": grey.mean(dims, True), "saturation": grey}.items():
        changed = augmented(x, draws=120, **{kind: 0.2})
        factor = ((changed - kept) * (x - kept)).sum(dims, True) / (x - kept).square().sum(dims, True)
        torch.testing.assert_close(changed, kept + factor * (x - kept), rtol=0, atol=1e-5)
        assert_uniform(factor.flatten().numpy() - 1, 0.2, slack=1e-3)
    hues = np.vectorize(lambda *pixel: rgb_to_hsv(*pixel)[0])
    before, after = (hues(*each.movedim(1, 0).numpy()) for each in (x, augmented(x, draws=120, hue=0.1)))
    turns = (after - before + 0.5) % 1 - 0.5
    assert np.ptp(turns, axis=(1, 2)).max() < 1e-3
    assert_uniform(turns[:, 0, 0], 0.1, slack=1e-3)


# In training

STEPS: dict[str, Any] = {"batch_size": 11, "epochs": 1, "optimizer": "momentum"}
COLOURLESS = {"name": "standard", "saturation": 0, "draws": 4}


def test_ranks_of_one_model_augment_as_serial_does() -> None:
    serial, plain = (train("serial", 1, **STEPS, augmentation=each) for each in (COLOURLESS, "none"))
    assert np.abs(plain.weights - serial.weights).max() > 0.01
    for strategy, ranks in (("all_reduce", 1), ("pipeline", 3), ("tensor_parallel", 3)):
        divided = train(strategy, ranks, **STEPS, augmentation=COLOURLESS)
        np.testing.assert_allclose(divided.weights, serial.weights, rtol=0, atol=1e-4)


def test_test_split_is_not_augmented() -> None:
    fields = {**STEPS, "lr": 1e-12}
    found = [train("serial", 1, **fields, augmentation=each).results[0] for each in (COLOURLESS, "none")]
    assert found[0].test_loss == pytest.approx(found[1].test_loss, abs=1e-6)


# Validation


def test_colour_jitter_needs_colour_images() -> None:
    for channels, named in ((1, "standard .*synthetic: saturation 0.2 "), (2, "not of 2; .*brightness")):
        run = {"strategy": "serial", "dataset": {"name": "synthetic", "channels": channels}}
        with pytest.raises(ValidationError, match=named) as caught:
            RunSpec.model_validate({**run, "augmentation": "standard"})
        assert [error["type"] for error in caught.value.errors()] == ["augmentation"]
        RunSpec.model_validate({**run, "augmentation": {"name": "standard", **NOTHING, "flip": 0.5}})
    assert StandardAugmentation(**NOTHING).build(None, "cpu") is None
