"""Where nodes run: the known runtimes, one file each."""

from orchestrator.runtimes.base import Runtime
from trainer.spec import Registry

RUNTIMES: Registry[Runtime] = Registry(
    "runtime",
    {
        "docker": "orchestrator.runtimes.docker:DockerRuntime",
        "local": "orchestrator.runtimes.local:LocalRuntime",
    },
)
