"""The docker compose commands of a run. Pure. Services are defined in the compose files alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.image import IMAGE
from orchestrator.shipped import COMPOSE
from trainer.spec.run_spec import RunSpec


@dataclass(frozen=True)
class Cluster:
    """The containers of one run.

    Attributes:
        project: name of the compose project, which compose sets as a label on all containers and networks.
        files: the compose files.
        scale: number of replicas of service `node`.
        environment: of the docker compose command.
        cpus: quota of each node, which applies once all ranks are ready; nodes start with all cores.
        bottleneck_cpus: quota of the last node, if it is lower than that of the others.
    """

    project: str
    files: tuple[Path, ...]
    scale: int
    environment: Mapping[str, str]
    cpus: float
    bottleneck_cpus: float | None = None

    @property
    def topology(self) -> str:
        return self.files[0].stem

    @property
    def compose(self) -> tuple[str, ...]:
        """Arguments of `docker` for every command on this project."""
        files = (part for file in self.files for part in ("-f", str(file)))
        return ("compose", "--progress", "quiet", *files, "-p", self.project)

    @property
    def up(self) -> tuple[str, ...]:
        """Start the coordinator and all that it depends on; the service `exit-code` is for a bare `up`."""
        return (*self.compose, "up", "-d", "--no-build", "--scale", f"node={self.scale}", "coordinator")

    @property
    def quota_pending(self) -> bool:
        """Whether a quota has to be applied after the start."""
        return f"{self.cpus:g}" != self.environment["SHARDYARD_CPUS"] or self.bottleneck_cpus is not None

    def limit_cpus(self, *nodes: str) -> list[tuple[str, ...]]:
        """The commands that apply the CPU quotas. nodes: their containers; a bottleneck is the last one."""
        quotas = dict.fromkeys(nodes, self.cpus)
        if self.bottleneck_cpus is not None:
            quotas[nodes[-1]] = self.bottleneck_cpus
        return [
            ("update", "--cpus", f"{cpus:g}", *(node for node in nodes if quotas[node] == cpus))
            for cpus in dict.fromkeys(quotas.values())
        ]

    @property
    def down(self) -> tuple[str, ...]:
        return (*self.compose, "down", "--volumes", "--remove-orphans", "--timeout", "0")


def cluster(
    spec: RunSpec, paths: RunPaths, data_dir: Path, orchestrator: str, cores: float, image: str = IMAGE
) -> Cluster:
    """The containers of a run.

    Limits are per node. In topology single, one container has the limits of all nodes.

    Args:
        spec: the run.
        paths: of its results.
        data_dir: mounted read-only.
        orchestrator: value of the label `shardyard.orchestrator`.
        cores: of the engine's machine.
        image: name or ID.
    """
    directory = paths.directory.resolve()
    share = spec.nodes if spec.topology == "single" else 1
    cpus = min(share * spec.cpus, cores)  # the engine refuses a quota above its number of cores
    files = [COMPOSE / f"{spec.topology}.yml"]
    if spec.transport == "nccl":
        files.append(COMPOSE / "gpu.yml")
    return Cluster(
        project=_project(directory),
        files=tuple(files),
        scale={"single": 1, "rpc": spec.nodes - 1}.get(spec.topology, spec.nodes),
        environment={
            "SHARDYARD_SPEC": str(paths.spec.resolve()),
            "SHARDYARD_DATA": str(data_dir.resolve()),
            "SHARDYARD_RESULTS": str(directory),
            "SHARDYARD_RUN": paths.live.name,
            "SHARDYARD_WARM": "",
            # Set even if empty, so that a value in the user's shell does not apply.
            "SHARDYARD_CHECKPOINTS": str(checkpoints_of(paths).resolve()) if spec.checkpoints else "",
            "SHARDYARD_ORCHESTRATOR_ID": orchestrator,
            "SHARDYARD_IMAGE": image,
            "SHARDYARD_FETCH": "skip",  # the orchestrator has prepared the data
            "SHARDYARD_CPUS": f"{cores:g}",
            "SHARDYARD_CPU_QUOTA": f"{cpus:g}",
            "SHARDYARD_MEMORY_MB": str(share * spec.memory_mb),
            "SHARDYARD_PIDS": str(share * spec.pids),
            "SHARDYARD_SHM_MB": str(share * spec.shm_mb),
        },
        cpus=cpus,
        bottleneck_cpus=spec.bottleneck_cpus,
    )


def warm_cluster(run: Cluster, directory: Path, scale: int) -> Cluster:
    """Containers that stay up and take one run after the other.

    Args:
        run: the containers of one of the runs.
        directory: through which they get runs and return results.
        scale: of the largest run.
    """
    return replace(
        run,
        project=_project(directory),
        scale=scale,
        environment={
            **run.environment,
            "SHARDYARD_RESULTS": str(directory.resolve()),
            "SHARDYARD_RUN": "",
            "SHARDYARD_WARM": "1",
        },
    )


def _project(directory: Path) -> str:
    """The name of the compose project with this directory."""
    return "shardyard-" + sha256(str(directory.resolve()).encode()).hexdigest()[:12]


def checkpoints_of(paths: RunPaths) -> Path:
    """Checkpoints of containers, apart from those of local processes, since their times do not compare."""
    return paths.checkpoints / "docker"
