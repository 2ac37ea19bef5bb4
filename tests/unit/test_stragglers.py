"""Straggler attribution: waiting is separated from communication after training."""

from __future__ import annotations

import time

import pytest

from tests.unit.conftest import FakeTime
from tests.unit.threads import together
from tests.unit.training import train
from trainer.comm.base import Communicator
from trainer.comm.stragglers import attribute_stragglers
from trainer.core.clock import Clock


def met(comm: Communicator, meetings: list[tuple[float, float]], extra_s: float = 0.0) -> dict[str, float]:
    """The seconds of a rank that met the others at these times, after `attribute_stragglers`."""
    return reported(comm, meetings, extra_s)[0]


def reported(
    comm: Communicator, meetings: list[tuple[float, float]], extra_s: float = 0.0
) -> tuple[dict[str, float], list[float]]:
    """As `met`, and whom it has waited for."""
    now = FakeTime()
    comm.clock = Clock(now, now)
    for part in comm.subgroups:
        part.clock = comm.clock
    comm.clock.start()
    with comm.clock.phase("communicate"):
        now.pass_(sum(left - entered for entered, left in meetings) + extra_s)
    comm.clock.stop()
    comm.traffic.collectives = meetings
    wait_s_by_rank = attribute_stragglers(comm)
    return comm.clock.seconds, wait_s_by_rank


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


def test_in_a_receive_a_rank_waits_until_the_sender_has_begun() -> None:
    """Rank 0 sends at 3 and at 7 to rank 1, and between that to rank 2, who is late for it."""
    spans: list[list[tuple[float, float, int]]] = [
        [],
        [(1.0, 4.0, 0), (5.0, 9.0, 0)],  # waits 2 and 2
        [(8.0, 9.0, 0)],  # it has been there for long
    ]

    def body(comm: Communicator) -> dict[str, float]:
        if comm.rank == 0:
            comm.traffic.sends = [(3.0, 1), (4.0, 2), (7.0, 1)]
            # The ends of its sends: of the last one first, which had been received from 5 on; the other
            # two it waited for from 7.5 on: rank 1 was there by then, rank 2 at 8.
            comm.traffic.send_waits = [(7.0, 7.5, 1, 1), (7.5, 7.6, 1, 0), (7.6, 9.5, 2, 0)]
            return met(comm, [], extra_s=2.5)
        comm.traffic.receives = spans[comm.rank]
        return met(comm, [], extra_s=sum(left - entered for entered, left, _ in spans[comm.rank]))

    assert [seconds["wait"] for seconds in together(3, body)] == pytest.approx([0.4, 4, 0])


def test_what_is_waited_for_in_a_part_is_booked_too() -> None:
    def body(comm: Communicator) -> dict[str, float]:
        part = comm.split(colour=comm.rank // 2)
        part.traffic.collectives = [(float(comm.rank), 4.0)]
        return met(comm, [], extra_s=4.0 - comm.rank)

    # Each waits for the one of its own colour that comes later.
    assert [seconds["wait"] for seconds in together(4, body)] == pytest.approx([1, 0, 1, 0])


def test_who_was_waited_for_is_told_rank_by_rank() -> None:
    """Rank 2 comes last to the first meeting, rank 0 to the second; in the shift rank 1 hears rank 0 late,
    and in its part it waits for rank 2; then it waits 0.5 s for rank 0 to send."""

    def body(comm: Communicator) -> tuple[dict[str, float], list[float]]:
        part = comm.split(colour=int(comm.rank > 0))  # 0 alone; 1 and 2
        if comm.rank > 0:
            part.traffic.collectives = [(30.0 + 2 * comm.rank, 34.5)]
        entered = [25.0, 22.0, 20.0][comm.rank]
        comm.traffic.shifts = [(entered, 26.0, (comm.rank - 1) % 3)]
        if comm.rank == 0:
            comm.traffic.sends = [(40.5, 1)]
        if comm.rank == 1:
            comm.traffic.receives = [(40.0, 41.0, 0)]
        meetings = [[(0.0, 6.0), (13.0, 14.0)], [(1.0, 6.0), (10.0, 14.0)], [(5.0, 6.0), (12.0, 14.0)]]
        return reported(comm, meetings[comm.rank], extra_s=20.0)

    booked = together(3, body)
    expected = [[0, 0, 5], [3 + 3 + 0.5, 0, 4 + 2], [1, 2, 0]]
    for (seconds, wait_s_by_rank), wanted in zip(booked, expected, strict=True):
        assert wait_s_by_rank == pytest.approx(wanted)
        assert sum(wait_s_by_rank) == pytest.approx(seconds["wait"])


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
        assert len(comm.traffic.collectives) == 3


def test_a_late_rank_is_waited_for_in_earnest() -> None:
    def body(comm: Communicator) -> dict[str, float]:
        if comm.rank == 1:
            time.sleep(0.2)
        comm.barrier()
        comm.clock.stop()
        attribute_stragglers(comm)
        return comm.clock.seconds

    early, late = together(2, body)
    assert early["wait"] > 0.05
    assert late["wait"] < 0.02


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("all_reduce", 3), ("all_gather", 2), ("gossip", 3), ("pipeline", 2), ("hybrid", 4)],
)
def test_waits_of_a_training_add_up_to_its_phase(strategy: str, ranks: int) -> None:
    for rank, result in enumerate(train(strategy, ranks).results):
        assert result.wait_s_by_rank is not None
        assert len(result.wait_s_by_rank) == ranks
        assert result.wait_s_by_rank[rank] == 0
        assert sum(result.wait_s_by_rank) == pytest.approx(result.seconds["wait"], abs=1e-5)


def test_who_is_alone_waits_for_nobody() -> None:
    (result,) = train("serial", 1).results
    assert result.wait_s_by_rank is None
