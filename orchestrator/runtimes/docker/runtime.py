"""Runtime `docker`: nodes are containers, started by compose and observed through the engine's API."""

from __future__ import annotations

import shlex
import stat
import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, cast

from orchestrator.errors import InputError
from orchestrator.identity import identity
from orchestrator.results.environment import gpus
from orchestrator.results.records import RuntimeInfo
from orchestrator.results.store import RunPaths, make_world_writable
from orchestrator.runtimes.base import Cluster, Runtime
from orchestrator.runtimes.docker.cluster import Containers
from orchestrator.runtimes.docker.compose import (
    ComposeProject,
    checkpoints_of,
    compose_project,
    placed,
    scale_of,
)
from orchestrator.runtimes.docker.engine import Engine, EngineError, is_responding, reach
from orchestrator.runtimes.docker.image import (
    image_id,
    image_name,
    image_trouble,
    image_with,
    pinned_packages,
    source_digest,
)
from orchestrator.runtimes.docker.reaper import Reaper, remove_of_orchestrator, remove_orphans
from orchestrator.runtimes.docker.sandbox import ContainerSandbox
from orchestrator.runtimes.finding import Finding, Status
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan, Process
from orchestrator.sandbox.base import Program, Sandbox
from orchestrator.sweeps.requirements import read_requirements
from trainer.spec.run_spec import RunSpec

MIN_CPUS = 0.01  # the least CPU quota that the engine accepts
MIN_WARM_MB = 512  # memory of a node that can be warm
TUN = Path("/dev/net/tun")
MAX_WARM = 16  # warm nodes at once: each keeps about 350 MB


@dataclass(frozen=True, kw_only=True)
class ContainerPlan(ClusterPlan):
    """The containers of a cluster.

    Attributes:
        project: the containers, as docker compose starts them.
        directory: the directory through which they get runs and return results.
    """

    project: ComposeProject
    directory: Path


