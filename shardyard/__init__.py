"""Shardyard from Python: run strategies and sweeps, read their results, and write components of your own.

docs/python.md and docs/your_own.md have examples. A name is imported when it is used, since nodes have the
base classes of components only, and neither the orchestrator nor what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator import __version__
    from orchestrator.api import Figure, Results, Table, load, run, sweep
    from orchestrator.errors import InputError, StorageError
    from trainer.comm.base import Communicator
    from trainer.comm.nonblocking import Request
    from trainer.core.strategy import (
        Init,
        MicroBatches,
        OptimizerState,
        SplitPoints,
        Strategy,
        Uneven,
        Weighting,
    )
    from trainer.data.augmentations.base import Augmentation
    from trainer.data.base import Data, DataError, Dataset, Indices, Labels, Partitioner, Split
    from trainer.losses.base import Loss
    from trainer.lr_schedules.base import LrSchedule
    from trainer.models.base import Model
    from trainer.optimizers.base import Optimizer
    from trainer.training.loader import Batch
    from trainer.training.replica import Replica
    from trainer.training.session import Session

_MODULES = {
    "__version__": "orchestrator",
    "Figure": "orchestrator.api",
    "Results": "orchestrator.api",
    "Table": "orchestrator.api",
    "load": "orchestrator.api",
    "run": "orchestrator.api",
    "sweep": "orchestrator.api",
    "InputError": "orchestrator.errors",
    "StorageError": "orchestrator.errors",
    "Communicator": "trainer.comm.base",
    "Request": "trainer.comm.nonblocking",
    "Init": "trainer.core.strategy",
    "MicroBatches": "trainer.core.strategy",
    "OptimizerState": "trainer.core.strategy",
    "SplitPoints": "trainer.core.strategy",
    "Strategy": "trainer.core.strategy",
    "Uneven": "trainer.core.strategy",
    "Weighting": "trainer.core.strategy",
    "Augmentation": "trainer.data.augmentations.base",
    "Data": "trainer.data.base",
    "DataError": "trainer.data.base",
    "Dataset": "trainer.data.base",
    "Indices": "trainer.data.base",
    "Labels": "trainer.data.base",
    "Partitioner": "trainer.data.base",
    "Split": "trainer.data.base",
    "Loss": "trainer.losses.base",
    "LrSchedule": "trainer.lr_schedules.base",
    "Model": "trainer.models.base",
    "Optimizer": "trainer.optimizers.base",
    "Batch": "trainer.training.loader",
    "Replica": "trainer.training.replica",
    "Session": "trainer.training.session",
}

__all__ = [
    "Augmentation",
    "Batch",
    "Communicator",
    "Data",
    "DataError",
    "Dataset",
    "Figure",
    "Indices",
    "Init",
    "InputError",
    "Labels",
    "Loss",
    "LrSchedule",
    "MicroBatches",
    "Model",
    "Optimizer",
    "OptimizerState",
    "Partitioner",
    "Replica",
    "Request",
    "Results",
    "Session",
    "Split",
    "SplitPoints",
    "StorageError",
    "Strategy",
    "Table",
    "Uneven",
    "Weighting",
    "__version__",
    "load",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
