"""Where nodes run: the known runtimes, one folder each."""

from orchestrator.registries import RUNTIME_CLASSES
from orchestrator.runtimes.base import Runtime
from trainer.core.registry import Registry

RUNTIMES: Registry[Runtime] = Registry("runtime", RUNTIME_CLASSES)
