"""torchvision.datasets, also beside a torch build that torchvision's own compiled operators do not fit."""

from __future__ import annotations

import sys
from types import ModuleType


def torchvision_datasets() -> ModuleType:
    """The module; where needed with the schemas declared that its operators would have brought."""
    try:
        import torchvision.datasets
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        # torchvision's CUDA build beside a torch without CUDA: its operators did not load. No dataset
        # needs them; what the import needs is that they are declared.
        import torch

        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        declared = torch.library.Library("torchvision", "DEF")
        declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision.datasets

        # The declarations end with the object that made them.
        torchvision.datasets.declared_operators = declared
    return torchvision.datasets
