"""The container in which users' components are tried before a sweep."""

from __future__ import annotations

from orchestrator.runtimes.docker.engine import Engine
from orchestrator.runtimes.docker.sandbox import ContainerSandbox, confined
from orchestrator.sandbox.base import Limits
from orchestrator.sweeps.trials import MODULE, Inspection

PROCESSES, SCRATCH_MB = 512, 256  # as of a node


def inspection_sandbox(engine: Engine, image: str, inspection: Inspection) -> ContainerSandbox:
    """A container that reads what the inspection needs, under the same paths, so that messages name them.

    Args:
        engine: the engine on which it runs.
        image: the image of the nodes.
        inspection: what it must have.
    """
    limits = Limits(inspection.memory_mb, PROCESSES, SCRATCH_MB)
    seen = [*inspection.directories, inspection.code]
    if inspection.data_dir.is_dir():
        seen.append(inspection.data_dir)
    mounts = {path: str(path) for path in seen}
    return ContainerSandbox(engine, image, confined(MODULE, limits, mounts, inspection.environment), limits)
