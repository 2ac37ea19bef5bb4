"""Imports torchvision, even if its compiled operators do not match the torch build. Import it from here.

PyPI's torchvision is a CUDA build. Its operators do not load with a CPU build of torch. The package then
fails to import unless two of them are declared ("operator torchvision::nms does not exist"). torchvision's
CPU build loads them itself.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def operators_load(package: Path) -> bool:
    """Whether the compiled operators of torchvision in `package` load. Can be called repeatedly."""
    try:
        for library in package.glob("_C.*"):
            torch.ops.load_library(library)
            return True
    except OSError:
        pass
    return False


def declared() -> torch.library.Library | None:
    """Declare operators that do not load and that are never called. None if they load.

    The declarations last as long as the returned object.
    """
    found = find_spec("torchvision")
    if found is None or found.origin is None or operators_load(Path(found.origin).parent):
        return None
    library = torch.library.Library("torchvision", "DEF")
    for operator in OPERATORS:
        library.define(operator + SCHEMA)
    return library


DECLARED = declared()

import torchvision  # noqa: E402
import torchvision.transforms.v2  # noqa: E402

__all__ = ["torchvision"]
