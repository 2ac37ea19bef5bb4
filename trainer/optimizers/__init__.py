"""The known optimisers, one file each."""

from trainer.optimizers.base import Optimizer
from trainer.registry import ComponentRegistry

__all__ = ["OPTIMIZERS", "Optimizer"]

OPTIMIZERS: ComponentRegistry[Optimizer] = ComponentRegistry(
    "optimizer",
    {
        "sgd": "trainer.optimizers.sgd:Sgd",
        "momentum": "trainer.optimizers.momentum:Momentum",
        "adam": "trainer.optimizers.adam:Adam",
        "adamw": "trainer.optimizers.adamw:AdamW",
        "novograd": "trainer.optimizers.novograd:NovoGrad",
        "sgd_by_hand": "trainer.optimizers.sgd_by_hand:SgdByHand",
        "momentum_by_hand": "trainer.optimizers.momentum_by_hand:MomentumByHand",
        "adam_by_hand": "trainer.optimizers.adam_by_hand:AdamByHand",
    },
)
