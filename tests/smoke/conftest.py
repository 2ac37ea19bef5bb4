"""Smoke tests start real containers, so they need a container engine and an image of these sources."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.command_line import PROJECT, Done, Running, environment
from tests.support.containers import containers_missing, docker, leftovers, nothing_left
from trainer.core.events import Event, EventReader


@pytest.fixture(autouse=True, scope="session")
def containers() -> None:
    """Skip all smoke tests where no container can be started."""
    if missing := containers_missing():
        pytest.skip(missing)


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """After every test, no sweep and no containers are left."""
    with nothing_left():
        yield
        for sweep in psutil.Process().children():  # of a test that has failed
            with suppress(psutil.NoSuchProcess):  # killed by its test
                if "sweep" in sweep.cmdline():
                    sweep.send_signal(signal.SIGINT)
                    sweep.wait(60)


@dataclass
class Stack:
    """A bare `docker compose up` of one topology, with its own results directory."""

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

    def up(self, nodes: int) -> Done:
        return self.run("up", "--scale", f"node={nodes}")

    def start(self, nodes: int) -> Running:
        return subprocess.Popen(
            self.compose("up", "--scale", f"node={nodes}"),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> Done:
        return subprocess.run(
            self.compose(*arguments),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )

    def down(self) -> None:
        """Remove the stack, and check that none of its resources are left."""
        self.run("down", "--timeout", "1")
        assert leftovers(f"com.docker.compose.project={self.project}") == []

    def inspect(self) -> list[dict[str, Any]]:
        """All containers, as the engine describes them."""
        found = self.run("ps", "-a", "--quiet").stdout.split()
        return json.loads(docker("inspect", *found))

    def inspect_network(self) -> dict[str, Any]:
        return json.loads(docker("network", "inspect", f"{self.project}_run"))[0]

    def events(self) -> list[Event]:
        """The events of the only run in the results directory."""
        (run,) = self.results.iterdir()
        return EventReader(run).new()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """`stack("ddp")`: a stack that is removed after the test."""
    made: list[Stack] = []

    def make(topology: str, **settings: str) -> Stack:
        results = tmp_path / "results"
        results.mkdir()
        made.append(Stack(topology, f"smoke-{topology}-{os.getpid()}", results, settings))
        return made[-1]

    yield make
    for each in made:
        each.down()
