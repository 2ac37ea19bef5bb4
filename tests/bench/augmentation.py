"""Augmentation of batches in memory, compared with torchvision's transforms on one PIL image at a time.

Both apply the defaults of `standard`: flip, rotation, shear, scale, jitter of brightness, contrast and
saturation, normalisation. They take turns. One thread, batches of 128 images of CIFAR-10's shape.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from tests.bench.step import pinned_to_a_core, ratio
from trainer.core.rng import RngFactory
from trainer.data.augmentations.standard import StandardAugmentation
from trainer.data.base import PixelScale, Split
from trainer.data.datasets.normalise import normalise
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader

BATCH, BATCHES = 128, 8
TURNS = 12
DRAWS = (1, 16, BATCH)

Epoch = Callable[[], None]


def main() -> None:
    pinned_to_a_core()
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH * BATCHES, 3, 32, 32), dtype=np.uint8)
    labels = np.zeros(len(pixels), np.int64)
    data = normalise((pixels, labels), (pixels[:1], labels[:1]), classes=10)
    contenders: dict[str, Epoch] = {
        "PIL images one by one": one_by_one(pixels, data.scale),
        **{f"in memory, {draws} draws": in_memory(data.train, data.scale, draws) for draws in DRAWS},
        "in memory, hue 0.1 too": in_memory(data.train, data.scale, 16, hue=0.1),
        "in memory, no augmentation": in_memory(data.train, data.scale, 0),
    }
    turns = measure(contenders)
    print(f"augmentation, 3×32×32, batch {BATCH}, one thread, {TURNS} turns of {BATCHES} batches")
    print("                              batches/s   speedup over one by one")
    for name, times in turns.items():
        speedup = ratio(turns["PIL images one by one"], times)
        print(f"  {name:26} {1 / statistics.median(times):10.1f}   {speedup}")


def measure(contenders: dict[str, Epoch]) -> dict[str, list[float]]:
    """Seconds per batch: one value per turn, by contender."""
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-1, TURNS):  # the first turn warms up
        for name, epoch in contenders.items():
            started = time.perf_counter()
            epoch()
            if turn >= 0:
                turns[name].append((time.perf_counter() - started) / BATCHES)
    return turns


def one_by_one(pixels: np.ndarray, scale: PixelScale) -> Epoch:
    """The usual lab code: a Compose of torchvision's transforms, applied to each PIL image of a dataset."""
    from trainer.data.augmentations.torchvision_import import torchvision

    parameters, transforms = StandardAugmentation(), torchvision.transforms
    size = (1 - parameters.scale, 1 + parameters.scale)
    transform = transforms.Compose(
        [
            transforms.RandomHorizontalFlip(parameters.flip),
            transforms.RandomAffine(
                parameters.degrees,
                scale=size,
                shear=parameters.shear,
                interpolation=transforms.InterpolationMode.BILINEAR,
            ),
            transforms.ColorJitter(parameters.brightness, parameters.contrast, parameters.saturation),
            transforms.ToTensor(),
            transforms.Normalize(scale.mean.flatten().tolist(), scale.deviation.flatten().tolist()),
        ]
    )
    images = [transforms.functional.to_pil_image(torch.from_numpy(image)) for image in pixels]

    def epoch() -> None:
        order = torch.randperm(len(images)).tolist()
        for start in range(0, len(order), BATCH):
            torch.stack([transform(images[index]) for index in order[start : start + BATCH]])

    return epoch


def in_memory(train: Split, scale: PixelScale, draws: int, hue: float = 0.0) -> Epoch:
    """Our data loader. draws: 0 disables augmentation."""
    spec = RunSpec.model_validate({"strategy": "serial", "batch_size": BATCH})
    augment = StandardAugmentation(draws=draws, hue=hue).build(scale, "cpu") if draws else None
    loader = BatchLoader(train, spec, RngFactory(0), 0, 1, augment=augment)

    def epoch() -> None:
        for _ in loader.batches(1):
            pass

    return epoch
