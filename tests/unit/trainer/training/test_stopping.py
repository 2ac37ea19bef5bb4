"""Mistakes in stopping at a checkpoint: points that ranks have passed or do not share, whose reason."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainer.training.checkpoint_store import CheckpointError
from trainer.training.stopping import MARGIN, REQUEST, SAVED, StopAgreement, request_stop

POLL_S = 0.01


@pytest.mark.parametrize("first", [(0,), (5, 5), (0, 3, 40)], ids=str)
def test_ranks_stop_at_the_same_point(tmp_path: Path, first: Sequence[int]) -> None:
    """They begin at `first`, and steps take a while, as those of a rank that computes."""
    ranks, requested = len(first), threading.Event()
    found: list[int | None] = [None] * ranks

    def run(rank: int) -> None:
        agreement = StopAgreement(tmp_path, rank, ranks, POLL_S)
        agreement.watch(first[rank])
        requested.wait()
        for point in range(first[rank] + 1, 100_000):
            if agreement.bounds(point):
                agreement.wait(20)
                if agreement.stops(point):
                    found[rank] = point
                    break
            threading.Event().wait(POLL_S / 2)
        agreement.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    assert request_stop(tmp_path, "a test")
    requested.set()
    for thread in threads:
        thread.join(30)
    assert len({*found}) == 1
    assert (found[0] or 0) > max(first)


def test_the_latest_point_of_all_ranks_counts(tmp_path: Path) -> None:
    """Each rank proposes a point ahead of it, further ahead the faster it is."""
    agreements = [StopAgreement(tmp_path, rank, 2, POLL_S) for rank in range(2)]
    for agreement, passed in zip(agreements, (3, 9), strict=True):
        agreement._passed = passed
    (tmp_path / REQUEST).write_text("a test")
    for agreement in agreements:
        threading.Thread(target=agreement._run, daemon=True).start()
    for agreement, passed in zip(agreements, (3, 9), strict=True):
        agreement.wait(10)
        assert agreement.agreed
        assert [agreement.bounds(point) for point in (passed, passed + 1)] == [False, True]
        assert [agreement.stops(point) for point in (9, 10, 11)] == [False, True, True]


def test_a_fast_rank_proposes_a_point_further_ahead(tmp_path: Path) -> None:
    agreement = StopAgreement(tmp_path, 0, 1, 60.0)

    class Waited(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            agreement.bounds(5)  # passed within one poll
            (tmp_path / REQUEST).write_text("a test")
            return False

    agreement._closed = Waited()
    agreement._run()
    assert [agreement.stops(point) for point in (5 + 5 * MARGIN, 6 + 5 * MARGIN)] == [False, True]


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
    assert StopAgreement(tmp_path, 1, 2).saved() == "the time limit"
    assert not (tmp_path / SAVED).exists()
    StopAgreement(tmp_path, 0, 2).saved()
    assert (tmp_path / SAVED).exists()
