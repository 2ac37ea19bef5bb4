"""Datasets of files, `npz`, `npy` and `image_folder`: arrays of numpy, and folders of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.base import Array
from trainer.imported.source import ImportFailure


def npz(
    path: str, directory: Path, data_dir: Path, inputs: str = "x", targets: str = "y"
) -> tuple[Array, Array]:
    """Arrays of an .npz file, by the names `inputs` and `targets`; the first dimension counts samples."""
    with np.load(_found(path, directory, data_dir), allow_pickle=False) as arrays:
        for name in (inputs, targets):
            if name not in arrays:
                raise ImportFailure(f"{path} has no array {name!r}; it has {', '.join(arrays.files)}")
        return arrays[inputs], arrays[targets]


def npy(path: str, targets: str, directory: Path, data_dir: Path) -> tuple[Array, Array]:
    """Two .npy files: `path` has the inputs and `targets` the targets, in the same order."""
    files = (_found(each, directory, data_dir) for each in (path, targets))
    first, second = (np.load(file, allow_pickle=False) for file in files)
    return first, second


def image_folder(path: str, directory: Path, data_dir: Path, size: int = 32, grey: bool = False) -> Any:
    """torchvision's ImageFolder: a folder for each class. Images are cut to squares of `size` pixels.

    Pixels are 0 … 1, in three channels, or in one if `grey`.
    """
    import torch

    from trainer.data.augmentations.torchvision_import import torchvision

    v2 = torchvision.transforms.v2

    steps = [v2.Resize(size), v2.CenterCrop(size), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return torchvision.datasets.ImageFolder(
        _found(path, directory, data_dir), v2.Compose([*[v2.Grayscale()] * grey, *steps])
    )


def _found(path: str, directory: Path, data_dir: Path) -> Path:
    """The path in the directory of the sweep file, or in the data directory."""
    places = [place / path for place in (directory, data_dir)]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise ImportFailure(f"there is no {path}, neither beside the sweep file nor in the data directory")
    return found
