"""Ranks agree on the point at which they stop, through files and without exchanging a message."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainer.training.checkpoint_store import CheckpointError
from trainer.training.stopping import SAVED, StopAgreement, request_stop

POLL_S = 0.01


def stopped_at(directory: Path, first: Sequence[int], last: int) -> list[int | None]:
    """The points at which ranks stop that begin at `first`, have a stop requested, and end at `last`."""
    ranks = len(first)
    found: list[int | None] = [None] * ranks
    requested = threading.Event()

    def run(rank: int) -> None:
        agreement = StopAgreement(directory, rank, ranks, POLL_S)
        agreement.watch(first[rank])
        requested.wait()
        for point in range(first[rank] + 1, last + 1):
            # Steps take a while, as those of a rank that computes.
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
    while not directory.exists():
        threading.Event().wait(POLL_S)
    assert request_stop(directory, "a test")
    requested.set()
    for thread in threads:
        thread.join(30)
    return found


@pytest.mark.parametrize("first", [(0,), (5, 5), (0, 3, 40)])
def test_ranks_stop_at_the_same_point(tmp_path: Path, first: Sequence[int]) -> None:
    found = stopped_at(tmp_path / "stop", first, 100_000)
    assert len({*found}) == 1
    assert found[0] is not None
    assert found[0] > max(first)


def test_nothing_happens_without_a_request(tmp_path: Path) -> None:
    agreement = StopAgreement(tmp_path / "stop", 0, 1, POLL_S)
    agreement.watch(0)
    try:
        assert not any(agreement.bounds(point) for point in range(100))
        assert [*(tmp_path / "stop").iterdir()] == []
    finally:
        agreement.close()


def test_request_before_training_is_refused(tmp_path: Path) -> None:
    assert not request_stop(tmp_path / "stop", "SIGTERM")


def test_first_reason_counts(tmp_path: Path) -> None:
    assert request_stop(tmp_path, "the time limit")
    assert request_stop(tmp_path, "SIGTERM")
    assert StopAgreement(tmp_path, 1, 2).saved() == "the time limit"
    assert not (tmp_path / SAVED).exists()
    StopAgreement(tmp_path, 0, 2).saved()
    assert (tmp_path / SAVED).exists()


def test_missing_rank_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not agreed"):
        StopAgreement(tmp_path, 0, 2).wait(0)
