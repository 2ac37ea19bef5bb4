"""The docker compose commands of a run. Pure. Services are defined in the compose files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker.image import IMAGE
from orchestrator.shipped import COMPOSE
from trainer.link_switch.control import Setup
from trainer.spec.link import Links
from trainer.spec.run_spec import RunSpec

LINK = COMPOSE / "link.yml"  # the overlay with the switch
SPEC = "spec.json"  # of the first run, in the directory of the containers
SWITCH = ("python", "-m", "trainer.link_switch")


@dataclass(frozen=True)
class ComposeProject:
    """The containers of a cluster, as docker compose starts them.

    Attributes:
        project: name of the compose project, which compose sets as a label on all containers and networks.
        files: the compose files.
        scale: number of replicas of service `node`.
        environment: the environment of the docker compose command.
        cpus: quota of each node, which applies once all ranks are ready; nodes start with all cores.
        slower_cpus: the lower quotas of nodes that are slower than the others, by node.
    """

    project: str
    files: tuple[Path, ...]
    scale: int
    environment: Mapping[str, str]
    cpus: float
    slower_cpus: Mapping[int, float] = field(default_factory=dict)

    @property
    def topology(self) -> str:
        return self.files[0].stem

    @property
    def command(self) -> tuple[str, ...]:
        """Arguments of `docker` for every command on this project."""
        files = (part for file in self.files for part in ("-f", str(file)))
        return ("compose", "--progress", "quiet", *files, "-p", self.project)

    @property
    def up(self) -> tuple[str, ...]:
        """Start the coordinator and all that it depends on; the service `exit-code` is for a bare `up`."""
        return (*self.command, "up", "-d", "--no-build", "--scale", f"node={self.scale}", "coordinator")

    @property
    def quota_pending(self) -> bool:
        """Whether a quota has to be applied after the start."""
        return f"{self.cpus:g}" != self.environment["SHARDYARD_CPUS"] or bool(self.slower_cpus)

    def limit_cpus(self, *nodes: str) -> list[tuple[str, ...]]:
        """The commands that apply the CPU quotas.

        Args:
            nodes: the containers of the nodes in their order, after a launcher if there is one.
        """
        quotas = dict.fromkeys(nodes, self.cpus)
        first = len(nodes) - self.nodes
        quotas |= {nodes[first + node]: cpus for node, cpus in self.slower_cpus.items()}
        return [
            ("update", "--cpus", f"{cpus:g}", *(node for node in nodes if quotas[node] == cpus))
            for cpus in dict.fromkeys(quotas.values())
        ]

    @property
    def nodes(self) -> int:
        """The number of nodes; in topology rpc, the master is one beside those of service `node`."""
        return self.scale + (self.topology == "rpc")

    @property
    def linked(self) -> bool:
        """Whether the nodes are connected to a switch, which enforces the links of each run."""
        return LINK in self.files

    def set_links(self, run: RunSpec, switch: str, addresses: Sequence[str]) -> tuple[str, ...]:
        """The command that sets the links of a run.

        Args:
            run: the run whose links are set.
            switch: its container.
            addresses: the addresses of all nodes of these containers, in their order.
        """
        setup = Setup(
            addresses=list(addresses),
            nodes=run.nodes,
            seed=run.seed,
            timeout_s=run.timeout_s,
            link=run.link or Links(),
        )
        return ("exec", switch, *SWITCH, "setup", setup.model_dump_json())

    def plug(self, address: str, addresses: Sequence[str]) -> tuple[str, ...]:
        """The command that connects the node with `address`; SHARDYARD_NODE is its container."""
        peers = [each for each in addresses if each != address]
        return (*self.command, "run", "--rm", "-T", "--no-deps", "plug", "plug", address, *peers)

    @property
    def down(self) -> tuple[str, ...]:
        return (*self.command, "down", "--volumes", "--remove-orphans", "--timeout", "0")


def scale_of(spec: RunSpec) -> int:
    """The replicas of service `node`; in topology rpc, the master is one beside them."""
    return {"single": 1, "rpc": spec.nodes - 1}.get(spec.topology, spec.nodes)


def compose_project(
    spec: RunSpec, paths: RunPaths, data_dir: Path, orchestrator: str, cores: float, image: str = IMAGE
) -> ComposeProject:
    """The containers of a run, which `placed` completes.

    Limits are per node. In topology single, one container has the limits of all nodes.

    Args:
        spec: the run.
        paths: the paths of its results.
        data_dir: mounted read-only.
        orchestrator: value of the label `shardyard.orchestrator`.
        cores: the cores of the engine's machine.
        image: name or ID.
    """
    directory = paths.directory.resolve()
    share = spec.nodes if spec.topology == "single" else 1
    cpus = min(share * spec.cpus, cores)  # the engine refuses a quota above its number of cores
    files = [COMPOSE / f"{spec.topology}.yml"]
    if spec.transport == "nccl":
        files.append(COMPOSE / "gpu.yml")
    if spec.has_links:
        files.append(LINK)
    return ComposeProject(
        project=_project(directory),
        files=tuple(files),
        scale=scale_of(spec),
        environment={
            "SHARDYARD_DATA": str(data_dir.resolve()),
            "SHARDYARD_SERVE": "1",
            # Set even if empty, so that a value in the user's shell does not apply.
            "SHARDYARD_CHECKPOINTS": str(checkpoints_of(paths).resolve()) if spec.checkpoints else "",
            "SHARDYARD_CODE": str(paths.code.resolve()) if spec.has_imports else "",
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
        slower_cpus={node: spec.container_cpus(node) for node in spec.slower_nodes},
    )


def placed(run: ComposeProject, directory: Path, scale: int, warm: bool) -> ComposeProject:
    """The containers, with the directory through which they get runs and return results.

    Args:
        run: the containers of one of the runs.
        directory: the directory, in which is a file whose owner owns the results.
        scale: the scale of the largest run.
        warm: whether they stay up for other runs.
    """
    environment = {
        "SHARDYARD_SPEC": str(directory.resolve() / SPEC),
        "SHARDYARD_RESULTS": str(directory.resolve()),
        "SHARDYARD_WARM": "1" if warm else "",
    }
    return replace(
        run, project=_project(directory), scale=scale, environment={**run.environment, **environment}
    )


def _project(directory: Path) -> str:
    """The name of the compose project with this directory."""
    return "shardyard-" + sha256(str(directory.resolve()).encode()).hexdigest()[:12]


def checkpoints_of(paths: RunPaths) -> Path:
    """Checkpoints of containers, apart from those of local processes, since their times do not compare."""
    return paths.checkpoints / "docker"
