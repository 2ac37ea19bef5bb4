"""The recorded machine and software of a result."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.results import environment as module
from orchestrator.results.environment import PACKAGES, cores, environment, gpus, installed

Quota = Callable[[Mapping[str, str], int], None]


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch) -> Quota:
    """`quota({"cpu.max": "50000 100000"}, 8)`: the files of the control group, and the machine's cores."""

    def quota(files: Mapping[str, str], allowed: int) -> None:
        monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)
        original = Path.read_text

        def read_text(path: Path, *arguments: str) -> str:
            if not path.is_relative_to("/sys/fs/cgroup"):
                return original(path, *arguments)
            name = str(path.relative_to("/sys/fs/cgroup"))
            if name not in files:
                raise FileNotFoundError(path)
            return files[name]

        monkeypatch.setattr(Path, "read_text", read_text)

    return quota


@pytest.mark.parametrize(
    ("text", "allowed", "usable"),
    [
        ("max 100000\n", 8, 8),
        ("400000 100000\n", 8, 4),
        ("400000 100000\n", 2, 2),
        ("150000 100000\n", 8, 1.5),
        ("40000 100000\n", 8, 0.4),
        ("33333 100000\n", 8, 0.33),
        ("1000 1000000\n", 8, 0.01),
        ("odd", 3, 3),
        ("", 3, 3),
    ],
)
def test_cores(quota: Quota, text: str, allowed: int, usable: float) -> None:
    quota({"cpu.max": text}, allowed)
    assert cores() == usable


@pytest.mark.parametrize(
    ("quota_us", "period_us", "usable"),
    [("-1\n", "100000\n", 8), ("150000\n", "100000\n", 1.5), ("25000\n", "50000\n", 0.5), ("1", "0", 8)],
)
def test_cores_of_a_control_group_of_version_1(
    quota: Quota, quota_us: str, period_us: str, usable: float
) -> None:
    quota({"cpu/cpu.cfs_quota_us": quota_us, "cpu/cpu.cfs_period_us": period_us}, 8)
    assert cores() == usable


def test_cores_without_a_control_group(quota: Quota) -> None:
    quota({}, 8)
    assert cores() == 8


SMI = """#!/bin/sh
[ "$1" = -L ] || exit 2
echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'
echo '  MIG 1g.10gb Device 0: (UUID: MIG-1)'
echo 'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)'
"""


@pytest.mark.parametrize(
    ("script", "found"),
    [(SMI, 2), ("#!/bin/sh\necho 'No devices found.'", 0), (SMI + "exit 9\n", 0), (None, 0)],
)
def test_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, found: int) -> None:
    if script:
        (tmp_path / "nvidia-smi").write_text(script)
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    gpus.cache_clear()
    assert gpus() == found
    gpus.cache_clear()


def test_installed() -> None:
    assert installed("pytest") == pytest.__version__
    assert installed("no-such-package") is None


def test_environment_is_complete() -> None:
    found = environment()
    assert found["python"] == platform.python_version()
    assert set(PACKAGES) < set(found)
    assert found["torch"]
    assert found["cores"] == cores() > 0
    assert found["memory_gb"] > 0.1
    assert all(found.values())
    assert json.loads(json.dumps(found)) == found


def test_absent_software_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGES", ("no-such-package",))
    assert environment()["no-such-package"] == "not installed"


def test_source_outside_a_git_checkout_is_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "in_checkout", lambda: False)
    assert environment()["shardyard"] == __version__
