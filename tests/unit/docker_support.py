"""A fake Docker engine with containers set by the test."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.docker import runtime as module
from orchestrator.runtimes.docker.compose import LIVE, cluster
from orchestrator.runtimes.docker.engine import Engine
from orchestrator.runtimes.docker.runtime import DockerRun
from tests.unit.cluster_support import FIELDS, assigned
from trainer.cluster.run_record import RunRecord
from trainer.spec.run_spec import RunSpec

Row = dict[str, Any]


def container(service: str, number: int = 1, state: str = "running", health: str = "healthy") -> Row:
    labels = {"com.docker.compose.service": service, "com.docker.compose.container-number": str(number)}
    status = f"Up 3 seconds ({health})" if state == "running" else "Exited (0) 1 second ago"
    return {"Id": f"{service}-{number}", "State": state, "Status": status, "Labels": labels}


def ended(service: str, number: int = 1) -> Row:
    return container(service, number, "exited")


class Api:
    """A fake of the engine's API. codes: exit codes by container."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.codes: dict[str, int] = {}
        self.error: Exception | None = None
        self.inspected: list[str] = []
        self.filters: Any = None

    def containers(self, all: bool, filters: Any) -> list[Row]:
        assert all
        self.filters = filters
        if self.error:
            raise self.error
        return self.rows

    def inspect_container(self, identifier: str) -> Row:
        self.inspected.append(identifier)
        return {"State": {"ExitCode": self.codes.get(identifier, 0)}}

    def logs(self, identifier: str, **_: Any) -> list[bytes]:
        return [f"log of {identifier}\n".encode()]


class Up:
    """A fake `docker compose up`: it runs until the test sets an exit code."""

    def __init__(self, argv: list[str], **options: Any) -> None:
        self.argv, self.environment = argv, options["env"]
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.returncode = -15

    def kill(self) -> None:
        self.terminate()

    def wait(self, timeout: float) -> int | None:
        return self.returncode


class FakeRun:
    """A started run. The test sets `api` and `up`."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, topology: str = "ddp", **fields: Any
    ) -> None:
        self.api, self.alive = Api(), True
        self.commands: list[list[str]] = []
        self.removed: list[str] = []
        monkeypatch.setattr(subprocess, "Popen", Up)
        self.answer = SimpleNamespace(returncode=0, stderr="")
        monkeypatch.setattr(subprocess, "run", self._run_command)
        monkeypatch.setattr(module, "remove_project", lambda engine, project: self.removed.append(project))
        self.paths = RunPaths(directory)
        client: Any = SimpleNamespace(api=self.api, ping=self.ping)
        engine = Engine(client, "unix:///x.sock", "26.1", "2.26", 4)
        run = RunSpec.model_validate({**FIELDS[topology], "nodes": 3, **fields})
        self.cluster = cluster(run, self.paths, directory, "owner", cores=4)
        self.run = DockerRun(engine, self.cluster, self.paths)
        self.up: Any = self.run._up

    def _run_command(self, command: list[str], **_: Any) -> Any:
        self.commands.append(command)
        return self.answer

    def ping(self) -> bool:
        if not self.alive:
            raise ConnectionError("no socket")
        return True

    def assign_ranks(self, topology: str, *ordinals: int, **fields: Any) -> None:
        RunRecord(self.paths.directory / LIVE, assigned(topology, *ordinals, **fields))
