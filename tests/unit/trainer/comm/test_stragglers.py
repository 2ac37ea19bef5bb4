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


def seconds_after_attribution(
    comm: Communicator, collectives: list[tuple[float, float]], extra_s: float = 0.0
) -> dict[str, float]:
    """Seconds per phase of a rank after `attribute_stragglers`. collectives: enter and leave times."""
    return attribution_of(comm, collectives, extra_s)[0]


def attribution_of(
    comm: Communicator, collectives: list[tuple[float, float]], extra_s: float = 0.0
) -> tuple[dict[str, float], dict[int, float]]:
    """As `seconds_after_attribution`, and the seconds that the rank waited for each other rank."""
    now = FakeTime()
    comm.clock = Clock(now, now)
    for subgroup in comm.subgroups:
        subgroup.clock = comm.clock
    comm.clock.start()
    with comm.clock.phase("communicate"):
        now.pass_(sum(left - entered for entered, left in collectives) + extra_s)
    comm.clock.stop()
    comm.traffic.collectives = collectives
    wait_s_by_rank = attribute_stragglers(comm)
    return comm.clock.seconds, wait_s_by_rank


@pytest.mark.parametrize(
    ("collectives", "waits"),
    [
        # Rank 1 is always last and never waits; ranks 0 and 2 wait for it.
        ([[(0, 6), (10, 13)], [(5, 6), (12, 13)], [(1, 6), (10, 13)]], [5 + 2, 0, 4 + 2]),
        # The ranks take turns at being last.
        ([[(0, 3), (9, 10)], [(2, 3), (6, 10)]], [2, 3]),
        # A broadcast's root may leave before the others enter: its wait is at most the time it was inside.
        ([[(0, 1)], [(8, 9)]], [1, 0]),
        ([[(2, 3)], [(2, 3)]], [0, 0]),
        ([[(1e6, 1e6 + 0.001953125)], [(1e6 + 0.0009765625, 1e6 + 0.001953125)]], [0.0009765625, 0]),
    ],
)
def test_collective_wait_lasts_until_the_last_rank_enters(
    collectives: list[list[tuple[float, float]]], waits: list[float]
) -> None:
    measured = together(
        len(collectives), lambda comm: seconds_after_attribution(comm, collectives[comm.rank], extra_s=0.5)
    )
    for rank, (seconds, wait) in enumerate(zip(measured, waits, strict=True)):
        whole = sum(left - entered for entered, left in collectives[rank]) + 0.5
        assert seconds["wait"] == pytest.approx(wait)
        assert seconds["communicate"] == pytest.approx(whole - wait)


def test_shift_waits_for_the_source_rank() -> None:
    """Each rank receives from its predecessor. Rank 0 is late, so rank 1 waits and rank 2 does not."""
    spans = [(5.0, 6.0), (0.0, 6.0), (1.0, 3.0)]

    def body(comm: Communicator) -> dict[str, float]:
        entered, left = spans[comm.rank]
        comm.traffic.shifts = [(entered, left, (comm.rank - 1) % 3)]
        return seconds_after_attribution(comm, [], extra_s=left - entered)

    assert [seconds["wait"] for seconds in together(3, body)] == pytest.approx([0, 5, 0])


def test_receive_waits_until_the_sender_starts() -> None:
    """Rank 0 sends to rank 1 at 3 and 7, and to rank 2 at 4; rank 2 receives late."""
    spans: list[list[tuple[float, float, int]]] = [
        [],
        [(1.0, 4.0, 0), (5.0, 9.0, 0)],  # waits 2 s and 2 s
        [(8.0, 9.0, 0)],  # the message has been ready since 4: no wait
    ]

    def body(comm: Communicator) -> dict[str, float]:
        if comm.rank == 0:
            comm.traffic.sends = [(3.0, 1), (4.0, 2), (7.0, 1)]
            # Rank 0 completes its sends, the last one first. Rank 1 has started both receives by then;
            # rank 2 starts its receive at 8, so rank 0 waits 0.4 s.
            comm.traffic.send_waits = [(7.0, 7.5, 1, 1), (7.5, 7.6, 1, 0), (7.6, 9.5, 2, 0)]
            return seconds_after_attribution(comm, [], extra_s=2.5)
        comm.traffic.receives = spans[comm.rank]
        return seconds_after_attribution(
            comm, [], extra_s=sum(left - entered for entered, left, _ in spans[comm.rank])
        )

    assert [seconds["wait"] for seconds in together(3, body)] == pytest.approx([0.4, 4, 0])


