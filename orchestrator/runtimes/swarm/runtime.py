"""Runtime `swarm`: a run is a stack, its nodes are tasks on the machines of a Docker Swarm."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from orchestrator.errors import InputError
from orchestrator.identity import identity
from orchestrator.results.records import RuntimeInfo
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import Cluster, Runtime
from orchestrator.runtimes.docker.compose import ComposeProject, compose_project, scale_of
from orchestrator.runtimes.docker.engine import Engine, EngineError, answering, reach
from orchestrator.runtimes.docker.image import (
    image_id,
    image_name,
    image_trouble,
    pinned_packages,
    source_digest,
)
from orchestrator.runtimes.docker.inspection import inspection_sandbox
from orchestrator.runtimes.docker.reaper import Reaper, remove_orphans
from orchestrator.runtimes.docker.run import OneRunContainers
from orchestrator.runtimes.finding import Finding
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan, Process
from orchestrator.runtimes.swarm.machines import (
    Machine,
    machines,
    manager_trouble,
    own_machine,
    total_cores,
)
from orchestrator.runtimes.swarm.options import SwarmOptions
from orchestrator.runtimes.swarm.services import Stack
from orchestrator.runtimes.swarm.stack import Placed, StackError, stack, to_text
from orchestrator.sandbox.base import Sandbox
from orchestrator.sweeps.imports import Inspection
from trainer.spec.run_spec import RunSpec

COMPOSE_S = 60  # to read the compose files
MAX_CONFIG_BYTES = 500_000  # of a file that Swarm distributes
EMPTY = Path(__file__).with_name("empty.py")


class SwarmRuntime(Runtime):
    """Containers on the machines of a Docker Swarm, each node within its own limits."""

    confines = True
    info = RuntimeInfo(
        enforces_limits=True,
        shares_cores=True,  # where one machine has several nodes; `cores` counts those of all machines
        one_clock=False,
        shapes_links=False,
        warm=False,
        remote=True,
    )
    Options = SwarmOptions
    options: SwarmOptions

    def __init__(self, cold: bool = False, shared_network: bool = False) -> None:
        super().__init__(cold, shared_network)
        self._engine: Engine | None = None
        self._image: str | None = None
        self._reaper: Reaper | None = None
        self._seen: list[Machine] | None = None  # as of the last plan

    def unavailable_reason(self) -> str | None:
        try:
            self._engine = reach()
        except EngineError as error:
            return str(error)
        return manager_trouble(self._engine)

    @property
    def engine(self) -> Engine:
        """The engine of this machine. Raises EngineError if none responds."""
        self._engine = self._engine or reach()
        return self._engine

    def node_kind(self) -> str:
        count = len(self._seen_machines)
        return f"containers on {count} machine{'s' * (count != 1)} of a Docker Swarm"

    @property
    def _machines(self) -> list[Machine]:
        """Those on which Swarm may place nodes."""
        constraints = self.options.constraints
        return [each for each in machines(self.engine) if each.usable and each.satisfies(constraints)]

    @property
    def _seen_machines(self) -> list[Machine]:
        """Those of the last plan, which a manager that has ended cannot list; before any, those of now."""
        return self._machines if self._seen is None else self._seen

    def cores(self) -> float:
        return total_cores(self._seen_machines)

    def environment(self) -> dict[str, Any]:
        sizes = (f"{each.name} ({each.cores:g} cores)" for each in self._machines)
        return {
            "docker": self.engine.version,
            "swarm": ", ".join(sizes),
            "image": f"{image_name()} from sources {source_digest()}",
            "python": "of the image",
            **pinned_packages(),
        }

    def findings(self) -> Iterator[Finding]:
        try:
            engine = reach()
        except EngineError:  # which runtime `docker` says
            return
        if trouble := manager_trouble(engine):
            yield Finding("Docker Swarm", "note", f"no runtime swarm: {trouble}")
            return
        found = machines(engine)
        usable = ", ".join(each.name for each in found if each.usable) or "none"
        unusable = ", ".join(f"{each.name} ({each.state})" for each in found if not each.usable)
        detail = f"runtime swarm; machines: {usable}" + (f"; not usable: {unusable}" if unusable else "")
        yield Finding("Docker Swarm", "ok", detail)

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        if trouble := image_trouble(self.engine):
            return trouble
        self._image = self._image or distributed_image(self.engine)
        return _unsupported(spec) or self._no_room(spec)

    def _no_room(self, spec: RunSpec) -> str | None:
        """Why the machines cannot take the run's nodes."""
        everything, usable = machines(self.engine), self._machines
        if not usable:
            constraints = ", ".join(self.options.constraints)
            asked = f"swarm: constraints: {constraints}: " if constraints else ""
            states = ", ".join(f"{each.name} ({each.state})" for each in everything)
            return f"{asked}no machine can take nodes; there are {states}"
        if small := [each for each in usable if each.cores < spec.cpus]:
            name, cores = small[0].name, small[0].cores
            return (
                f"cpus: {spec.cpus:g} for a node, and {name} has {cores:g}; lower cpus, or leave the "
                f"machine out: swarm: constraints: [node.hostname!={name}]"
            )
        own = next(each for each in everything if each.identifier == own_machine(self.engine))
        if not own.usable:
            return (
                f"{own.name} takes no tasks, and the coordinator runs on it: "
                f"docker node update --availability active {own.name}"
            )
        limit = self.options.nodes_per_machine
        nodes = scale_of(spec)  # without the master of rpc
        if limit and limit * len(usable) < nodes:
            names = ", ".join(each.name for each in usable)
            return (
                f"swarm: nodes_per_machine: {limit} on {len(usable)} machines ({names}) makes room for "
                f"{limit * len(usable)} nodes, and the run has {nodes}; raise it, or lower nodes"
            )
        return None

    def inspection_sandbox(self, inspection: Inspection) -> Sandbox:
        if trouble := image_trouble(self.engine):
            raise InputError(trouble)
        if inspection.requirements:
            raise InputError(
                "requirements: runtime swarm installs nothing; build an image with the packages, load it "
                "on every machine, and set SHARDYARD_IMAGE"
            )
        self._image = distributed_image(self.engine)
        remove_orphans(self.engine)
        self._reaper = self._reaper or Reaper(identity())  # removes the container if this process is killed
        return inspection_sandbox(self.engine, self._image, inspection)

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        with answering(self.engine):
            run = self._project(spec, paths, data_dir)
            text = to_text(self._stack(spec, run, paths))
        options = ("--resolve-image=never", "--with-registry-auth", "--compose-file=-")
        deploy = self.engine.command("stack", "deploy", *options, run.project)
        processes = [Process("stack", deploy, {}, "stack")]
        return LaunchPlan(spec, paths, data_dir, ClusterPlan(run.scale, processes=processes, script=text))

    def _stack(self, spec: RunSpec, run: ComposeProject, paths: RunPaths) -> dict[str, Any]:
        """The stack of a run. Raises InputError."""
        placed = Placed(
            image=self._image or distributed_image(self.engine),
            entrypoint=entrypoint(self.engine),
            manager=own_machine(self.engine),
            replicas=run.scale,
            cpus=run.cpus,
            owner=identity(),
            spec=str(paths.spec.resolve()),
            user=(os.getuid(), os.getgid()),
            code=code_files(paths.code) if spec.has_imports else {},
            data=bool(spec.dataset.files),
            options=self.options,
        )
        try:
            return stack(_compose_config(self.engine, run), placed)
        except StackError as error:
            raise InputError(f"{run.files[0]}: {error}") from error

    def create(self, plan: LaunchPlan) -> Cluster:
        self._reaper = self._reaper or Reaper(identity())
        (deploy,) = plan.cluster.processes
        name = deploy.argv[-1]  # as `plan` has chosen it
        with answering(self.engine):
            stack = Stack(self.engine, name, plan.spec.topology, deploy.argv, plan.cluster.script or "")
        return OneRunContainers(stack)

    def close(self) -> None:
        if self._engine:
            self._engine.client.close()

    def clean(self) -> int:
        return 0 if self.unavailable_reason() else remove_orphans(self.engine)

    def _project(self, spec: RunSpec, paths: RunPaths, data_dir: Path) -> ComposeProject:
        """What Compose would start on the smallest machine. Raises InputError without a machine."""
        usable = self._seen = self._machines
        if not usable:
            raise InputError(self._no_room(spec))
        cores = min(each.cores for each in usable)
        run = compose_project(spec, paths, data_dir, orchestrator=identity(), cores=cores)
        # Managers on several machines may have results at the same path.
        own = sha256(own_machine(self.engine).encode()).hexdigest()[:6]
        return replace(run, project=f"{run.project}-{own}")


