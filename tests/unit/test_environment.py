"""The machine and the software that a result was made with."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import environment as module
from orchestrator.environment import PACKAGES, cores, environment, installed

Quota = Callable[[str | None, int], None]


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch) -> Quota:
    """`quota("50000 100000", 8)`: the text of cpu.max (None: absent), and the cores of the machine."""

    def quota(text: str | None, allowed: int) -> None:
        monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)
        original = Path.read_text

        def read_text(path: Path, *arguments: str) -> str:
            if path != Path("/sys/fs/cgroup/cpu.max"):
                return original(path, *arguments)
            if text is None:
                raise FileNotFoundError(path)
            return text

        monkeypatch.setattr(Path, "read_text", read_text)

    return quota


@pytest.mark.parametrize(
    ("text", "allowed", "usable"),
    [
        (None, 8, 8),
        ("max 100000\n", 8, 8),
        ("400000 100000\n", 8, 4),
        ("400000 100000\n", 2, 2),
        ("250000 100000\n", 8, 2),
        ("40000 100000\n", 8, 1),
        ("odd", 3, 3),
    ],
)
def test_cores(quota: Quota, text: str | None, allowed: int, usable: int) -> None:
    quota(text, allowed)
    assert cores() == usable


def test_installed() -> None:
    assert installed("pytest") == pytest.__version__
    assert installed("no-such-package") is None


def test_environment_says_what_a_reader_needs() -> None:
    found = environment()
    assert found["python"] == platform.python_version()
    assert set(PACKAGES) < set(found)
    assert found["torch"]
    assert found["cores"] == cores() >= 1
    assert found["memory_gb"] > 0.1
    assert all(found.values())
    assert json.loads(json.dumps(found)) == found


def test_software_that_is_absent_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGES", ("no-such-package",))
    assert environment()["no-such-package"] == "not installed"


def test_outside_of_a_git_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "__file__", str(tmp_path / "environment.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment()["shardyard"] == "not a git checkout"
    monkeypatch.setenv("PATH", os.devnull)  # nor is there a git
    assert environment()["shardyard"] == "not a git checkout"
