"""Where the time of runs went."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.results.records import RunResult
from orchestrator.results.times import time_line, time_shares
from tests.unit.report_support import SERIAL


def timed(**fields: Any) -> RunResult:
    return SERIAL.model_copy(update={"wall_s": 15.0, "startup_s": 4.0, "teardown_s": 1.0, **fields})


def test_shares_add_up_to_the_wall_time() -> None:
    results = [
        timed(),
        timed(engine_start_s=2.5, engine_stop_s=0.5),
        timed(status="failed", wall_s=3.0),
        timed(startup_s=None, wall_s=7.0),
    ]
    shares = time_shares(results)
    train = SERIAL.train_s or 0.0
    assert sum(shares.values()) == pytest.approx(40.0)
    assert shares == pytest.approx(
        {
            "training": 2 * train,
            "evaluating": 2 * (10.0 - train),
            "starting": 4.0 + 1.5,
            "stopping": 1.0 + 0.5,
            "waiting for the engine": 3.0,
            "runs without training": 10.0,
        }
    )


def test_work_from_before_a_restart_leaves_no_negative_share() -> None:
    shares = time_shares([timed(wall_s=6.0)])  # trained longer than from the last start-up to the end
    assert shares == pytest.approx({"training": 1.0, "starting": 4.0, "stopping": 1.0})


def test_engine_that_starts_containers_after_training_began_leaves_no_negative_share() -> None:
    shares = time_shares([timed(engine_start_s=5.0)])
    assert shares["waiting for the engine"] == 4.0
    assert "starting" not in shares


def test_line_lists_only_what_took_time() -> None:
    assert (
        time_line([timed(status="failed", wall_s=3.0)]) == "Time of all runs: runs without training 3.0 s"
    )
