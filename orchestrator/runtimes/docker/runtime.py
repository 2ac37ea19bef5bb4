"""Runtime `docker`: nodes are containers, started by compose and observed through the engine's API."""

from __future__ import annotations

import shlex
import shutil
import stat
import sys
from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from orchestrator.errors import InputError
from orchestrator.identity import identity
from orchestrator.results.environment import gpus
from orchestrator.results.records import RuntimeInfo
from orchestrator.results.store import RunPaths, make_world_writable
from orchestrator.runtimes.base import RunHandle, Runtime
from orchestrator.runtimes.docker.compose import Cluster, checkpoints_of, cluster, warm_cluster
from orchestrator.runtimes.docker.engine import Engine, EngineError, is_responding, reach
from orchestrator.runtimes.docker.image import (
    image_id,
    image_name,
    image_trouble,
    image_with,
    pinned_packages,
    source_digest,
)
from orchestrator.runtimes.docker.inspection import inspection_sandbox
from orchestrator.runtimes.docker.project import Project
from orchestrator.runtimes.docker.reaper import Reaper, remove_orphans
from orchestrator.runtimes.docker.run import ContainerRun
from orchestrator.runtimes.docker.warm import WarmContainers, WarmRun
from orchestrator.runtimes.launch_plan import LaunchPlan, Process
from orchestrator.sandbox.base import Sandbox
from orchestrator.sweeps.imports import Inspection
from orchestrator.sweeps.requirements import read_requirements
from trainer.spec.run_spec import RunSpec

MIN_CPUS = 0.01  # the least CPU quota that the engine accepts
MIN_WARM_MB = 512  # memory of a node that can be warm
TUN = Path("/dev/net/tun")
MAX_WARM = 16  # warm nodes at once: each keeps about 350 MB

Kind = tuple[object, ...]  # see _kind


