"""Mistakes in where the time of runs went: shares that do not add up or are negative, long times."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.results.records import RunResult
from orchestrator.results.times import duration, time_line, time_shares
from tests.unit.report_support import SERIAL


def timed(**fields: Any) -> RunResult:
    """A run that trained for 8 s."""
    return SERIAL.model_copy(update={"wall_s": 15.0, "startup_s": 4.0, "teardown_s": 1.0, **fields})


@pytest.mark.parametrize(
    ("result", "shares"),
    [
        (timed(), {"training": 8.0, "evaluating": 2.0, "starting": 4.0, "stopping": 1.0}),
        (
            timed(engine_start_s=2.5, engine_stop_s=0.5),
            {
                "training": 8.0,
                "evaluating": 2.0,
                "starting": 1.5,
                "stopping": 0.5,
                "waiting for the engine": 3.0,
            },
        ),
        (timed(status="failed"), {"runs without training": 15.0}),
        (timed(startup_s=None), {"runs without training": 15.0}),
        # Trained longer than from the last start-up to the end: before a restart.
        (timed(wall_s=6.0), {"training": 1.0, "starting": 4.0, "stopping": 1.0}),
        # The engine starts containers after training began.
        (
            timed(engine_start_s=5.0),
            {"training": 8.0, "evaluating": 2.0, "stopping": 1.0, "waiting for the engine": 4.0},
        ),
    ],
)
def test_shares_add_up_to_the_wall_time(result: RunResult, shares: dict[str, float]) -> None:
    assert time_shares([result]) == pytest.approx(shares)
    assert sum(shares.values()) == pytest.approx(result.wall_s)
    assert time_shares([result, result]) == pytest.approx({name: 2 * s for name, s in shares.items()})


def test_the_line_lists_only_what_took_time() -> None:
    line = time_line([timed(status="failed", wall_s=3.0)])
    assert line == "Time of all runs: runs without training 3.0 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.5, "1 min"),
        (75, "1 min 15 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h"),
        (3690, "1 h 2 min"),  # rounded, not cut off
        (7170.5, "2 h"),
    ],
)
def test_a_time_is_rounded_to_its_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