class DockerRuntime(Runtime):
    """One container per node on this machine's Docker engine, each within its own limits."""

    confines = True
    info = RuntimeInfo(
        enforces_limits=True, shares_cores=True, one_clock=True, shapes_links=True, warm=True, remote=False
    )
    max_warm_nodes = MAX_WARM

    def __init__(self, cold: bool = False, shared_network: bool = False) -> None:
        super().__init__(cold, shared_network)
        self._engine: Engine | None = None
        self._image: str | None = None
        self._packages = ""  # that were added to the image
        self._reaper: Reaper | None = None
        self._images = dict[Path | None, str]()  # of sandboxes, by their requirements
        self._preparing = Lock()

    def unavailable_reason(self) -> str | None:
        try:
            self._engine = reach()
        except EngineError as error:
            return str(error)
        return None

    @property
    def engine(self) -> Engine:
        """The engine. Raises EngineError if none responds."""
        self._engine = self._engine or reach()
        return self._engine

    def node_kind(self) -> str:
        return f"containers of Docker {self.engine.version}"

    def cores(self) -> float:
        return self.engine.cores

    def environment(self) -> dict[str, Any]:
        return {
            "docker": self.engine.version,
            "compose": self.engine.compose,
            "image": f"{image_name()} from sources {source_digest()}{self._packages}",
            "python": "of the image",
            **pinned_packages(),
        }

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        if self._image is None:
            if trouble := image_trouble(self.engine):
                return f"{trouble}; or use --runtime local"
            self._image = image_id(self.engine)
        if spec.on_gpu and (found := gpus()) < spec.world_size:
            return f"transport nccl needs a GPU for every rank: {spec.world_size} needed, {found} found"
        if spec.has_links and (missing := links_missing()):
            return f"link: {missing}"
        if spec.cpus > self.engine.cores:
            return f"cpus: {spec.cpus:g} for a node, and the engine has {self.engine.cores}; lower cpus"
        slowest = min(range(spec.nodes), key=spec.container_cpus)
        quota = spec.container_cpus(slowest) * (spec.nodes if spec.topology == "single" else 1)
        if quota < MIN_CPUS:
            return (
                f"cpus {spec.cpus:g} × node_speed {spec.node_speeds[slowest]:g} is a quota of {quota:g} "
                f"for node {slowest}, and the engine enforces {MIN_CPUS:g} or more"
            )
        return None

    def findings(self) -> Iterator[Finding]:
        try:
            engine = reach()
        except EngineError as error:
            yield Finding("Docker engine", "note", f"{error}; nodes run as local processes")
            return
        detail = f"{engine.version}, Compose {engine.compose}: nodes run as containers"
        yield Finding("Docker engine", "ok", detail)
        problem = image_trouble(engine)
        status: Status = "missing" if problem else "ok"
        yield Finding("trainer image", status, problem or f"{image_name()} is up to date")
        if reason := links_missing():
            yield Finding("links", "note", f"runs with link are refused in containers: {reason}")
        else:
            detail = (
                "enforced between containers, by a switch over TUN devices; not between local processes"
            )
            yield Finding("links", "ok", detail)

    def sandbox(self, program: Program) -> Sandbox:
        with self._preparing:  # submissions are graded at once
            if program.requirements not in self._images:
                self._images[program.requirements] = self._prepared(program.requirements)
            self._image = self._images[program.requirements]
        return ContainerSandbox(self.engine, self._image, program)

    def remove_sandboxes(self) -> None:
        with suppress(Exception):  # the engine may have stopped; the next command removes what is left
            remove_of_orchestrator(self.engine, identity())

    def _prepared(self, requirements: Path | None) -> str:
        """The image of sandboxes, which are removed if this process is killed. Raises InputError."""
        if trouble := image_trouble(self.engine):
            raise InputError(f"{trouble}; or use --runtime local, for code that you trust")
        remove_orphans(self.engine)
        self._reaper = self._reaper or Reaper(identity())
        if requirements is None:
            return image_id(self.engine)
        self._packages = f" with {', '.join(map(str, read_requirements(requirements)))}"
        return image_with(self.engine, requirements)

    def check_together(self, runs: Sequence[RunSpec], data_dir: Path) -> None:
        for spec in {run.dataset.model_dump_json(): run for run in runs}.values():
            check_readable(data_dir, spec)

    def kind(self, spec: RunSpec) -> Hashable | None:
        # Checkpoints are mounted for one run; torchrun starts its ranks itself; CUDA does not work in a
        # forked process; a warm parent takes memory of its node; and a lost container ends a warm set.
        small = spec.memory_mb < MIN_WARM_MB
        continues = spec.on_loss == "continue"
        if self.cold or continues or spec.checkpoints or spec.restarts or spec.on_gpu or small:
            return None
        return _kind(spec, self._project(spec, RunPaths(Path()), Path()))

    def size(self, spec: RunSpec) -> int:
        return scale_of(spec)

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        check_readable(data_dir, spec)  # it may have changed since the sweep began
        project = self._project(spec, paths, data_dir)
        shared = (kind := self.kind(spec)) is not None
        scale = max(map(self.size, (spec, *peers))) if shared else project.scale
        name = sha256(repr((kind, scale) if shared else paths.directory.name).encode()).hexdigest()[:12]
        directory = paths.warm / name
        project = placed(project, directory, scale, warm=shared)
        up = Process("compose", self.engine.command(*project.up), dict(project.environment), "compose")
        # What depends on the addresses and IDs of the containers follows once they have started.
        cluster = ContainerPlan(project.scale, shared, [up], project=project, directory=directory)
        return LaunchPlan(spec, paths, data_dir, cluster, warm=shared)

    def create(self, plan: LaunchPlan) -> Cluster:
        if not is_responding(self.engine) and (reason := self.unavailable_reason()):
            raise InputError(f"{reason}\nthen run the same command to resume")
        self._reaper = self._reaper or Reaper(identity())
        check_mounts(plan.paths.directory, plan.data_dir)
        if plan.spec.checkpoints:
            make_world_writable(checkpoints_of(plan.paths))
        planned, log = cast("ContainerPlan", plan.cluster), plan.paths.log("compose")
        shared, spec = planned.shared, plan.paths.spec
        return Containers(self.engine, planned.project, planned.directory, shared, spec, log)

    def close(self) -> None:
        if self._engine:
            self._engine.client.close()

    def clean(self) -> int:
        return 0 if self.unavailable_reason() else remove_orphans(self.engine)

    def _project(self, spec: RunSpec, paths: RunPaths, data_dir: Path) -> ComposeProject:
        image = self._image or image_name()
        return compose_project(
            spec, paths, data_dir, orchestrator=identity(), cores=self.cores(), image=image
        )


def links_missing() -> str | None:
    """Why links between containers cannot be enforced on this machine; None if they can."""
    # On other systems the engine runs in a virtual machine, whose kernel has it.
    if sys.platform != "linux" or TUN.exists():
        return None
    return f"links between containers need {TUN}, which this machine lacks; modprobe tun may help"


def _kind(spec: RunSpec, project: ComposeProject) -> Hashable:
    """What runs must have in common to use the same warm containers: services, mounts, image and limits.

    In topology single the limits depend on the number of nodes. Runs with unequal nodes have as many nodes.
    """
    own = project.environment.items()
    common = tuple(sorted((name, value) for name, value in own if name != "SHARDYARD_CODE"))
    return project.files, common, spec.has_imports, tuple(spec.node_speed or ())


def check_mounts(directory: Path, data_dir: Path) -> None:
    """Check that containers can use the mounted directories. Raises InputError."""
    for path in (directory, data_dir):
        if ":" in str(path.resolve()):
            raise InputError(f"{path.resolve()}: Docker cannot mount a path with a colon in its name")
    if not data_dir.exists():  # else the engine creates it as root
        data_dir.mkdir(parents=True)
        data_dir.chmod(0o755)


def check_readable(data_dir: Path, run: RunSpec) -> None:
    """Check that containers can read the files of the run's dataset. Raises InputError."""
    needed = [data_dir / name for name in run.dataset.files]
    for path in [file for file in needed if file.exists()]:
        for each in (path, *path.parents[: len(path.relative_to(data_dir).parts)]):
            if not each.stat().st_mode & (stat.S_IXOTH if each.is_dir() else stat.S_IROTH):
                fix = f"chmod -R o+rX {shlex.quote(str(data_dir))}"
                raise InputError(f"{each}: the containers' user cannot read it; {fix}")