class DockerRuntime(Runtime):
    """One container per node on this machine's Docker engine, each within its own limits."""

    info = RuntimeInfo(
        enforces_limits=True,
        shares_cores=True,
        one_clock=True,
        shapes_links=True,
        warm=True,
        remote=False,
    )

    def __init__(self, cold: bool = False, shared_network: bool = False) -> None:
        super().__init__(cold, shared_network)
        self._engine: Engine | None = None
        self._image: str | None = None
        self._packages = ""  # that were added to the image
        self._reaper: Reaper | None = None
        self._warm: dict[Kind, WarmContainers] = {}  # in the order of their last use
        self._scales: dict[Kind, int] = {}  # of the largest expected run

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

    def inspection_sandbox(self, inspection: Inspection) -> Sandbox:
        if trouble := image_trouble(self.engine):
            raise InputError(f"{trouble}; or use --runtime local")
        self._image = image_id(self.engine)
        if inspection.requirements:
            self._image = image_with(self.engine, inspection.requirements)
            packages = map(str, read_requirements(inspection.requirements))
            self._packages = f" with {', '.join(packages)}"
        remove_orphans(self.engine)
        self._reaper = self._reaper or Reaper(identity())  # removes the container if this process is killed
        return inspection_sandbox(self.engine, self._image, inspection)

    def plan(self, spec: RunSpec, paths: RunPaths, data_dir: Path) -> LaunchPlan:
        run = self._cluster(spec, paths, data_dir)
        warm = self._is_warm(spec)
        if warm:
            kind = _kind(spec, run)
            up_already = self._warm.get(kind)
            if up_already and up_already.cluster.scale >= run.scale:
                run = up_already.cluster
            else:
                run = self._warm_cluster(kind, run, paths)
        up = self.engine.command(*run.up)
        processes = [Process("compose", up, dict(run.environment), "compose")]
        if run.linked:
            processes += self._link_processes(spec, run)
        if run.quota_pending:
            nodes = [f"the container of node {number}" for number in range(spec.nodes)]
            limits = [self.engine.command(*limit) for limit in run.limit_cpus(*nodes)]
            processes += [Process("quota", limit, {}, "compose") for limit in limits]
        return LaunchPlan(spec, paths, data_dir, processes, warm)

    def _link_processes(self, spec: RunSpec, run: Cluster) -> list[Process]:
        """The commands that set and connect links, with names in place of what is known after the start."""
        count = run.scale + (run.topology == "rpc")
        names = [f"the address of node {number}" for number in range(count)]
        setup = self.engine.command(*run.set_links(spec, "the container of the switch", names))
        plugs = [
            Process(
                "plug",
                self.engine.command(*run.plug(name, names)),
                {**run.environment, "SHARDYARD_NODE": f"the container of node {number}"},
                "compose",
            )
            for number, name in enumerate(names)
        ]
        return [Process("links", setup, {}, "compose"), *plugs]

    def _is_warm(self, spec: RunSpec) -> bool:
        """Whether the run takes warm containers."""
        # Checkpoints are mounted for one run; torchrun starts its ranks itself; CUDA does not work in a
        # forked process; a warm parent takes memory of its node; and a lost container ends a warm set.
        small = spec.memory_mb < MIN_WARM_MB
        elastic = spec.on_loss == "continue"
        return not (self.cold or elastic or spec.checkpoints or spec.restarts or spec.on_gpu or small)

    def expect(self, runs: Sequence[RunSpec], data_dir: Path) -> None:
        for spec in {run.dataset.model_dump_json(): run for run in runs}.values():
            check_readable(data_dir, spec)
        for spec in filter(self._is_warm, runs):
            run = self._cluster(spec, RunPaths(Path()), data_dir)
            kind = _kind(spec, run)
            self._scales[kind] = max(self._scales.get(kind, 0), run.scale)

    def warm_groups(self, runs: Sequence[RunSpec], data_dir: Path) -> list[list[RunSpec]]:
        """The runs in groups whose warm containers are at most MAX_WARM; one set may have more."""
        sets: dict[Kind | None, list[RunSpec]] = defaultdict(list)
        scales: dict[Kind | None, int] = defaultdict(int)
        for spec in runs:
            run = self._cluster(spec, RunPaths(Path()), data_dir)
            kind = _kind(spec, run) if self._is_warm(spec) else None  # None: cold runs are in any group
            sets[kind].append(spec)
            scales[kind] = max(scales[kind], run.scale if kind else 0)
        groups: list[list[RunSpec]] = []
        room: list[int] = []  # nodes that a group can still have
        for kind, members in sets.items():
            fitting = (number for number, left in enumerate(room) if left >= scales[kind])
            number = next(fitting, len(room))
            if number == len(room):
                groups.append([])
                room.append(MAX_WARM)
            groups[number] += members
            room[number] -= scales[kind]
        return groups

    def _warm_cluster(self, kind: Kind, run: Cluster, paths: RunPaths) -> Cluster:
        """The warm containers for runs of this kind, as many as the largest expected run needs."""
        name = sha256(repr(kind).encode()).hexdigest()[:12]
        return warm_cluster(run, paths.warm / name, max(run.scale, self._scales.get(kind, 0)))

    def start(self, plan: LaunchPlan) -> RunHandle:
        if not is_responding(self.engine) and (reason := self.unavailable_reason()):
            raise InputError(f"{reason}\nthen run the same command to resume")
        self._reaper = self._reaper or Reaper(identity())
        check_mounts(plan.paths.directory, plan.data_dir)
        check_readable(plan.data_dir, plan.spec)  # it may have changed since the sweep began
        if plan.spec.checkpoints:
            make_world_writable(checkpoints_of(plan.paths))
        run = self._cluster(plan.spec, plan.paths, plan.data_dir)
        if plan.warm:
            return self._warm_run(plan, run)
        containers = Project(self.engine, run, plan.paths.log("compose"))
        return ContainerRun(containers, plan.spec, plan.paths)

    def _warm_run(self, plan: LaunchPlan, run: Cluster) -> WarmRun:
        """The run in warm containers, which are started unless they are up."""
        kind, replaced = _kind(plan.spec, run), None
        nodes = self._warm.pop(kind, None)
        if nodes and (nodes.closed or nodes.cluster.scale < run.scale):
            nodes.close()
            nodes = None
        elif nodes and (failure := nodes.untrusted or nodes.failure()):
            replaced = None if nodes.expired else failure
            nodes.close()
            nodes = None
        new = nodes is None
        if nodes is None:
            cluster = self._warm_cluster(kind, run, plan.paths)
            self._make_room(cluster.scale)
            if not self._warm:  # left by an orchestrator that was killed
                shutil.rmtree(plan.paths.warm, ignore_errors=True)
            directory = Path(cluster.environment["SHARDYARD_RESULTS"])
            nodes = WarmContainers(self.engine, cluster, directory, plan.paths.log("compose"))
        self._warm[kind] = nodes  # the last one is the one used last
        return WarmRun(nodes, plan.spec, plan.paths, replaced, new)

    def _make_room(self, nodes: int) -> None:
        """Remove the warm containers used longest ago, so that this many more nodes fit."""
        while self._warm and sum(each.cluster.scale for each in self._warm.values()) + nodes > MAX_WARM:
            self._warm.pop(next(iter(self._warm))).close()

    def close(self) -> None:
        while self._warm:
            self._warm.popitem()[1].close()

    def clean(self) -> int:
        return 0 if self.unavailable_reason() else remove_orphans(self.engine)

    def _cluster(self, spec: RunSpec, paths: RunPaths, data_dir: Path) -> Cluster:
        image = self._image or image_name()
        return cluster(spec, paths, data_dir, orchestrator=identity(), cores=self.cores(), image=image)


def links_missing() -> str | None:
    """Why links between containers cannot be enforced on this machine; None if they can."""
    # On other systems the engine runs in a virtual machine, whose kernel has it.
    if sys.platform != "linux" or TUN.exists():
        return None
    return f"links between containers need {TUN}, which this machine lacks; modprobe tun may help"


def _kind(spec: RunSpec, run: Cluster) -> Kind:
    """What runs must have in common to use the same warm containers: services, mounts, image and limits.

    In topology single the limits depend on the number of nodes. Runs with unequal nodes have as many nodes.
    """
    own = {"SHARDYARD_SPEC", "SHARDYARD_RESULTS", "SHARDYARD_CODE"}
    common = tuple(sorted((name, value) for name, value in run.environment.items() if name not in own))
    return run.files, common, spec.has_imports, tuple(spec.node_speed or ())


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
