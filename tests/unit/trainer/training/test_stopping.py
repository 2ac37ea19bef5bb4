"""Mistakes in stopping at a checkpoint: points that ranks have passed or do not share, whose reason."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trainer.training.checkpoint_store import CheckpointError
from trainer.training.stopping import MARGIN, REQUEST, SAVED, StopAgreement, request_stop

POLL_S = 0.01


class Passing(threading.Event):
    """Lets a rank pass five points within one poll, and asks it to stop."""

    def __init__(self, agreement: StopAgreement, directory: Path) -> None:
        super().__init__()
        self.agreement, self.directory = agreement, directory

    def wait(self, timeout: float | None = None) -> bool:
        self.agreement.bounds(5)
        (self.directory / REQUEST).touch()
        return False


def test_a_fast_rank_proposes_a_point_further_ahead_and_the_latest_point_counts(tmp_path: Path) -> None:
    slow, fast = (StopAgreement(tmp_path, rank, 2, POLL_S) for rank in range(2))
    slow._passed = 3
    fast._closed = Passing(fast, tmp_path)
    threads = [threading.Thread(target=each._run, daemon=True) for each in (fast, slow)]
    for thread in threads:
        thread.start()
    for agreement, bound in ((slow, 4), (fast, 6 + 5 * MARGIN)):
        agreement.wait(10)
        assert [agreement.stops(point) for point in (5 + 5 * MARGIN, 6 + 5 * MARGIN)] == [False, True]
        assert [agreement.bounds(point) for point in (bound - 1, bound)] == [False, True]


def test_nothing_happens_without_a_request(tmp_path: Path) -> None:
    assert not request_stop(tmp_path / "stop", "before training")
    agreement = StopAgreement(tmp_path / "stop", 0, 1, POLL_S)
    agreement.watch(0)
    assert not any(agreement.bounds(point) for point in range(100))
    assert [*(tmp_path / "stop").iterdir()] == []
    agreement.close()
    with pytest.raises(CheckpointError, match="not agreed"):
        agreement.wait(0)


def test_first_reason_counts(tmp_path: Path) -> None:
    assert request_stop(tmp_path, "the time limit")
    assert request_stop(tmp_path, "SIGTERM")
    for rank in (1, 0):
        assert StopAgreement(tmp_path, rank, 2).saved() == "the time limit"
        assert (tmp_path / SAVED).exists() is (rank == 0)
