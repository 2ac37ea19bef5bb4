"""The runtimes by name. A new runtime is a folder in orchestrator/runtimes and one line here."""

from __future__ import annotations

RUNTIME_CLASSES = {
    "docker": "orchestrator.runtimes.docker.runtime:DockerRuntime",
    "local": "orchestrator.runtimes.local.runtime:LocalRuntime",
    "ray": "orchestrator.runtimes.ray.runtime:RayRuntime",
    "slurm": "orchestrator.runtimes.slurm.runtime:SlurmRuntime",
    "virtual": "orchestrator.runtimes.virtual.runtime:VirtualRuntime",
}
