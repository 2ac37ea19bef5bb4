"""Mistakes in where the time of runs went: shares that do not add up or are negative, long times."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.results.records import RunResult
from orchestrator.results.times import PURPOSES, duration, time_line, time_shares
from tests.unit.report_support import SERIAL


def timed(**fields: Any) -> RunResult:
    """A run that trained for 8 s."""
    return SERIAL.model_copy(update={"wall_s": 15.0, "startup_s": 4.0, "teardown_s": 1.0, **fields})


@pytest.mark.parametrize(
    (
        "changed",
        "expected",
    ),  # the seconds of each purpose, in order
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
    result = timed(**changed)
    assert sum(expected) == result.wall_s
    assert time_shares([result, result]) == pytest.approx({name: 2 * each for name, each in known.items()})


def test_the_line_lists_only_what_took_time() -> None:
    line = time_line([timed(status="failed", wall_s=3.0)])
    assert line == "Time of all runs: runs without training 3.0 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (75, "1 min 15 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h"),
        (3690, "1 h 2 min"),
        (7171, "2 h"),
    ],
)
def test_a_time_is_rounded_to_its_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
