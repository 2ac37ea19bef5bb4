"""Mistakes in the augmentation `standard`: ranges, signs, centres, groups, and what it must not change."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.unit.training import SMALL, train
from trainer.data.augmentations.standard import StandardAugmentation
from trainer.data.base import PixelScale
from trainer.spec.registries import DATASETS
from trainer.spec.run_spec import RunSpec
from trainer.training.replica import Replica

MEAN, DEVIATION = np.array([0.5, 0.4, 0.45], np.float32), np.array([0.25, 0.2, 0.22], np.float32)
NOTHING: dict[str, float] = dict.fromkeys(
    ("flip", "degrees", "shear", "scale", "brightness", "contrast", "saturation", "hue"), 0.0
)
GREY = torch.tensor([0.2989, 0.587, 0.114]).view(1, 3, 1, 1)  # ITU-R BT.601, as in torchvision
ERRORS = 4  # allowed deviation of an estimate, in standard errors


def of(scale: np.ndarray, channels: int = 3) -> Tensor:
    return torch.from_numpy(scale[:channels]).view(1, -1, 1, 1)


def augmented(images: Tensor, seed: int = 0, **fields: Any) -> Tensor:
    """Normalised images augmented with only the parameters in `fields`."""
    scale = PixelScale(*(of(each, images.shape[1])[0].numpy() for each in (MEAN, DEVIATION)))
    augment = StandardAugmentation(**{**NOTHING, **fields}).build(scale, "cpu")
    assert augment
    return augment(images, np.random.default_rng(seed))


def jittered(pixels: Tensor, seed: int = 0, **fields: Any) -> Tensor:
    """As `augmented`, for pixels between 0 and 1."""
    return augmented((pixels - of(MEAN)) / of(DEVIATION), seed, **fields) * of(DEVIATION) + of(MEAN)


def pixels(number: int = 12, low: float = 0.3, high: float = 0.6) -> Tensor:
    """Pixel values that a jitter of 0.2 does not clip."""
    return torch.rand(number, 3, 9, 8, generator=torch.Generator().manual_seed(1)) * (high - low) + low


# Transforms


@pytest.mark.parametrize("probability", [0.2, 1.0])
def test_each_image_flips_independently(probability: float) -> None:
    images = torch.randn(1000, 1, 2, 3)
    changed = augmented(images, flip=probability)
    flipped = (changed == images.flip(3)).flatten(1).all(dim=1)
    assert ((changed == images).flatten(1).all(dim=1) ^ flipped).all()
    error = sqrt(probability * (1 - probability) / 1000)
    assert flipped.float().mean().item() == pytest.approx(probability, abs=ERRORS * error)
    assert probability == 1 or flipped[:8].unique().numel() == 2  # not in groups


@pytest.mark.parametrize(("draws", "kinds"), [(1, 1), (4, 4), (16, 10)])
def test_each_group_has_its_own_parameters(draws: int, kinds: int) -> None:
    images = pixels(1).expand(10, -1, -1, -1)
    for field in ("degrees", "shear", "scale", "brightness", "contrast", "saturation", "hue"):
        changed = augmented(images, draws=draws, **{field: 0.3})
        assert len(torch.unique(changed, dim=0)) == kinds


def shown(picture: Tensor, number: int, **fields: Any) -> Tensor:
    """A picture of 32×32 on black, augmented so often."""
    dark = ((0 - of(MEAN, 1)) / of(DEVIATION, 1)).item()
    images = (picture / DEVIATION[0] + dark).expand(number, 1, -1, -1)
    return (augmented(images, draws=number, **fields) - dark)[:, 0]


AT = torch.arange(32) - 15.5  # from the middle
DOWN, RIGHT = torch.meshgrid(AT, AT, indexing="ij")


def blob_centres(**fields: Any) -> np.ndarray:
    """Where a blob 6 pixels right of the middle is then: right of and above the middle, shape (120, 2)."""
    changed = shown(torch.exp(-((RIGHT - 6) ** 2 + DOWN**2) / 8), 120, **fields)
    moments = torch.stack([changed.sum(dim=1) @ AT, -(changed.sum(dim=2) @ AT)], dim=1)
    return (moments / changed.sum(dim=(1, 2))[:, None]).numpy()


def assert_uniform(values: np.ndarray, most: float, slack: float) -> None:
    """Check that values are uniform in ±most, to within `slack`."""
    assert np.abs(values).max() == pytest.approx(most, rel=0.05)
    assert np.abs(values).max() < most + slack
    assert values.mean() == pytest.approx(0, abs=ERRORS * most / sqrt(3 * len(values)))
    assert values.std() == pytest.approx(most / sqrt(3), rel=0.1)


def test_rotation_scale_and_shear_are_uniform_about_the_centre() -> None:
    centres = blob_centres(degrees=40)
    assert np.hypot(*centres.T) == pytest.approx(6, abs=0.05)
    assert_uniform(np.degrees(np.arctan2(centres[:, 1], centres[:, 0])), 40, slack=0.5)
    centres = blob_centres(scale=0.3)
    assert centres[:, 1] == pytest.approx(0, abs=0.02)
    assert_uniform(centres[:, 0] / 6 - 1, 0.3, slack=0.01)
    # The middle row does not move; a column leans by up to the angle.
    assert blob_centres(shear=30) == pytest.approx(np.tile([6, 0], (120, 1)), abs=0.05)
    leaning = shown((RIGHT.abs() < 1).float(), 120, shear=30)
    top, bottom = ((leaning[:, row] @ AT) / leaning[:, row].sum(dim=1) for row in (8, 23))
    assert_uniform(np.degrees(np.arctan(((top - bottom) / 15).numpy())), 30, slack=1)


def test_outside_the_image_is_black() -> None:
    white = (torch.ones(5, 3, 16, 16) - of(MEAN)) / of(DEVIATION)
    changed = augmented(white, scale=0.9, seed=3, draws=5)
    corners = (changed * of(DEVIATION) + of(MEAN))[:, :, 0, 0]
    assert corners.min().item() == pytest.approx(0, abs=1e-6)
    assert torch.equal(corners.round(), corners.round().clamp(0, 1))


def factors(changed: Tensor, x: Tensor, fixed: Tensor) -> Tensor:
    """The factor by which each image's distance from `fixed` grew; equal for all its pixels."""
    apart = (x - fixed).flatten(1)
    factor = ((changed - fixed).flatten(1) * apart).sum(dim=1) / apart.square().sum(dim=1)
    expected = fixed + factor.view(-1, 1, 1, 1) * (x - fixed)
    torch.testing.assert_close(changed, expected, rtol=0, atol=1e-5)
    return factor


