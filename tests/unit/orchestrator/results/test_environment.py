"""Mistakes in the recorded machine: which quota holds, versions of control groups, absent software."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.results import environment as module
from orchestrator.results.environment import PACKAGES, cores, environment, gpus, installed

V2, QUOTA, PERIOD = "QUOTA", "QUOTA_V1", "PERIOD_V1"


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, 8),
        ({V2: "max 100000\n"}, 8),
        ({V2: "900000 100000\n"}, 8),  # more than the machine has
        ({V2: "33333 100000\n"}, 0.33),
        ({V2: "1000 1000000\n"}, 0.01),
        ({V2: "odd"}, 8),
        ({QUOTA: "-1\n", PERIOD: "100000\n"}, 8),
        ({QUOTA: "25000\n", PERIOD: "50000\n"}, 0.5),
        ({QUOTA: "1", PERIOD: "0"}, 8),
        ({V2: "400000 100000\n", QUOTA: "200000\n", PERIOD: "100000\n"}, 2),  # the smaller one holds
    ],
)
def test_cores_are_those_of_the_smallest_quota(
    files: dict[str, str], usable: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine with eight."""
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name in (V2, QUOTA, PERIOD):
        monkeypatch.setattr(module, name, tmp_path / name)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cores() == usable


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


def test_environment_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    found = environment()
    assert found["python"] == platform.python_version()
    assert set(PACKAGES) < set(found)
    assert found["cores"] == cores() > 0
    assert all(found.values())
    assert json.loads(json.dumps(found)) == found
    assert installed("pytest") == pytest.__version__
    monkeypatch.setattr(module, "PACKAGES", ("no-such-package",))
    monkeypatch.setattr(module, "in_checkout", lambda: False)
    found = environment()
    assert (found["no-such-package"], found["shardyard"]) == ("not installed", __version__)
