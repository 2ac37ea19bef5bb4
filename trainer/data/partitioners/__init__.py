"""The known partitioners, one file each."""

from trainer.data.base import Partitioner
from trainer.registry import ComponentRegistry

PARTITIONERS: ComponentRegistry[Partitioner] = ComponentRegistry(
    "partitioner",
    {
        "classes": "trainer.data.partitioners.classes:Classes",
        "contiguous": "trainer.data.partitioners.contiguous:Contiguous",
        "dirichlet": "trainer.data.partitioners.dirichlet:Dirichlet",
        "feature": "trainer.data.partitioners.feature:Feature",
        "prefix_shuffle": "trainer.data.partitioners.prefix_shuffle:PrefixShuffle",
        "quantity": "trainer.data.partitioners.quantity:Quantity",
        "random_partition": "trainer.data.partitioners.random_partition:RandomPartition",
        "random_sampling": "trainer.data.partitioners.random_sampling:RandomSampling",
        "reseeded_stride": "trainer.data.partitioners.reseeded_stride:ReseededStride",
        "shards": "trainer.data.partitioners.shards:Shards",
        "stratified": "trainer.data.partitioners.stratified:Stratified",
    },
)
