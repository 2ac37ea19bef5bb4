"""Where nodes run: the known runtimes, one folder each."""

from orchestrator import registries
from orchestrator.runtimes.base import Runtime
from trainer.core.registry import Registry

RUNTIMES: Registry[Runtime] = Registry("runtime", registries.RUNTIMES)
