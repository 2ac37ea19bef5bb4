"""Datasets of files, `npz`, `npy` and `image_folder`: arrays of numpy, and folders of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
from pydantic import Field

from trainer.core.regular_files import open_regular
from trainer.core.user_code import ImportFailure
from trainer.data.base import Array


def npz(
    path: str, directory: Path, data_dir: Path, inputs: str = "x", targets: str = "y"
) -> tuple[Array, Array]:
    """Arrays of an .npz file, by the names `inputs` and `targets`; the first dimension counts samples."""
    with _opened(_found(path, directory, data_dir)) as file:
        arrays = _arrays(file, path)
        if isinstance(arrays, np.ndarray):
            raise ImportFailure(f"{path} has one array without a name; use the dataset npy")
        for name in (inputs, targets):
            if name not in arrays:
                raise ImportFailure(f"{path} has no array {name!r}; it has {', '.join(arrays.files)}")
        return _array(arrays, inputs, path), _array(arrays, targets, path)


def _array(arrays: Any, name: str, path: str) -> Array:
    """An array of an .npz file. Raises ImportFailure."""
    try:
        array: Array = arrays[name]
    except ValueError as error:  # it holds objects
        raise ImportFailure(f"the array {name!r} of {path} holds objects; allowed: numbers") from error
    return array


def npy(path: str, targets: str, directory: Path, data_dir: Path) -> tuple[Array, Array]:
    """Two .npy files: `path` has the inputs and `targets` the targets, in the same order."""
    with (
        _opened(_found(path, directory, data_dir)) as first,
        _opened(_found(targets, directory, data_dir)) as second,
    ):
        return _arrays(first, path), _arrays(second, targets)


def image_folder(
    path: str, directory: Path, data_dir: Path, size: Annotated[int, Field(ge=1)] = 32, grey: bool = False
) -> Any:
    """torchvision's ImageFolder: a folder for each class. Images are cut to squares of `size` pixels.

    Pixels are 0 … 1, in three channels, or in one if `grey`. Hidden folders are ignored.
    """
    root = _found(path, directory, data_dir)
    names = sorted(each.name for each in root.iterdir() if each.is_dir()) if root.is_dir() else []
    names = [name for name in names if not name.startswith(".")]
    if not names:
        raise ImportFailure(f"{path} must be a directory with a folder of images for each class")

    import torch

    from trainer.core.torchvision_import import torchvision

    class Folders(torchvision.datasets.ImageFolder):  # type: ignore[misc]
        def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
            return names, {name: number for number, name in enumerate(names)}

    v2 = torchvision.transforms.v2
    steps = [v2.Resize(size), v2.CenterCrop(size), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([*[v2.Grayscale()] * grey, *steps])
    found = Folders(root, transform, loader=_image, allow_empty=True)
    filled = {number for _, number in found.samples}
    if empty := [name for number, name in enumerate(names) if number not in filled]:
        known = ", ".join(torchvision.datasets.folder.IMG_EXTENSIONS)
        raise ImportFailure(f"{path} has no image in {', '.join(empty)}; allowed: files {known}")
    return found


def _image(path: str) -> Any:
    """Like torchvision's loader, for regular files only. Raises ImportFailure."""
    from PIL import Image

    with _opened(Path(path)) as file:
        return Image.open(file).convert("RGB")


def _opened(path: Path) -> BinaryIO:
    """Open a regular file. Raises ImportFailure."""
    try:
        return open_regular(path)
    except OSError as error:
        raise ImportFailure(f"{path.name}: {error.strerror}") from error


def _arrays(file: BinaryIO, path: str) -> Any:
    """The arrays of a file of numpy. Raises ImportFailure."""
    try:
        return np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ImportFailure(f"{Path(path).name} is no file of numpy with arrays of numbers") from error


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
