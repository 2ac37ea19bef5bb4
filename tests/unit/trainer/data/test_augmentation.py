"""Augmentation `standard`: each transform, and augmentation in every strategy."""

from __future__ import annotations

from math import atan2, degrees, hypot, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.unit.training import SMALL, Training, train
from trainer.data.augmentations.standard import StandardAugmentation
from trainer.data.base import PixelScale
from trainer.spec.registries import DATASETS
from trainer.spec.run_spec import RunSpec
from trainer.training.replica import Replica
from trainer.training.task import Task

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


def test_zero_parameters_disable_augmentation() -> None:
    assert StandardAugmentation(**NOTHING).build(PixelScale(MEAN, DEVIATION), "cpu") is None


@pytest.mark.parametrize("probability", [0.2, 0.5, 1.0])
def test_each_image_flips_independently(probability: float) -> None:
    images = torch.randn(2000, 1, 2, 3)
    changed = augmented(images, flip=probability)
    flipped = (changed == images.flip(3)).flatten(1).all(dim=1)
    assert ((changed == images).flatten(1).all(dim=1) ^ flipped).all()
    error = sqrt(probability * (1 - probability) / 2000)
    assert flipped.float().mean().item() == pytest.approx(probability, abs=ERRORS * error)
    assert probability == 1 or flipped[:8].unique().numel() == 2  # not in groups


@pytest.mark.parametrize(("draws", "kinds"), [(1, 1), (4, 4), (10, 10), (16, 10)])
def test_each_group_has_its_own_parameters(draws: int, kinds: int) -> None:
    images = pixels(1).expand(10, -1, -1, -1)
    for field in ("degrees", "shear", "scale", "brightness", "contrast", "saturation", "hue"):
        changed = augmented(images, draws=draws, **{field: 0.3})
        assert len(torch.unique(changed, dim=0)) == kinds


def blob(angle: float = 0.0) -> Tensor:
    """A bright blob 6 pixels to the right of the middle of 32×32 dark ones."""
    down, right = torch.meshgrid(torch.arange(32) - 15.5, torch.arange(32) - 15.5, indexing="ij")
    return torch.exp(-((right - 6) ** 2 + down**2) / 8)


def blob_centres(**fields: Any) -> np.ndarray:
    """The blob's centre in 400 augmented images: right of and above the middle, shape (400, 2)."""
    dark = ((0 - of(MEAN, 1)) / of(DEVIATION, 1)).item()
    images = (blob() / DEVIATION[0] + dark).expand(400, 1, -1, -1)
    changed = (augmented(images, draws=400, **fields) - dark)[:, 0]
    at, weight = torch.arange(32) - 15.5, changed.sum(dim=(1, 2))
    right, up = (changed.sum(dim=1) @ at) / weight, -(changed.sum(dim=2) @ at) / weight
    return torch.stack([right, up], dim=1).numpy()


def assert_uniform(values: np.ndarray, most: float, slack: float) -> None:
    """Check that values are uniform in ±most, to within `slack`."""
    assert np.abs(values).max() == pytest.approx(most, rel=0.05)
    assert np.abs(values).max() < most + slack
    assert values.mean() == pytest.approx(0, abs=ERRORS * most / sqrt(3 * len(values)))
    assert values.std() == pytest.approx(most / sqrt(3), rel=0.1)


def test_rotation_is_uniform_about_the_centre() -> None:
    centres = blob_centres(degrees=40)
    assert np.hypot(*centres.T) == pytest.approx(6, abs=0.05)
    assert_uniform(np.array([degrees(atan2(up, right)) for right, up in centres]), 40, slack=0.5)


def test_scale_is_uniform_about_the_centre() -> None:
    centres = blob_centres(scale=0.3)
    assert centres[:, 1] == pytest.approx(0, abs=0.02)
    assert_uniform(np.array([hypot(*centre) / 6 - 1 for centre in centres]), 0.3, slack=0.01)


def test_shear_is_uniform_along_rows() -> None:
    """The middle row does not move; a column leans by up to the angle in either direction."""
    assert blob_centres(shear=30) == pytest.approx(np.tile([6, 0], (400, 1)), abs=0.05)
    column = torch.zeros(32, 32)
    column[:, 15:17] = 1.0
    dark = ((0 - of(MEAN, 1)) / of(DEVIATION, 1)).item()
    images = (column / DEVIATION[0] + dark).expand(400, 1, -1, -1)
    changed = (augmented(images, draws=400, shear=30) - dark)[:, 0]
    at = torch.arange(32) - 15.5
    top, bottom = ((changed[:, row] @ at) / changed[:, row].sum(dim=1) for row in (8, 23))
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
    x = pixels(800)
    grey = (x * GREY).sum(dim=1, keepdim=True)
    fixed = {
        "brightness": torch.zeros_like(x),
        "contrast": grey.mean(dim=(1, 2, 3), keepdim=True).expand_as(x),
        "saturation": grey.expand_as(x),
    }
    found = factors(jittered(x, draws=800, **{kind: 0.2}), x, fixed[kind]).numpy() - 1
    assert_uniform(found, 0.2, slack=1e-3)


