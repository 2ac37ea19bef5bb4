"""The known augmentations, one file each."""

from trainer.data.augmentations.base import Augment, Augmentation
from trainer.registry import ComponentRegistry

__all__ = ["AUGMENTATIONS", "Augment", "Augmentation"]

AUGMENTATIONS: ComponentRegistry[Augmentation] = ComponentRegistry(
    "augmentation",
    {
        "none": "trainer.data.augmentations.none:NoneAugmentation",
        "standard": "trainer.data.augmentations.standard:StandardAugmentation",
    },
)
