"""Runtime `docker`: nodes are containers, started by compose and observed through the engine's API."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.errors import InputError
from orchestrator.results.environment import gpus
from orchestrator.results.records import RuntimeInfo
from orchestrator.results.store import RunPaths, make_world_writable, write_atomic
from orchestrator.runtimes.base import RunHandle, RunState, Runtime
from orchestrator.runtimes.docker.compose import LIVE, Cluster, checkpoints_of, cluster
from orchestrator.runtimes.docker.engine import Engine, EngineError, command_error, is_responding, reach
from orchestrator.runtimes.docker.image import (
    image_id,
    image_name,
    image_trouble,
    pinned_packages,
    source_digest,
)
from orchestrator.runtimes.docker.reaper import Reaper, remove_orphans, remove_project
from orchestrator.runtimes.identity import identity
from orchestrator.runtimes.launch_plan import LaunchPlan, Process
from trainer.core.events import Event, EventReader
from trainer.spec.run_spec import RunSpec

POLL_S = 0.25
TERMINATE_S = 3  # between SIGTERM and SIGKILL; an agent gives its ranks 2 s of it
COMPOSE_S = 60  # to stop or remove a run's containers
UNRESPONSIVE_S = 10.0  # after which the engine counts as dead


class DockerRuntime(Runtime):
    """One container per node on this machine's Docker engine, each within its own limits."""

    info: ClassVar = RuntimeInfo(
        enforces_limits=True,
        shares_cores=True,
        one_clock=True,
        shapes_links=False,
        warm=False,
        remote=False,
    )

    def __init__(self, cold: bool = False) -> None:
        super().__init__(cold)
        self._engine: Engine | None = None
        self._image: str | None = None
        self._reaper: Reaper | None = None

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
            "image": f"{image_name()} from sources {source_digest()}",
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
        if spec.cpus > self.engine.cores:
            return f"cpus: {spec.cpus:g} for a node, and the engine has {self.engine.cores}; lower cpus"
        return None

    def plan(self, spec: RunSpec, paths: RunPaths, data_dir: Path) -> LaunchPlan:
        run = self._cluster(spec, paths, data_dir)
        up = self.engine.command(*run.up)
        processes = [Process("compose", up, dict(run.environment), "compose")]
        if run.bottleneck_cpus is not None:
            update = self.engine.command(*run.limit_cpus(f"the container of node {spec.nodes - 1}"))
            processes.append(Process("bottleneck", update, {}, "compose"))
        return LaunchPlan(spec, paths, data_dir, processes)

    def start(self, plan: LaunchPlan) -> RunHandle:
        if not is_responding(self.engine) and (reason := self.unavailable_reason()):
            raise InputError(f"{reason}\nthen run the same command to resume")
        self._reaper = self._reaper or Reaper(identity())
        check_mounts(plan.paths.directory, plan.data_dir, plan.spec)
        if plan.spec.checkpoints:
            make_world_writable(checkpoints_of(plan.paths))
        run = self._cluster(plan.spec, plan.paths, plan.data_dir)
        remove_project(self.engine, run.project)
        return DockerRun(self.engine, run, plan.paths)

    def clean(self) -> int:
        return 0 if self.unavailable_reason() else remove_orphans(self.engine)

    def _cluster(self, spec: RunSpec, paths: RunPaths, data_dir: Path) -> Cluster:
        image = self._image or image_name()
        return cluster(spec, paths, data_dir, orchestrator=identity(), cores=self.cores(), image=image)


def check_mounts(directory: Path, data_dir: Path, run: RunSpec) -> None:
    """Check that containers can use the mounted directories. Raises InputError."""
    for path in (directory, data_dir):
        if ":" in str(path.resolve()):
            raise InputError(f"{path.resolve()}: Docker cannot mount a path with a colon in its name")
    if not data_dir.exists():  # else the engine creates it as root
        data_dir.mkdir(parents=True)
        data_dir.chmod(0o755)
    needed = [data_dir / name for name in run.dataset.files]
    for path in [file for file in needed if file.exists()]:
        for each in (path, *path.parents[: len(path.relative_to(data_dir).parts)]):
            if not each.stat().st_mode & (stat.S_IXOTH if each.is_dir() else stat.S_IROTH):
                fix = f"chmod -R o+rX {shlex.quote(str(data_dir))}"
                raise InputError(f"{each}: the containers' user cannot read it; {fix}")


