"""Where nodes run: the known runtimes, one file each."""

from orchestrator.runtimes.base import Runtime
from trainer.core.registry import Registry

RUNTIMES: Registry[Runtime] = Registry(
    "runtime",
    {
        "docker": "orchestrator.runtimes.docker.runtime:DockerRuntime",
        "local": "orchestrator.runtimes.local.runtime:LocalRuntime",
        "slurm": "orchestrator.runtimes.slurm.runtime:SlurmRuntime",
        "swarm": "orchestrator.runtimes.swarm.runtime:SwarmRuntime",
    },
)
