"""A fake Docker engine, whose containers the test sets, and runs on it in cold or warm containers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import led
from orchestrator.runtimes.base import RunState
from orchestrator.runtimes.docker import cluster, project
from orchestrator.runtimes.docker import runtime as runtime_module
from orchestrator.runtimes.docker.cluster import Containers
from orchestrator.runtimes.docker.engine import Engine
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.led import LedRun
from tests.unit.cluster_support import FIELDS, OTHER, assigned
from tests.unit.conftest import event
from trainer.link_switch.control import Setup
from trainer.node.channel import Answer, Ending, Request, coordinators_channel
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


class FakeSweep(FakeEngine):
    """A sweep in containers. What compose has started runs, unless the test says else."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, cold: bool = False) -> None:
        super().__init__(monkeypatch)
        self.paths = SweepPaths(directory)
        monkeypatch.setattr(runtime_module, "reach", lambda: self.engine)
        monkeypatch.setattr(runtime_module, "Reaper", lambda label: None)
        monkeypatch.setattr(led, "CANCEL_S", 0.02)
        for name, seconds in {"INSPECT_S": -1.0, "LOG_S": 0.0, "LOSS_S": 0.0}.items():
            monkeypatch.setattr(cluster, name, seconds)
        self.cold = cold
        self.clusters, self._lease = Clusters(DockerRuntime(cold=cold)), ExitStack()
        self.replaced: str | None = None  # why the last run has other containers than the one before

    @property
    def noun(self) -> str:
        """What precedes the name of a container."""
        return "" if self.cold else "the warm container "

    def plan(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> LaunchPlan:
        spec = RunSpec.model_validate({**FIELDS[topology], "nodes": nodes, **fields})
        paths = self.paths.run(spec.key)
        paths.directory.mkdir(exist_ok=True, parents=True)
        paths.spec.write_text(spec.model_dump_json())
        return self.clusters.plan(spec, paths, self.paths.directory / "data")

    def hand_over(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> LedRun:
        """Start a run. The one before has ended."""
        plan = self.plan(topology, nodes, **fields)
        self._lease.close()
        lease = self._lease.enter_context(self.clusters.lease(plan))
        self.replaced, run = lease.replaced, lease.cluster.run(plan)
        assert isinstance(run, LedRun)
        return run

    def start(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> LedRun:
        """Start a run, whose containers then run."""
        run = self.hand_over(topology, nodes, **fields)
        containers(run).project.up.returncode = 0
        others = [f"{OTHER[topology]}-1"] if topology in OTHER else []
        scale = containers(run).compose.scale
        self.show(*(f"node-{number + 1}" for number in range(scale)), *others, "coordinator-1")
        return run

    def finish(self, run: LedRun, code: int = 0, exits: Mapping[str, int] = {}, **ending: Any) -> RunState:
        """Let the coordinator end the run. Returns the state that the runtime then finds."""
        answers(run, "ended", ending=Ending(exits={**exits, "coordinator": code}, **ending))
        return run.wait(5)

    def succeed(self, run: LedRun) -> Containers:
        """Let the run end well. Returns its containers."""
        self.finish(run)
        run.stop()
        run.collect()
        return containers(run)

    def ended(self, topology: str = "ddp", nodes: int = 2, **fields: Any) -> Containers:
        """The containers of a run that has ended well."""
        return self.succeed(self.start(topology, nodes, **fields))

    def close(self) -> None:
        self._lease.close()
        self.clusters.close()


def containers(run: LedRun) -> Containers:
    assert isinstance(run._cluster, Containers)
    return run._cluster


def answers(run: LedRun, kind: str, /, **fields: Any) -> None:
    """Let the coordinator tell this of the run."""
    answer = Answer.model_validate({"kind": kind, "run": run._number, **fields})
    coordinators_channel(containers(run).directory).post(answer)


def requests(run: LedRun) -> list[Request]:
    """All that the coordinator of these containers was asked for."""
    return coordinators_channel(containers(run).directory).new()


def assign_ranks(run: LedRun, topology: str, *ordinals: int, **fields: Any) -> None:
    RunRecord(run.directory, assigned(topology, *ordinals, **fields))


def write_events(live: Path, kind: str, *ranks: int, **fields: Any) -> None:
    for rank in ranks:
        with open(live / f"rank-{rank}.jsonl", "a") as file:
            file.write(event(kind, rank, **fields).to_line() + "\n")


def _sweep(directory: Path, monkeypatch: pytest.MonkeyPatch, cold: bool) -> Iterator[FakeSweep]:
    made = FakeSweep(directory, monkeypatch, cold)
    yield made
    made.alive, made.error = True, None
    made.close()


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSweep]:
    """One whose containers are warm, if its runs allow it."""
    yield from _sweep(tmp_path, monkeypatch, cold=False)


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSweep]:
    yield from _sweep(tmp_path, monkeypatch, cold=True)


@pytest.fixture(params=["cold", "warm"])
def either(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeSweep]:
    yield from _sweep(tmp_path, monkeypatch, cold=request.param == "cold")
