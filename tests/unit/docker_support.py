"""A fake Docker engine, whose containers the test sets, and runs on it in cold or warm containers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.results.store import RunPaths, SweepPaths
from orchestrator.runtimes.base import RunState
from orchestrator.runtimes.docker import project, warm
from orchestrator.runtimes.docker import runtime as runtime_module
from orchestrator.runtimes.docker.compose import compose_project
from orchestrator.runtimes.docker.engine import Engine
from orchestrator.runtimes.docker.run import OneRunContainers
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.runtimes.docker.warm import WarmContainers, WarmRun
from orchestrator.runtimes.launch_plan import LaunchPlan
from tests.unit.cluster_support import FIELDS, OTHER, assigned
from tests.unit.conftest import event
from trainer.link_switch.control import Setup
from trainer.node.hand_over import ENDED, Ending
from trainer.node.run_record import RunRecord
from trainer.spec.run_spec import RunSpec

FAST = {"bandwidth_mbit": 100}  # a link
LINKED = (
    "node-1",
    "node-2",
    "coordinator-1",
    "switch-1",
)  # the containers of a run of two nodes with links


class Up:
    """A fake `docker compose`. `up` runs until the test sets an exit code; a plug has ended."""

    def __init__(self, argv: list[str], env: Mapping[str, str], plugged: tuple[int, str]) -> None:
        self.argv, self.environment = argv, env
        self.returncode, self.errors = plugged if "plug" in argv else (None, "")

    def poll(self, timeout: float | None = None) -> int | None:
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        return None, self.errors

    def terminate(self) -> None:
        self.returncode = -15

    wait, kill = poll, terminate


class FakeEngine:
    """An engine and its API, with what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[dict[str, Any]] = []
        self.codes: dict[str, int] = {}  # with which containers have exited
        self.output: dict[str, str] = {}  # of containers
        self.failing_streak = 2  # of health checks
        self.error: Exception | None = None  # of every request
        self.alive = True  # whether it answers a ping
        self.answer = SimpleNamespace(returncode=0, stderr="")  # to commands
        self.plugged = (0, "")  # how plugs end
        self.ups: list[Up] = []
        self.commands: list[list[str]] = []
        self.removed: list[str] = []
        client: Any = SimpleNamespace(api=self, ping=self._ping, close=lambda: None)
        self.engine = Engine(client, "unix:///x.sock", "26.1", "2.26", 4)
        monkeypatch.setattr(subprocess, "Popen", self._start)
        monkeypatch.setattr(subprocess, "run", self._run_command)
        monkeypatch.setattr(project, "remove_project", lambda engine, name: self.removed.append(name))

    def show(self, *running: str, **others: Sequence[str]) -> None:
        """Set the containers, such as node-1, that it lists: those that run, and others by state."""
        states = {"running": running, **others}
        self.rows = [_listed(name, state) for state, names in states.items() for name in names]

    def asked(self, command: str) -> list[list[str]]:
        """The arguments of each docker command of this name."""
        return [each[each.index(command) + 1 :] for each in self.commands if command in each]

    @property
    def setups(self) -> list[Setup]:
        """The links that were set, in order."""
        return [Setup.model_validate_json(arguments[-1]) for arguments in self.asked("exec")]

    @property
    def plugs(self) -> list[Up]:
        return [each for each in self.ups if "plug" in each.argv]

    def containers(self, all: bool, filters: Any) -> list[dict[str, Any]]:
        assert all
        self.filters = filters
        if self.error:
            raise self.error
        return self.rows

    def inspect_container(self, identifier: str) -> dict[str, Any]:
        health = {"FailingStreak": self.failing_streak}
        state = {"ExitCode": self.codes.get(identifier, 0), "Health": health}
        return {"State": state, "Config": {"Healthcheck": {"Retries": 2}}}

    def logs(self, identifier: str, **_: Any) -> list[bytes]:
        return [self.output.get(identifier, f"log of {identifier}\n").encode()]

    def _start(self, argv: list[str], env: Mapping[str, str], **_: Any) -> Up:
        self.ups.append(Up(argv, env, self.plugged))
        return self.ups[-1]

    def _run_command(self, command: list[str], **_: Any) -> Any:
        self.commands.append(command)
        return self.answer

    def _ping(self) -> bool:
        if not self.alive:
            raise ConnectionError("no socket")
        return True


def _listed(name: str, state: str) -> dict[str, Any]:
    service, _, number = name.rpartition("-")
    return {
        "Id": name,
        "State": state if state in ("created", "exited") else "running",
        "Status": f"Up 3 seconds ({state})",
        "Labels": {"com.docker.compose.service": service, "com.docker.compose.container-number": number},
        "NetworkSettings": {"Networks": {"run": {"IPAddress": f"10.0.{len(service)}.{number}"}}},
    }


