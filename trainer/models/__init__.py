"""The known models, one file each."""

from trainer.models.base import Model
from trainer.registry import ComponentRegistry

MODELS: ComponentRegistry[Model] = ComponentRegistry(
    "model",
    {
        "lenet": "trainer.models.lenet:LeNet",
        "mlp": "trainer.models.mlp:Mlp",
        "mnist_cnn": "trainer.models.mnist_cnn:MnistCnn",
        "vgg_small": "trainer.models.vgg_small:VggSmall",
        "wide_resnet": "trainer.models.wide_resnet:WideResNet",
    },
)