def test_hue_shift_keeps_value_and_chroma() -> None:
    x = pixels(50)
    changed = jittered(x, draws=50, hue=0.3)
    torch.testing.assert_close(changed.amax(dim=1), x.amax(dim=1), rtol=0, atol=1e-5)
    torch.testing.assert_close(changed.amin(dim=1), x.amin(dim=1), rtol=0, atol=1e-5)
    assert (changed - x).abs().flatten(1).amax(dim=1).min() > 0.001  # in every image


def test_jittered_images_are_normalised() -> None:
    images = (pixels(3000, 0.1, 0.9) - of(MEAN)) / of(DEVIATION)
    changed = augmented(images, draws=3000, flip=0.5, brightness=0.1, contrast=0.1, saturation=0.1)
    assert not torch.equal(changed, images)
    error = 0.1 / sqrt(3) * 0.5 / DEVIATION.min() / sqrt(3000)  # of brightness, the largest
    means = (each.mean(dim=(0, 2, 3)).numpy() for each in (changed, images))
    np.testing.assert_allclose(*means, rtol=0, atol=ERRORS * error)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_pixel_scale_restores_pixels(name: str) -> None:
    data = Task(RunSpec.model_validate({"strategy": "serial", "dataset": name}), None).data  # type: ignore[arg-type]
    pixels = data.train.inputs * data.scale.deviation + data.scale.mean
    assert pixels.min() == pytest.approx(0, abs=1e-5)
    assert pixels.max() == pytest.approx(1, abs=1e-5)


# In training

COLOURLESS = {"name": "standard", "saturation": 0, "draws": 4}
STEPS: dict[str, Any] = {"batch_size": 11, "epochs": 2, "optimizer": "momentum", "augmentation": COLOURLESS}


def assert_close(one: Training, other: Training) -> None:
    np.testing.assert_allclose(one.weights, other.weights, rtol=0, atol=1e-4)


def test_serial_and_all_reduce_on_one_node_augment_equally() -> None:
    serial, alone = train("serial", 1, **STEPS), train("all_reduce", 1, **STEPS)
    np.testing.assert_array_equal(serial.weights, alone.weights)
    plain = train("serial", 1, **{**STEPS, "augmentation": "none"})
    assert np.abs(plain.weights - serial.weights).max() > 0.01


@pytest.mark.parametrize("strategy", ["one_shot", "all_reduce", "gossip"])
def test_replicas_augment_their_own_samples(strategy: str) -> None:
    first, second = (train(strategy, 2, **STEPS) for _ in range(2))
    np.testing.assert_array_equal(first.weights, second.weights)
    plain = train(strategy, 2, **{**STEPS, "augmentation": "none"})
    assert np.abs(plain.weights - first.weights).max() > 0.01
    assert plain.of("coverage")[0].fields["digest"] == first.of("coverage")[0].fields["digest"]


@pytest.mark.parametrize(
    "strategy", ["pipeline", "tensor_parallel", {"name": "hybrid", "mesh": {"pipeline": 3}}]
)
def test_model_parallel_ranks_augment_like_serial(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serial = train("serial", 1, **STEPS)
    built: list[object] = []
    build = StandardAugmentation.build

    def counted(augmentation: StandardAugmentation, scale: PixelScale, device: str) -> Any:
        built.append(augmentation)
        return build(augmentation, scale, device)

    monkeypatch.setattr(StandardAugmentation, "build", counted)
    assert_close(train(strategy, 3, model={"name": "mlp", "hidden": [8]}, **STEPS), serial)
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
    np.testing.assert_array_equal(np.concatenate(seen), np.concatenate([test] * 2))  # two epochs


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


def test_run_key_without_augmentation_is_unchanged() -> None:
    run = {"strategy": "serial"}
    assert "augmentation" not in RunSpec.model_validate(run).canonical()
    changed = RunSpec.model_validate({**run, "augmentation": COLOURLESS})
    assert changed.canonical()["augmentation"] == COLOURLESS