class FakeRun(FakeEngine):
    """A started run of three nodes in cold containers. The test sets `up`, too."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, topology: str = "ddp", **fields: Any
    ) -> None:
        super().__init__(monkeypatch)
        self.paths = RunPaths(directory)
        run = RunSpec.model_validate({**FIELDS[topology], "nodes": 3, **fields})
        self.compose = compose_project(run, self.paths, directory, "owner", cores=4)
        containers = project.Project(self.engine, self.compose, self.paths.log("compose"))
        self.cluster = OneRunContainers(containers)
        self.run = self.cluster.run(LaunchPlan(run, self.paths, directory))
        (self.up,) = self.ups

    def assign_ranks(self, topology: str, *ordinals: int, **fields: Any) -> None:
        RunRecord(self.paths.live, assigned(topology, *ordinals, **fields))

    def end(self, **ending: Any) -> None:
        """Let the coordinator write how the run has ended."""
        (self.paths.live / ENDED).write_text(Ending(**ending).model_dump_json())


class FakeSweep(FakeEngine):
    """A sweep with warm containers. What compose has started runs, unless the test says else."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.paths = SweepPaths(directory)
        monkeypatch.setattr(runtime_module, "reach", lambda: self.engine)
        monkeypatch.setattr(runtime_module, "Reaper", lambda label: None)
        for name, seconds in {"INSPECT_S": -1.0, "LOG_S": 0.0, "LOSS_S": 0.0, "CANCEL_S": 0.02}.items():
            monkeypatch.setattr(warm, name, seconds)
        self.clusters, self._lease = Clusters(DockerRuntime()), ExitStack()
        self.replaced: str | None = None  # why the last run has other containers than the one before

    def plan(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> LaunchPlan:
        spec = RunSpec.model_validate({**FIELDS[topology], "nodes": nodes, **fields})
        paths = self.paths.run(spec.key)
        paths.directory.mkdir(exist_ok=True, parents=True)
        paths.spec.write_text(spec.model_dump_json())
        return self.clusters.plan(spec, paths, self.paths.directory / "data")

    def hand_over(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> WarmRun:
        """Start a run. The one before has ended."""
        plan = self.plan(topology, nodes, **fields)
        self._lease.close()
        lease = self._lease.enter_context(self.clusters.lease(plan))
        self.replaced, run = lease.replaced, lease.cluster.run(plan)
        assert isinstance(run, WarmRun)
        return run

    def start(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> WarmRun:
        """Start a run, whose containers then run."""
        run = self.hand_over(topology, nodes, **fields)
        run._nodes.project.up.returncode = 0
        others = [f"{OTHER[topology]}-1"] if topology in OTHER else []
        scale = run._nodes.compose.scale
        self.show(*(f"node-{number + 1}" for number in range(scale)), *others, "coordinator-1")
        return run

    def finish(self, run: WarmRun, code: int = 0, exits: Mapping[str, int] = {}, **ending: Any) -> RunState:
        """Let the coordinator end the run. Returns the state that the runtime then finds."""
        ended = Ending(exits={**exits, "coordinator": code}, **ending)
        (live(run) / ENDED).write_text(ended.model_dump_json())
        return run.wait(5)

    def succeed(self, run: WarmRun) -> WarmContainers:
        """Let the run end well. Returns its containers."""
        self.finish(run)
        run.stop()
        run.collect()
        return run._nodes

    def ended(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> WarmContainers:
        """The containers of a run that has ended well."""
        return self.succeed(self.start(topology, nodes, **fields))

    def close(self) -> None:
        self._lease.close()
        self.clusters.close()


def live(run: WarmRun) -> Path:
    """The directory of the run record."""
    return run._record.directory


def assign_ranks(run: WarmRun, topology: str, *ordinals: int) -> None:
    RunRecord(live(run), assigned(topology, *ordinals))


def write_events(live: Path, kind: str, *ranks: int, **fields: Any) -> None:
    live.mkdir(exist_ok=True)
    for rank in ranks:
        with open(live / f"rank-{rank}.jsonl", "a") as file:
            file.write(event(kind, rank, **fields).to_line() + "\n")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRun]:
    """start(TOPOLOGY, **FIELDS) starts a run in cold containers."""
    return partial(FakeRun, tmp_path, monkeypatch)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSweep]:
    made = FakeSweep(tmp_path, monkeypatch)
    yield made
    made.alive, made.error = True, None
    made.close()
