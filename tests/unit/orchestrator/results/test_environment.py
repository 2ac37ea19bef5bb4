"""Mistakes in the recorded machine and times: which quota holds, absent software, shares that add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import __version__
from orchestrator.results import environment as module
from orchestrator.results.environment import PACKAGES, cores, environment, gpus
from orchestrator.results.times import PURPOSES, duration, time_line, time_shares
from tests.unit.report_support import SERIAL

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
    assert set(PACKAGES) < set(found)
    assert all(found.values())
    assert json.loads(json.dumps(found)) == found
    monkeypatch.setattr(module, "PACKAGES", ("no-such-package",))
    monkeypatch.setattr(module, "in_checkout", lambda: False)
    found = environment()
    assert (found["no-such-package"], found["shardyard"]) == ("not installed", __version__)


# Where the time went


@pytest.mark.parametrize(
    ("changed", "expected"),  # the seconds of each purpose, in order
    [
        ({}, (8, 2, 4, 1, 0, 0)),
        ({"engine_start_s": 2.5, "engine_stop_s": 0.5}, (8, 2, 1.5, 0.5, 3, 0)),
        ({"status": "failed"}, (0, 0, 0, 0, 0, 15)),
        ({"startup_s": None}, (0, 0, 0, 0, 0, 15)),
        ({"wall_s": 6.0}, (1, 0, 4, 1, 0, 0)),  # trained for longer: before a restart
        ({"engine_start_s": 5.0}, (8, 2, 0, 1, 4, 0)),  # it starts containers after training began
    ],
)
def test_shares_add_up_to_the_wall_time(changed: dict[str, Any], expected: tuple[float, ...]) -> None:
    names = [name for name in PURPOSES if "virtual" not in name]
    known = {name: seconds for name, seconds in zip(names, expected, strict=True) if seconds}
    times = {"wall_s": 15.0, "startup_s": 4.0, "teardown_s": 1.0}
    result = SERIAL.model_copy(update=times | changed)  # which trained for 8 s
    assert sum(expected) == result.wall_s
    assert time_shares([result, result]) == pytest.approx({name: 2 * each for name, each in known.items()})


def test_a_time_is_rounded_to_its_units_and_only_what_took_time_is_listed() -> None:
    times = {0.4: "0 s", 75: "1 min 15 s", 3599.4: "59 min 59 s", 3600: "1 h", 3690: "1 h 2 min"}
    assert {seconds: duration(seconds) for seconds in times} == times
    line = time_line([SERIAL.model_copy(update={"status": "failed", "wall_s": 3.0})])
    assert line == "Time of all runs: runs without training 3.0 s"
