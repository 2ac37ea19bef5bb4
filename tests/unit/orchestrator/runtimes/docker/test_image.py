"""The trainer image: the digest of its sources, and building it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from orchestrator.results.environment import PACKAGES
from orchestrator.runtimes.docker import image as module
from orchestrator.runtimes.docker.engine import Engine, EngineError
from orchestrator.runtimes.docker.image import (
    IMAGE,
    build,
    image_name,
    image_trouble,
    pinned_packages,
    source_digest,
)
from tests.unit.conftest import PROJECT

FILES = {
    "docker/Dockerfile": "FROM debian",
    "trainer/requirements.txt": "# pinned\ntorch==2.13.0\nnumpy==2.4.6\n\njoblib==1.6.0\n",
    "trainer/__init__.py": "",
    "trainer/cluster/coordinator.py": "x = 1\n",
    "shardyard/__init__.py": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        write(tmp_path, name, text)
    return tmp_path


def write(project: Path, name: str, text: str) -> None:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(text)


# The digest


@pytest.mark.parametrize("name", FILES)
def test_digest_covers_all_sources(project: Path, name: str) -> None:
    before = source_digest(project)
    write(project, name, FILES[name] + " ")
    assert source_digest(project) != before
    write(project, name, FILES[name])
    assert source_digest(project) == before
    assert len(before) == 16


@pytest.mark.parametrize(
    "name",
    [
        "tests/unit/test_x.py",
        "orchestrator/cli.py",
        "README.md",
        "docker/engine",
        "compose/ddp.yml",
        "trainer/cluster/__pycache__/agent.cpython-311.pyc",
    ],
)
def test_digest_covers_nothing_else(project: Path, name: str) -> None:
    before = source_digest(project)
    write(project, name, "anything")
    assert source_digest(project) == before


def test_digest_covers_file_names(project: Path) -> None:
    digests = [source_digest(project)]
    write(project, "trainer/new.py", "")
    digests.append(source_digest(project))
    (project / "trainer/new.py").rename(project / "trainer/other.py")
    digests.append(source_digest(project))
    assert len(set(digests)) == 3
    (project / "trainer/other.py").unlink()
    assert source_digest(project) == digests[0]


def test_digest_delimits_files(project: Path) -> None:
    write(project, "trainer/a.py", "one")
    write(project, "trainer/b.py", "two")
    before = source_digest(project)
    (project / "trainer/b.py").unlink()
    write(project, "trainer/a.py", "onetrainer/b.pytwo")
    assert source_digest(project) != before


def test_dockerfile_copies_only_what_the_digest_covers() -> None:
    copied = [
        line.split()[1]
        for line in (PROJECT / "docker" / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ")
    ]
    assert copied == ["trainer/requirements.txt", "trainer", "shardyard"]
    others = {
        path.suffix
        for package in ("trainer", "shardyard")
        for path in (PROJECT / package).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.name not in ("requirements.txt", "py.typed")  # the second is empty
    }
    assert others == {".py"}


def test_pinned_packages(project: Path) -> None:
    assert pinned_packages(project) == {"torch": "2.13.0", "numpy": "2.4.6"}
    assert pinned_packages().keys() == set(PACKAGES)


# The engine's image


def engine(labels: dict[str, str] | None) -> Engine:
    def get(name: str) -> Any:
        asked.append(name)
        if labels is None:
            raise ImageNotFound("No such image")
        return SimpleNamespace(labels=labels)

    asked: list[str] = []
    client: Any = SimpleNamespace(images=SimpleNamespace(get=get), asked=asked)
    return Engine(client, "unix:///x.sock", "26.1", "2.26", 4)


@pytest.mark.parametrize(
    ("labels", "trouble"),
    [
        (None, "image shardyard-trainer is not there: make image"),
        ({}, "image shardyard-trainer does not say which sources it was built from: make image"),
        (
            {"shardyard.source": "unknown"},
            "image shardyard-trainer does not say which sources it was built from: make image",
        ),
        (
            {"shardyard.source": "0123456789abcdef"},
            "image shardyard-trainer was built from other sources than these: make image",
        ),
        ({"shardyard.source": source_digest()}, None),
    ],
    ids=["missing", "unlabelled", "built by compose", "stale", "fine"],
)
def test_image_trouble(
    monkeypatch: pytest.MonkeyPatch, labels: dict[str, str] | None, trouble: str | None
) -> None:
    monkeypatch.delenv("SHARDYARD_IMAGE", raising=False)
    assert image_trouble(engine(labels)) == trouble


@pytest.mark.parametrize(("variable", "name"), [("mine:gpu", "mine:gpu"), ("", IMAGE), (None, IMAGE)])
def test_image_name_equals_compose(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, name: str
) -> None:
    monkeypatch.delenv("SHARDYARD_IMAGE", raising=False)
    if variable is not None:
        monkeypatch.setenv("SHARDYARD_IMAGE", variable)
    asked: Any = engine(None)
    assert image_name() == name
    assert f"image {name} is not there" in str(image_trouble(asked))
    assert asked.client.asked == [name]
    assert f"image: ${{SHARDYARD_IMAGE:-{IMAGE}}}" in (PROJECT / "compose/common.yml").read_text()


# Building


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """The build commands with their environments; pip has no configured wheels."""
    commands: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], env: dict[str, str] | None = None, **_: Any) -> Any:
        if "pip" in command:
            return SimpleNamespace(stdout="")
        assert env is not None
        commands.append((command, env))
        return SimpleNamespace(returncode=7)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("SHARDYARD_WHEELS", raising=False)
    return commands


def test_build_sets_the_digest(built: list[tuple[list[str], dict[str, str]]]) -> None:
    assert build(engine(None), None) == 7
    ((command, environment),) = built
    file = str(PROJECT / "compose" / "ddp.yml")
    assert command == ["docker", "--host", "unix:///x.sock", "compose", "-f", file, "build", "data"]
    assert environment["SHARDYARD_SOURCE"] == source_digest()
    assert "SHARDYARD_WHEELS" not in environment
    assert environment["PATH"] == os.environ["PATH"]


def test_build_with_wheels(built: list[tuple[list[str], dict[str, str]]], tmp_path: Path) -> None:
    build(engine(None), tmp_path / "x" / "..")
    assert built[0][1]["SHARDYARD_WHEELS"] == str(tmp_path)


@pytest.mark.parametrize(
    ("configuration", "found"),
    [
        ("global.find-links='{here}'", True),
        ("global.find-links='\\n/no/such\\n{here}'", True),
        (":env:.find-links='file://{here}'", True),
        ("global.find-links='https://example.com/wheels'", False),
        ("global.index-url='{here}'", False),
        ("", False),
    ],
)
def test_wheels_of_pip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configuration: str, found: bool
) -> None:
    listed = SimpleNamespace(stdout=configuration.format(here=tmp_path) + "\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: listed)
    monkeypatch.delenv("SHARDYARD_WHEELS", raising=False)
    assert module._wheels_of_pip() == (tmp_path if found else None)
    monkeypatch.setenv("SHARDYARD_WHEELS", "/own")  # compose reads it from the environment
    assert module._wheels_of_pip() is None


def test_build_without_a_docker_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(EngineError, match="docker cannot be run"):
        build(engine(None), None)
