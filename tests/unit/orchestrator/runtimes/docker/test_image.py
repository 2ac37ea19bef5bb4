"""Mistakes in the trainer image: what its digest covers, when it is stale, how it is built."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from orchestrator.errors import InputError
from orchestrator.results.environment import PACKAGES
from orchestrator.runtimes.docker import image as module
from orchestrator.runtimes.docker.engine import Engine, EngineError
from orchestrator.runtimes.docker.image import IMAGE, LABEL, build, image_trouble, image_with, source_digest
from tests.unit.conftest import PROJECT

FILES = {
    "docker/Dockerfile": "FROM debian",
    "trainer/requirements.txt": "# pinned\ntorch==2.13.0\nnumpy==2.4.6\n\njoblib==1.6.0\n",
    "trainer/node/coordinator.py": "x = 1\n",
    "shardyard/__init__.py": "",
}
OTHERS = ("tests/test_x.py", "orchestrator/cli.py", "compose/ddp.yml", "trainer/__pycache__/a.pyc")


def test_digest_covers_the_names_and_contents_of_the_sources_of_the_image_alone(tmp_path: Path) -> None:
    def digest(**changes: str) -> str:
        for name, text in {**FILES, **changes}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        found = source_digest(tmp_path)
        for name in changes:
            (tmp_path / name).unlink()
        return found

    unchanged = digest()
    assert len(unchanged) == 16
    assert digest(**dict.fromkeys(OTHERS, "anything")) == unchanged
    added: list[dict[str, str]] = [{"trainer/a.py": "one"}, {"trainer/b.py": "one"}]
    added += [{"trainer/a.py": "one", "trainer/b.py": "two"}, {"trainer/a.py": "onetrainer/b.pytwo"}]
    changed = [{name: text + " "} for name, text in FILES.items()]
    assert len({unchanged, *(digest(**each) for each in (*added, *changed))}) == 1 + 4 + len(FILES)
    assert digest() == unchanged
    assert module.pinned_packages(tmp_path) == {"torch": "2.13.0", "numpy": "2.4.6"}
    assert module.pinned_packages().keys() == set(PACKAGES)


def test_dockerfile_copies_only_what_the_digest_covers() -> None:
    lines = (PROJECT / "docker" / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY ")]
    assert copied == ["trainer/requirements.txt", "trainer", "shardyard"]
    files = [path for name in copied[1:] for path in (PROJECT / name).rglob("*") if path.is_file()]
    others = [path for path in files if path.suffix != ".py" and "__pycache__" not in path.parts]
    assert {path.name for path in others} <= {"requirements.txt", "py.typed"}  # the second is empty


class Builder:
    """An engine with images, and the builds, which exit with `code`. Pip has the configuration `pip`."""

    def __init__(self) -> None:
        client: Any = SimpleNamespace(images=self)
        self.engine = Engine(client, "unix:///x.sock", "26.1", "2.26", 4)
        self.labels_of: dict[str, dict[str, str]] = {}  # of images
        self.environments: list[dict[str, str]] = []
        self.pip, self.code = "", 0
        self.error: Exception | None = None

    def get(self, name: str) -> Any:
        if name not in self.labels_of:
            raise ImageNotFound("No such image")
        return SimpleNamespace(labels=self.labels_of[name], id=f"id of {name}")

    def run(self, command: list[str], env: Any = None, **_: Any) -> Any:
        if "pip" in command:
            return SimpleNamespace(stdout=self.pip)
        if self.error:
            raise self.error
        self.environments.append(env)
        return SimpleNamespace(returncode=self.code, stdout="#9 noise\n", stderr="#9 ERROR: no match\n")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    monkeypatch.setattr(subprocess, "run", made.run)
    for name in ("SHARDYARD_WHEELS", "SHARDYARD_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    return made


def test_image_that_is_missing_or_of_other_sources_is_named(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = "does not say which sources it was built from"
    stale = "was built from other sources than these"
    labels = {None: unknown, "unknown": unknown, "0123456789abcdef": stale, source_digest(): None}
    for variable, name in (("mine:gpu", "mine:gpu"), ("", IMAGE)):
        monkeypatch.setenv("SHARDYARD_IMAGE", variable)
        assert image_trouble(builder.engine) == f"image {name} is not there: make image"
        for label, trouble in labels.items():
            builder.labels_of[name] = {LABEL: label} if label else {}
            expected = f"image {name} {trouble}: make image" if trouble else None
            assert image_trouble(builder.engine) == expected
    assert f"image: ${{SHARDYARD_IMAGE:-{IMAGE}}}" in (PROJECT / "compose/common.yml").read_text()


def test_build_sets_the_digest_and_the_wheels(builder: Builder, tmp_path: Path) -> None:
    builder.code, builder.pip = 7, f"global.find-links='{PROJECT}'"
    assert build(builder.engine, None) == build(builder.engine, tmp_path / "x" / "..") == 7
    source = {**os.environ, "SHARDYARD_SOURCE": source_digest()}
    assert builder.environments == [{**source, "SHARDYARD_WHEELS": str(at)} for at in (PROJECT, tmp_path)]
    builder.error = FileNotFoundError(2, "No such file or directory")
    with pytest.raises(EngineError, match="docker cannot be run"):
        build(builder.engine, None)


def test_wheels_are_those_of_pip_unless_the_user_has_set_others(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configurations = {
        "global.find-links='\\n/no/such\\n{here}'": tmp_path,
        ":env:.find-links='file://{here}'": tmp_path,
        "global.find-links='https://example.com/wheels'": None,
        "global.index-url='{here}'": None,
    }
    for configuration, found in configurations.items():
        builder.pip = configuration.format(here=tmp_path)
        assert module._wheels_of_pip() == found, configuration
    monkeypatch.setenv("SHARDYARD_WHEELS", "/own")
    assert module._wheels_of_pip() is None


def test_packages_of_a_sweep_are_installed_once_for_each_image(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "requirements.txt"
    builder.code, builder.labels_of = 1, {IMAGE: {}, "other": {}}
    for image, content in ((IMAGE, "einops\n"), (IMAGE, "einops==1\n"), ("other", "einops==1\n")):
        monkeypatch.setenv("SHARDYARD_IMAGE", image)
        file.write_text(content)
        with pytest.raises(InputError) as caught:
            image_with(builder.engine, file)
        assert str(caught.value) == f"{file}: cannot be installed in the image: #9 ERROR: no match"
    names = [environment["SHARDYARD_DERIVED"] for environment in builder.environments]
    builder.labels_of[names[-1]] = {}
    assert image_with(builder.engine, file) == f"id of {names[-1]}"
    assert len({*names}) == len(builder.environments) == 3
    assert not Path(builder.environments[0]["SHARDYARD_REQUIREMENTS"]).exists()