def test_waits_in_subgroups_are_attributed() -> None:
    def body(comm: Communicator) -> dict[str, float]:
        subgroup = comm.split(colour=comm.rank // 2)
        subgroup.traffic.collectives = [(float(comm.rank), 4.0)]
        return seconds_after_attribution(comm, [], extra_s=4.0 - comm.rank)

    # Within a colour, the earlier rank waits for the later one.
    assert [seconds["wait"] for seconds in together(4, body)] == pytest.approx([1, 0, 1, 0])


def test_waits_are_attributed_to_ranks() -> None:
    """Rank 2 is last in the first collective, rank 0 in the second. Rank 1 also waits for rank 0 in the
    shift, for rank 2 in the subgroup's collective, and 0.5 s for a message from rank 0."""

    def body(comm: Communicator) -> tuple[dict[str, float], dict[int, float]]:
        subgroup = comm.split(colour=int(comm.rank > 0))  # 0 alone; 1 and 2
        if comm.rank > 0:
            subgroup.traffic.collectives = [(30.0 + 2 * comm.rank, 34.5)]
        entered = [25.0, 22.0, 20.0][comm.rank]
        comm.traffic.shifts = [(entered, 26.0, (comm.rank - 1) % 3)]
        if comm.rank == 0:
            comm.traffic.sends = [(40.5, 1)]
        if comm.rank == 1:
            comm.traffic.receives = [(40.0, 41.0, 0)]
        collectives = [[(0.0, 6.0), (13.0, 14.0)], [(1.0, 6.0), (10.0, 14.0)], [(5.0, 6.0), (12.0, 14.0)]]
        return attribution_of(comm, collectives[comm.rank], extra_s=20.0)

    measured = together(3, body)
    expected = [{2: 5}, {0: 3 + 3 + 0.5, 2: 4 + 2}, {0: 1, 1: 2}]
    for (seconds, wait_s_by_rank), wanted in zip(measured, expected, strict=True):
        assert {rank: s for rank, s in wait_s_by_rank.items() if s} == pytest.approx(wanted)
        assert sum(wait_s_by_rank.values()) == pytest.approx(seconds["wait"])


def test_single_rank_or_no_collectives_means_no_waiting() -> None:
    (seconds,) = together(1, lambda comm: seconds_after_attribution(comm, [(0, 5)]))
    assert (seconds["wait"], seconds["communicate"]) == (0, 5)
    for seconds in together(2, lambda comm: seconds_after_attribution(comm, [])):
        assert seconds["wait"] == 0


def test_attribution_itself_is_not_counted() -> None:
    def body(comm: Communicator) -> Communicator:
        seconds_after_attribution(comm, [(0, 1)] * 3)
        return comm

    for comm in together(2, body):
        assert comm.traffic.bytes_sent == 0
        assert len(comm.traffic.collectives) == 3


def test_real_barrier_waits_for_a_late_rank() -> None:
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
def test_waits_by_rank_add_up_to_the_wait_phase(strategy: str, ranks: int) -> None:
    for rank, result in enumerate(train(strategy, ranks).results):
        assert result.wait_s_by_rank is not None
        assert len(result.wait_s_by_rank) == ranks
        assert result.wait_s_by_rank[rank] == 0
        assert sum(result.wait_s_by_rank) == pytest.approx(result.seconds["wait"], abs=1e-5)


def test_serial_has_no_straggler_attribution() -> None:
    (result,) = train("serial", 1).results
    assert result.wait_s_by_rank is None