def _unsupported(spec: RunSpec) -> str | None:
    """What runtime `swarm` does not do."""
    if spec.on_gpu:
        return "transport nccl does not run on runtime swarm; use gloo or mpi"
    if spec.has_links:
        return "link: runtime swarm sets no links; use --runtime docker or local"
    if spec.node_speed is not None:
        return "node_speed: runtime swarm gives all nodes the same quota; use --runtime docker or local"
    if spec.checkpoints:
        return "checkpoints need a directory that all nodes share; use --runtime slurm, docker or local"
    if spec.restarts or spec.on_loss == "continue":
        return "runs that outlive a lost rank do not run on runtime swarm; use --runtime docker or local"
    return None


def distributed_image(engine: Engine) -> str:
    """The image by what is the same on all machines: its digest in a registry, else its ID.

    Swarm pulls an image with a digest. Machines must have one with an ID.
    """
    name = image_name()
    digests = engine.client.images.get(name).attrs.get("RepoDigests") or []
    repository = re.sub(r":[^:/]+$", "", name.partition("@")[0])  # without its tag
    return next((each for each in digests if each.startswith(f"{repository}@")), None) or image_id(engine)


def entrypoint(engine: Engine) -> Sequence[str]:
    """That of the image."""
    return [*engine.client.images.get(image_name()).attrs["Config"]["Entrypoint"]]


def code_files(directory: Path) -> dict[str, str]:
    """The copies of users' code, by their path in it. Raises InputError if Swarm cannot distribute one."""
    found = {
        str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()
    }
    for name, path in found.items():
        size = path.stat().st_size
        if not size and path.suffix == ".py":
            found[name] = EMPTY
        elif not size:
            raise InputError(f"{name}: is empty, and Swarm distributes no empty files; put a line into it")
        elif size > MAX_CONFIG_BYTES:
            raise InputError(
                f"{name}: has {size} bytes, and Swarm distributes files of up to {MAX_CONFIG_BYTES}; "
                "use --runtime docker, or put the data into an image and set SHARDYARD_IMAGE"
            )
    return {name: str(path.resolve()) for name, path in found.items()}


def _compose_config(engine: Engine, run: ComposeProject) -> dict[str, Any]:
    """The run's compose files with all variables replaced."""
    command = engine.command(*run.command, "config", "--format", "json")
    environment = {**os.environ, **run.environment}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=COMPOSE_S)
    except subprocess.TimeoutExpired:
        raise EngineError(f"docker compose config does not answer within {COMPOSE_S} s") from None
    if done.returncode:
        raise EngineError(f"docker compose config failed: {done.stderr.strip()[:300]}")
    found: dict[str, Any] = json.loads(done.stdout.replace("$$", "$"))
    return found
