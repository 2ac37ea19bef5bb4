"""A fake Docker engine with containers set by the test."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker import project as module
from orchestrator.runtimes.docker.compose import compose_project
from orchestrator.runtimes.docker.engine import Engine
from orchestrator.runtimes.docker.run import OneRunContainers
from orchestrator.runtimes.launch_plan import LaunchPlan
from tests.unit.cluster_support import FIELDS, assigned
from tests.unit.conftest import event
from trainer.cluster.run_record import RunRecord
from trainer.spec.run_spec import RunSpec

Row = dict[str, Any]


def container(service: str, number: int = 1, state: str = "running", health: str = "healthy") -> Row:
    labels = {"com.docker.compose.service": service, "com.docker.compose.container-number": str(number)}
    status = f"Up 3 seconds ({health})" if state == "running" else "Exited (0) 1 second ago"
    networks = {"Networks": {"run": {"IPAddress": f"10.0.{len(service)}.{number}"}}}
    found = {"Id": f"{service}-{number}", "State": state, "Status": status, "Labels": labels}
    return {**found, "NetworkSettings": networks}


def ended(service: str, number: int = 1) -> Row:
    return container(service, number, "exited")


class Api:
    """A fake of the engine's API. codes: exit codes by container. failing_streak: of health checks."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.codes: dict[str, int] = {}
        self.failing_streak = 2
        self.error: Exception | None = None
        self.inspected: list[str] = []
        self.output: dict[str, str] = {}  # by container
        self.asked: list[dict[str, Any]] = []  # options of the requests for output
        self.filters: Any = None

    def containers(self, all: bool, filters: Any) -> list[Row]:
        assert all
        self.filters = filters
        if self.error:
            raise self.error
        return self.rows

    def inspect_container(self, identifier: str) -> Row:
        self.inspected.append(identifier)
        health = {"FailingStreak": self.failing_streak}
        state = {"ExitCode": self.codes.get(identifier, 0), "Health": health}
        return {"State": state, "Config": {"Healthcheck": {"Retries": 2}}}

    def logs(self, identifier: str, **options: Any) -> list[bytes]:
        self.asked.append(options)
        return [self.output.get(identifier, f"log of {identifier}\n").encode()]


class Up:
    """A fake `docker compose`. `up` runs until the test sets an exit code; a plug has ended."""

    def __init__(self, argv: list[str], **options: Any) -> None:
        self.argv, self.environment = argv, options["env"]
        self.returncode: int | None = 0 if "plug" in argv else None
        self.errors = ""

    def poll(self) -> int | None:
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        return None, self.errors

    def terminate(self) -> None:
        self.returncode = -15

    def kill(self) -> None:
        self.terminate()

    def wait(self, timeout: float | None = None) -> int | None:
        return self.returncode


class FakeEngine:
    """An engine, with what it is asked. The test sets `api`, `alive` and `answer`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api, self.alive = Api(), True
        self.answer = SimpleNamespace(returncode=0, stderr="")
        self.ups: list[Up] = []
        self.commands: list[list[str]] = []
        self.removed: list[str] = []
        client: Any = SimpleNamespace(api=self.api, ping=self._ping, close=lambda: None)
        self.engine = Engine(client, "unix:///x.sock", "26.1", "2.26", 4)
        monkeypatch.setattr(subprocess, "Popen", self._start)
        monkeypatch.setattr(subprocess, "run", self._run_command)
        monkeypatch.setattr(module, "remove_project", lambda engine, project: self.removed.append(project))

    def _start(self, argv: list[str], **options: Any) -> Up:
        self.ups.append(Up(argv, **options))
        return self.ups[-1]

    def _run_command(self, command: list[str], **_: Any) -> Any:
        self.commands.append(command)
        return self.answer

    def _ping(self) -> bool:
        if not self.alive:
            raise ConnectionError("no socket")
        return True


class FakeRun(FakeEngine):
    """A started run on a fake engine. The test sets `up`, too."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, topology: str = "ddp", **fields: Any
    ) -> None:
        super().__init__(monkeypatch)
        self.paths = RunPaths(directory)
        run = RunSpec.model_validate({**FIELDS[topology], "nodes": 3, **fields})
        self.compose = compose_project(run, self.paths, directory, "owner", cores=4)
        containers = module.Project(self.engine, self.compose, self.paths.log("compose"))
        self.cluster = OneRunContainers(containers)
        self.run = self.cluster.run(LaunchPlan(run, self.paths, directory))
        (self.up,) = self.ups

    def assign_ranks(self, topology: str, *ordinals: int, **fields: Any) -> None:
        RunRecord(self.paths.live, assigned(topology, *ordinals, **fields))

    def make_ready(self, *ranks: int) -> None:
        """Let ranks report that they are ready to train."""
        write_ready(self.paths.live, *ranks)


def write_ready(live: Path, *ranks: int) -> None:
    live.mkdir(exist_ok=True)
    for rank in ranks:
        with open(live / f"rank-{rank}.jsonl", "a") as file:
            file.write(event("ready", rank).to_line() + "\n")
