"""The known partitioners, one file each."""

from trainer.data.base import Partitioner
from trainer.registry import ComponentRegistry

PARTITIONERS: ComponentRegistry[Partitioner] = ComponentRegistry(
    "partitioner",
    {
        "random_partition": "trainer.data.partitioners.random_partition:RandomPartition",
        "random_sampling": "trainer.data.partitioners.random_sampling:RandomSampling",
    },
)