@pytest.mark.parametrize("kind", ["brightness", "contrast", "saturation"])
def test_colour_jitter_follows_its_formula(kind: str) -> None:
    x = pixels(120)
    grey = (x * GREY).sum(dim=1, keepdim=True)
    fixed = {
        "brightness": torch.zeros_like(x),
        "contrast": grey.mean(dim=(1, 2, 3), keepdim=True).expand_as(x),
        "saturation": grey.expand_as(x),
    }
    found = factors(jittered(x, draws=120, **{kind: 0.2}), x, fixed[kind]).numpy() - 1
    assert_uniform(found, 0.2, slack=1e-3)


def test_hue_shift_keeps_value_and_chroma() -> None:
    x = pixels(50)
    changed = jittered(x, draws=50, hue=0.3)
    for extreme in (torch.amax, torch.amin):
        torch.testing.assert_close(extreme(changed, dim=1), extreme(x, dim=1), rtol=0, atol=1e-5)
    assert (changed - x).abs().flatten(1).amax(dim=1).min() > 0.001  # in every image


# In training

COLOURLESS = {"name": "standard", "saturation": 0, "draws": 4}
STEPS: dict[str, Any] = {"batch_size": 11, "epochs": 1, "optimizer": "momentum", "augmentation": COLOURLESS}


@pytest.mark.parametrize("strategy", ["pipeline", "tensor_parallel"])
def test_ranks_of_one_model_augment_as_serial_does(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serial = train("serial", 1, **STEPS)
    alone, plain = train("all_reduce", 1, **STEPS), train("serial", 1, **{**STEPS, "augmentation": "none"})
    np.testing.assert_array_equal(serial.weights, alone.weights)
    assert np.abs(plain.weights - serial.weights).max() > 0.01
    built: list[object] = []
    build = StandardAugmentation.build

    def counted(augmentation: StandardAugmentation, scale: PixelScale, device: str) -> Any:
        built.append(augmentation)
        return build(augmentation, scale, device)

    monkeypatch.setattr(StandardAugmentation, "build", counted)
    divided = train(strategy, 3, model={"name": "mlp", "hidden": [8]}, **STEPS)
    np.testing.assert_allclose(divided.weights, serial.weights, rtol=0, atol=1e-4)
    # Only stages that receive images augment them.
    assert len(built) == (3 if strategy == "tensor_parallel" else 1)


def test_test_split_is_not_augmented(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []
    predict = Replica.predict

    def watched(replica: Replica, images: Tensor) -> Tensor | None:
        seen.append(images.numpy())
        return predict(replica, images)

    monkeypatch.setattr(Replica, "predict", watched)
    train("serial", 1, **STEPS)
    dataset = DATASETS.parse(SMALL["dataset"])
    test = dataset.load(None).test.inputs  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.concatenate(seen), test)


# Validation


@pytest.mark.parametrize(
    ("channels", "fields", "named"),
    [
        (1, {}, ("saturation 0.2",)),
        (1, {"saturation": 0, "hue": 0.1}, ("hue 0.1",)),
        (2, {}, ("not of 2", "brightness")),
    ],
)
def test_colour_jitter_needs_colour_images(
    channels: int, fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    run = {"strategy": "serial", "dataset": {"name": "synthetic", "channels": channels}}
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({**run, "augmentation": {"name": "standard", **fields}})
    (error,) = caught.value.errors()
    assert error["type"] == "augmentation"
    assert all(value in error["msg"] for value in (*named, "standard", "synthetic"))
    RunSpec.model_validate({**run, "augmentation": {"name": "standard", **NOTHING, "flip": 0.5}})
    assert StandardAugmentation(**NOTHING).build(PixelScale(MEAN, DEVIATION), "cpu") is None
