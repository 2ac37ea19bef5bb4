"""Waiting for others is told from moving bytes, after the fact."""

from __future__ import annotations

import time

import pytest

from tests.unit.conftest import FakeTime
from tests.unit.threads import together
from trainer.clock import Clock
from trainer.comm.base import Communicator, book_waits


def met(comm: Communicator, meetings: list[tuple[float, float]], extra_s: float = 0.0) -> dict[str, float]:
    """The seconds of a rank that met the others at these times, after `book_waits`."""
    now = FakeTime()
    comm.clock = Clock(now, now)
    comm.clock.start()
    with comm.clock.phase("communicate"):
        now.pass_(sum(left - entered for entered, left in meetings) + extra_s)
    comm.clock.stop()
    comm.traffic.meetings = meetings
    book_waits(comm)
    return comm.clock.seconds


@pytest.mark.parametrize(
    ("meetings", "waits"),
    [
        # Rank 1 is always last and never waits; the first two ranks wait for it.
        ([[(0, 6), (10, 13)], [(5, 6), (12, 13)], [(1, 6), (10, 13)]], [5 + 2, 0, 4 + 2]),
        # Each in turn is the last.
        ([[(0, 3), (9, 10)], [(2, 3), (6, 10)]], [2, 3]),
        # A broadcast's root may leave before the others come: it has waited no longer than it stayed.
        ([[(0, 1)], [(8, 9)]], [1, 0]),
        ([[(2, 3)], [(2, 3)]], [0, 0]),
        ([[(1e6, 1e6 + 0.001953125)], [(1e6 + 0.0009765625, 1e6 + 0.001953125)]], [0.0009765625, 0]),
    ],
)
def test_a_rank_waits_from_its_entry_to_the_last_ones(
    meetings: list[list[tuple[float, float]]], waits: list[float]
) -> None:
    booked = together(len(meetings), lambda comm: met(comm, meetings[comm.rank], extra_s=0.5))
    for rank, (seconds, wait) in enumerate(zip(booked, waits, strict=True)):
        whole = sum(left - entered for entered, left in meetings[rank]) + 0.5
        assert seconds["wait"] == pytest.approx(wait)
        assert seconds["communicate"] == pytest.approx(whole - wait)


def test_in_a_shift_a_rank_waits_for_the_one_it_hears() -> None:
    """Each hears the one before it; the first rank comes late, so the second waits, and not the third."""
    spans = [(5.0, 6.0), (0.0, 6.0), (1.0, 3.0)]

    def body(comm: Communicator) -> dict[str, float]:
        entered, left = spans[comm.rank]
        comm.traffic.shifts = [(entered, left, (comm.rank - 1) % 3)]
        return met(comm, [], extra_s=left - entered)

    assert [seconds["wait"] for seconds in together(3, body)] == pytest.approx([0, 5, 0])


def test_who_is_alone_or_met_nobody_did_not_wait() -> None:
    (seconds,) = together(1, lambda comm: met(comm, [(0, 5)]))
    assert (seconds["wait"], seconds["communicate"]) == (0, 5)
    for seconds in together(2, lambda comm: met(comm, [])):
        assert seconds["wait"] == 0


def test_booking_waits_is_not_itself_counted() -> None:
    def body(comm: Communicator) -> Communicator:
        met(comm, [(0, 1)] * 3)
        return comm

    for comm in together(2, body):
        assert comm.traffic.bytes_sent == 0
        assert len(comm.traffic.meetings) == 3


def test_a_late_rank_is_waited_for_in_earnest() -> None:
    def body(comm: Communicator) -> dict[str, float]:
        if comm.rank == 1:
            time.sleep(0.2)
        comm.barrier()
        comm.clock.stop()
        book_waits(comm)
        return comm.clock.seconds

    early, late = together(2, body)
    assert early["wait"] > 0.05
    assert late["wait"] < 0.02
