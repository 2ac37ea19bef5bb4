"""Smoke tests start real containers: they need an engine and an image of this code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.command_line import PROJECT, environment
from tests.support.containers import containers_missing, leftovers
from trainer.core.events import Event, EventReader


@pytest.fixture(autouse=True)
def containers() -> None:
    if missing := containers_missing():
        pytest.skip(missing)


@dataclass
class Stack:
    """A bare `docker compose up` of one topology, with nothing set but where its results go."""

    topology: str
    project: str
    results: Path
    settings: dict[str, str]

    def compose(self, *arguments: str) -> list[str]:
        file = str(PROJECT / "compose" / f"{self.topology}.yml")
        return ["docker", "compose", "-f", file, "-p", self.project, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**environment(), "SHARDYARD_RESULTS": str(self.results), **self.settings}

    def up(self, nodes: int) -> subprocess.CompletedProcess[str]:
        return self.run("up", "--scale", f"node={nodes}")

    def start(self, nodes: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.compose("up", "--scale", f"node={nodes}"),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.compose(*arguments),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )

    def events(self) -> list[Event]:
        """Of the one run that lies in the results directory."""
        (run,) = self.results.iterdir()
        return EventReader(run).new()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """`stack("ddp")`; whatever becomes of it is taken down, and nothing may be left."""
    made: list[Stack] = []

    def make(topology: str, **settings: str) -> Stack:
        results = tmp_path / "results"
        results.mkdir()
        made.append(Stack(topology, f"smoke-{topology}-{os.getpid()}", results, settings))
        return made[-1]

    yield make
    for each in made:
        each.run("down", "--timeout", "1")
        assert leftovers(f"com.docker.compose.project={each.project}") == []
