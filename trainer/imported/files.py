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
    arrays = _arrays(_found(path, directory, data_dir))
    if isinstance(arrays, np.ndarray):
        raise ImportFailure(f"{path} has one array without a name; use the dataset npy")
    with arrays:
        for name in (inputs, targets):
            if name not in arrays:
                raise ImportFailure(f"{path} has no array {name!r}; it has {', '.join(arrays.files)}")
        return arrays[inputs], arrays[targets]


def npy(path: str, targets: str, directory: Path, data_dir: Path) -> tuple[Array, Array]:
    """Two .npy files: `path` has the inputs and `targets` the targets, in the same order."""
    first, second = (_arrays(_found(each, directory, data_dir)) for each in (path, targets))
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


def _arrays(path: Path) -> Any:
    """The arrays of a file of numpy. Raises ImportFailure."""
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ImportFailure(f"{path.name} is no file of numpy with arrays of numbers") from error


def _found(path: str, directory: Path, data_dir: Path) -> Path:
    """The path in the directory of the sweep file, or in the data directory."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ImportFailure(
            f"{path} must be a path below the directory of the sweep file, or below --data-dir"
        )
    places = [place / path for place in (directory, data_dir)]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise ImportFailure(f"there is no {path}, neither beside the sweep file nor in the data directory")
    return found
