"""Check whether containers can be started here, and find leftovers of a project."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path

from orchestrator.runtimes.docker.engine import EngineError, reach
from orchestrator.runtimes.docker.image import image_trouble
from orchestrator.runtimes.docker.reaper import LABEL
from tests.support.processes import wait_until


@cache
def containers_missing() -> str | None:
    """Why containers cannot be started here, as `doctor` prints it, or None."""
    try:
        engine = reach()
    except EngineError as error:
        return str(error)
    with closing(engine.client):
        return image_trouble(engine)


def docker(*arguments: str, input: str | None = None) -> str:
    """What a command of Docker prints; it must not fail."""
    done = subprocess.run(["docker", *arguments], input=input, capture_output=True, text=True, check=True)
    return done.stdout


def project(out: Path) -> str:
    """The compose project of the run of a results directory that has no result."""
    (plan,) = [path for path in out.glob("*/plan.json") if not (path.parent / "result.json").exists()]
    argv = json.loads(plan.read_text())["cluster"]["processes"][0]["argv"]
    return str(argv[argv.index("-p") + 1])


def containers(out: Path) -> list[str]:
    """Names of the containers of this run."""
    return docker("ps", "-a", "--format", "{{.Names}}", "--filter", f"name=^{project(out)}-").split()


def container(out: Path, name: str) -> str:
    (found,) = [each for each in containers(out) if each.endswith(f"-{name}")]
    return found


def leftovers(label: str) -> list[str]:
    """Containers, networks and volumes that carry a label: kind and name of each."""
    found = []
    for kind, name in (("container", "Names"), ("network", "Name"), ("volume", "Name")):
        every = ["--all"] if kind == "container" else []
        show = ["--format", f"{{{{.{name}}}}}", "--filter", f"label={label}"]
        found += [f"{kind} {line}" for line in docker(kind, "ls", *every, *show).split()]
    return found


@contextmanager
def nothing_left() -> Iterator[None]:
    """Afterwards, there are no more containers, networks and volumes of orchestrators than before."""
    before = {*leftovers(LABEL)}
    yield
    with suppress(AssertionError):
        wait_until(lambda: {*leftovers(LABEL)} <= before, timeout_s=60)
    assert {*leftovers(LABEL)} - before == set()
