"""The known models, one file each."""

from trainer.models.base import Model
from trainer.registry import ComponentRegistry

MODELS: ComponentRegistry[Model] = ComponentRegistry(
    "model",
    {
        "lenet": "trainer.models.lenet:LeNet",
        "mlp": "trainer.models.mlp:Mlp",
    },
)
