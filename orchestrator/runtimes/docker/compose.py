"""From a launch plan to a docker compose command: pure. The compose files are the only wiring there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.image import IMAGE
from orchestrator.shipped import COMPOSE
from trainer.spec.run_spec import RunSpec

LIVE = "live"  # where the head keeps what the ranks report, in the run's directory


@dataclass(frozen=True)
class Cluster:
    """One run's containers. Its project's name is a label on all of them.

    bottleneck_cpus: what the last node is held to, if that is less than what compose gives to all.
    """

    project: str
    files: tuple[Path, ...]
    scale: int
    environment: Mapping[str, str]
    bottleneck_cpus: float | None = None

    @property
    def compose(self) -> tuple[str, ...]:
        """The docker command's arguments that name this project."""
        files = (part for file in self.files for part in ("-f", str(file)))
        return ("compose", "--progress", "quiet", *files, "-p", self.project)

    @property
    def up(self) -> tuple[str, ...]:
        """Start the coordinator and all that it depends on; the service `exit-code` is for a bare `up`."""
        return (*self.compose, "up", "-d", "--no-build", "--scale", f"node={self.scale}", "coordinator")

    def hold(self, container: str) -> tuple[str, ...]:
        """Hold this container to the quota of the slower node."""
        return ("update", "--cpus", f"{self.bottleneck_cpus:g}", container)

    @property
    def down(self) -> tuple[str, ...]:
        return (*self.compose, "down", "--volumes", "--remove-orphans", "--timeout", "0")


def cluster(
    spec: RunSpec, paths: RunPaths, data_dir: Path, owner: str, cores: float, image: str = IMAGE
) -> Cluster:
    """What docker compose is told. owner: of the label; cores: of the engine's machine; image: its id.

    Limits are per node; in topology single the one container has those of all nodes.
    """
    directory = paths.directory.resolve()
    share = spec.nodes if spec.topology == "single" else 1
    files = [COMPOSE / f"{spec.topology}.yml"]
    if spec.transport == "nccl":
        files.append(COMPOSE / "gpu.yml")
    return Cluster(
        project="shardyard-" + sha256(str(directory).encode()).hexdigest()[:12],
        files=tuple(files),
        scale={"single": 1, "rpc": spec.nodes - 1}.get(spec.topology, spec.nodes),
        environment={
            "SHARDYARD_SPEC": str(paths.spec.resolve()),
            "SHARDYARD_DATA": str(data_dir.resolve()),
            "SHARDYARD_RESULTS": str(directory),
            "SHARDYARD_RUN": LIVE,
            # Empty, and not left out: what the user has exported for a bare `up` is not this run's.
            "SHARDYARD_CHECKPOINTS": str(checkpoints_of(paths).resolve()) if spec.checkpoints else "",
            "SHARDYARD_ORCHESTRATOR_ID": owner,
            "SHARDYARD_IMAGE": image,
            "SHARDYARD_FETCH": "skip",  # the orchestrator has seen to the data
            # The engine refuses a quota beyond its cores, where it would not hold anything back.
            "SHARDYARD_CPUS": f"{min(share * spec.cpus, cores):g}",
            "SHARDYARD_MEMORY_MB": str(share * spec.memory_mb),
            "SHARDYARD_PIDS": str(share * spec.pids),
            "SHARDYARD_SHM_MB": str(share * spec.shm_mb),
        },
        bottleneck_cpus=spec.bottleneck_cpus,
    )


def checkpoints_of(paths: RunPaths) -> Path:
    """Of a run's containers: apart from those of processes, whose times are not theirs."""
    return paths.checkpoints / "docker"