class DockerRun(RunHandle):
    """The containers of one run."""

    def __init__(self, engine: Engine, run: Cluster, paths: RunPaths) -> None:
        self._engine, self._cluster, self._paths = engine, run, paths
        self._live = paths.directory / LIVE
        self._reader = EventReader(self._live)
        self._answered = time.monotonic()
        self._codes: dict[str, int] = {}  # by ID, of containers that have exited
        self._state = RunState({}, running=1)
        self._stopped = False
        self._quota_pending = run.bottleneck_cpus is not None
        self._started = time.monotonic()
        with open(paths.log("compose"), "wb") as log:
            self._up = subprocess.Popen(
                engine.command(*run.up),
                env={**os.environ, **run.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is the orchestrator's to handle
            )

    def wait(self, timeout_s: float) -> RunState:
        before = len(self._state.exits)
        deadline = time.monotonic() + timeout_s
        while True:
            self._state = self._inspect()
            over = not self._state.running or self._state.error or len(self._state.exits) > before
            if over or time.monotonic() > deadline:
                return self._state
            time.sleep(min(POLL_S, timeout_s))

    def _inspect(self) -> RunState:
        """The state of the containers, from the engine."""
        starting = self._up.poll() is None
        if starting:
            self.engine_start_s = time.monotonic() - self._started
        try:
            containers = self._containers()
            exits = {self._name(each): self._code(each) for each in containers if _has_ended(each)}
        except Exception as error:  # the SDK does not wrap the exceptions of its HTTP library
            if time.monotonic() - self._answered < UNRESPONSIVE_S and is_responding(self._engine):
                return self._state
            return RunState(
                self._state.exits, 0, f"the Docker engine stopped responding ({type(error).__name__})"
            )
        self._answered = time.monotonic()
        running = sum(not _has_ended(each) for each in containers) + starting
        if self._up.returncode and not exits:
            return RunState(exits, running, f"docker compose failed: {self._compose_error()}")
        if exits.get("coordinator") and not self._agents():
            return RunState(exits, running, self._registration_error())
        if self._quota_pending and (refusal := self._apply_quota(containers)):
            return RunState(exits, running, refusal)
        for each in containers:
            if "(unhealthy)" in each["Status"]:
                return RunState(exits, running, f"{self._name(each)} is stuck: its health check fails")
        return RunState(exits, running)

    def _apply_quota(self, containers: Sequence[Mapping[str, Any]]) -> str | None:
        """Apply the bottleneck's quota once all nodes run. Its ranks wait for it before they train."""
        nodes = [each for each in containers if _service(each) == "node"]
        if len(nodes) < self._cluster.scale:
            return None
        error = command_error(self._engine, *self._cluster.limit_cpus(max(nodes, key=_ordinal)["Id"]))
        self._quota_pending = error is not None
        return f"CPU quota of the last node was not applied: {error}" if error else None

    def _containers(self) -> list[dict[str, Any]]:
        label = {"label": f"com.docker.compose.project={self._cluster.project}"}
        found: list[dict[str, Any]] = self._engine.client.api.containers(all=True, filters=label)
        return [each for each in found if _service(each) != "data" and each["State"] != "created"]

    def _code(self, container: Mapping[str, Any]) -> int:
        """Exit code of a container that has exited; negative if it was killed by a signal."""
        identifier = container["Id"]
        if identifier not in self._codes:
            code = int(self._engine.client.api.inspect_container(identifier)["State"]["ExitCode"])
            self._codes[identifier] = 128 - code if code > 128 else code
        return self._codes[identifier]

    def _name(self, container: Mapping[str, Any]) -> str:
        """The node's name by rank: like compose's numbers, but from 0 and without gaps."""
        service = _service(container)
        if service == "master":
            return "node 0"
        if service != "node":
            return service
        ordinal = _ordinal(container)
        for agent in self._agents():
            if agent["role"] == "node" and agent["ordinal"] == ordinal and agent["ranks"]:
                return f"node {agent['ranks'][0] // max(1, len(agent['ranks']))}"
        first = 0 if self._cluster.files[0].stem == "rpc" else 1  # in rpc the master is node 0
        return f"node {ordinal - first}"

    def _agents(self) -> list[dict[str, Any]]:
        try:
            agents: list[dict[str, Any]] = json.loads((self._live / "assignment.json").read_text())
            return agents
        except (OSError, ValueError):  # no ranks are assigned yet
            return []

    def _registration_error(self) -> str:
        """Why no ranks were assigned, from the coordinator's summary."""
        try:
            return (self._live / "summary.txt").read_text().strip().removeprefix("FAILED: ")
        except OSError:
            return "the coordinator exited before it assigned ranks; its log says why"

    def _compose_error(self) -> str:
        lines = self._paths.log("compose").read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit code {self._up.returncode}"

    def new_events(self) -> list[Event]:
        return self._reader.new()

    def stop(self) -> None:
        """Stop the containers, save their logs, and remove everything."""
        if self._stopped:
            return
        began = time.monotonic()
        if self._up.poll() is None:
            self._up.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._up.wait(TERMINATE_S)
            self._up.kill()
        try:
            try:
                containers = self._containers()
                if any(not _has_ended(each) for each in containers):
                    stop = self._engine.command(*self._cluster.compose, "stop", "-t", str(TERMINATE_S))
                    self._compose(stop)
                for each in containers:
                    self._save_log(each)
            finally:
                self._compose(self._engine.command(*self._cluster.down))
                remove_project(self._engine, self._cluster.project)
            self._stopped = True
            self.engine_stop_s = time.monotonic() - began
        except Exception:
            # An engine that has died must not hide the run's result. The next sweep removes by label what
            # the engine still has.
            if is_responding(self._engine):
                raise

    def _compose(self, command: list[str]) -> None:
        environment = {**os.environ, **self._cluster.environment}
        with suppress(subprocess.TimeoutExpired):  # remove_project removes the rest
            subprocess.run(command, env=environment, capture_output=True, timeout=COMPOSE_S)

    def _save_log(self, container: Mapping[str, Any]) -> None:
        path = self._paths.log(self._name(container).replace(" ", "-"))
        with open(path, "wb") as file:
            file.writelines(self._engine.client.api.logs(container["Id"], stream=True, timestamps=False))

    def collect(self, paths: RunPaths) -> None:
        events = EventReader(self._live).new()
        write_atomic(paths.events, "".join(event.to_line() + "\n" for event in events))
        for kept in (paths.weights, paths.usage):
            with suppress(FileNotFoundError):
                (self._live / kept.name).replace(kept)
        shutil.rmtree(self._live, ignore_errors=True)


def _service(container: Mapping[str, Any]) -> str:
    return str(container["Labels"]["com.docker.compose.service"])


def _ordinal(container: Mapping[str, Any]) -> int:
    """The container number that compose assigned, from 1."""
    return int(container["Labels"]["com.docker.compose.container-number"])


def _has_ended(container: Mapping[str, Any]) -> bool:
    return container["State"] in ("exited", "dead")
