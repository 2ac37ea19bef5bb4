"""The known datasets, one file each (fashion_mnist shares its format and file with mnist)."""

from trainer.data.base import Dataset
from trainer.registry import ComponentRegistry

DATASETS: ComponentRegistry[Dataset] = ComponentRegistry(
    "dataset",
    {
        "digits": "trainer.data.datasets.digits:Digits",
        "mnist": "trainer.data.datasets.mnist:Mnist",
        "fashion_mnist": "trainer.data.datasets.mnist:FashionMnist",
        "cifar10": "trainer.data.datasets.cifar10:Cifar10",
        "synthetic": "trainer.data.datasets.synthetic:Synthetic",
    },
)
