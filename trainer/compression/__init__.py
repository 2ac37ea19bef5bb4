"""The known ways to make a gradient smaller before it is sent, one file each."""

from trainer.compression.base import Compression
from trainer.registry import ComponentRegistry

__all__ = ["COMPRESSIONS", "Compression"]

COMPRESSIONS: ComponentRegistry[Compression] = ComponentRegistry(
    "compression",
    {
        "none": "trainer.compression.none:NoneCompression",
        "fp16": "trainer.compression.fp16:Fp16",
        "top_k": "trainer.compression.top_k:TopK",
        "sign": "trainer.compression.sign:Sign",
        "power_sgd": "trainer.compression.power_sgd:PowerSgd",
    },
)
