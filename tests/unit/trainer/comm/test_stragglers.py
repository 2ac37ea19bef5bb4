"""Mistakes in who waited for whom: ends of a wait, its cause, messages by number, ranks of subgroups."""

from __future__ import annotations

import time
from collections import defaultdict
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.threads import together
from tests.unit.training import train
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.stragglers import attribute_stragglers
from trainer.comm.traffic import Traffic

Span = tuple[float, float]
# Split in numbers modulo 2: ranks of a part are not those of the run.
RANKS = 5
PARTS = [[0, 2, 4], [1, 3]]


class Exchanges:
    """Random exchanges of a group, and how long each rank waits, by rank. Times are multiples of 1/8.

    A rank waits in a collective for the last rank; in a shift for its source; in a receive until the
    sender starts, and in the wait for a send until the receiver starts; but never longer than it is inside.
    """

    def __init__(self, random: Random, size: int) -> None:
        self.traffic = [Traffic() for _ in range(size)]
        self.waits: list[dict[int, float]] = [defaultdict(float) for _ in range(size)]
        self._random, self._size = random, size
        for _ in range(random.randrange(3)):
            self._collective()
        for _ in range(random.randrange(3)):
            self._shift(random.randrange(1, size))
        for _ in range(random.randrange(6)):
            self._message(*random.sample(range(size), 2))
        for each in self.traffic:  # ranks wait for sends in any order
            random.shuffle(each.send_waits)

    def _span(self) -> Span:
        entered = self._random.randrange(80) / 8
        return entered, entered + self._random.randrange(40) / 8

    def _wait(self, rank: int, span: Span, cause: int, until: float) -> None:
        self.waits[rank][cause] += max(0.0, min(until, span[1]) - span[0])

    def _collective(self) -> None:
        spans = [self._span() for _ in range(self._size)]
        last = max(range(self._size), key=lambda rank: spans[rank][0])
        for rank, span in enumerate(spans):
            self.traffic[rank].collectives.append(span)
            self._wait(rank, span, last, spans[last][0])

    def _shift(self, distance: int) -> None:
        spans = [self._span() for _ in range(self._size)]
        for rank, span in enumerate(spans):
            source = (rank - distance) % self._size
            self.traffic[rank].shifts.append((*span, source))
            self._wait(rank, span, source, spans[source][0])

    def _message(self, sender: int, receiver: int) -> None:
        started, received, finished = self._span()[0], self._span(), self._span()
        index = self.traffic[sender].record_send(started, receiver, 4)
        self.traffic[receiver].receives.append((*received, sender))
        self._wait(receiver, received, sender, started)
        if self._random.random() < 0.8:  # others are not waited for in training
            self.traffic[sender].send_waits.append((*finished, receiver, index))
            self._wait(sender, finished, receiver, received[0])


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_waits_are_those_of_each_exchange_by_the_rank_waited_for(random: Random) -> None:
    whole, parts = Exchanges(random, RANKS), [Exchanges(random, len(part)) for part in PARTS]
    expected: list[dict[int, float]] = [dict(waits) for waits in whole.waits]
    for part, exchanges in zip(PARTS, parts, strict=True):
        for number, rank in enumerate(part):
            for cause, seconds in exchanges.waits[number].items():
                expected[rank][part[cause]] = expected[rank].get(part[cause], 0.0) + seconds

    def body(comm: Communicator) -> tuple[dict[int, float], dict[str, float], bool]:
        part = comm.split(comm.rank % 2)
        comm.traffic, part.traffic = whole.traffic[comm.rank], parts[comm.rank % 2].traffic[part.rank]
        comm.clock.stop()
        comm.clock.seconds.update(communicate=1000.0, wait=0.0)
        sent = comm.bytes_sent
        found = attribute_stragglers(comm)
        return found, comm.clock.seconds, comm.bytes_sent == sent

    for (found, seconds, nothing_sent), waits in zip(together(RANKS, body), expected, strict=True):
        assert {rank: each for rank, each in found.items() if each} == {
            rank: each for rank, each in waits.items() if each
        }
        assert (seconds["wait"], seconds["communicate"]) == (
            sum(waits.values()),
            1000 - sum(waits.values()),
        )
        assert nothing_sent


def test_a_rank_alone_waits_for_nobody() -> None:
    def body(comm: Communicator) -> tuple[dict[int, float], float]:
        comm.traffic.collectives = [(0.0, 5.0)]
        return attribute_stragglers(comm), comm.clock.seconds["wait"]

    assert together(1, body) == [({}, 0.0)]


def test_waits_that_a_transport_knows_are_taken_as_they_are() -> None:
    class Knows(MemoryCommunicator):
        def waits_s(self) -> dict[int, float]:
            return {1: 2.0, 2: 3.0}

    def body(comm: Communicator) -> tuple[dict[int, float], float]:
        knows = Knows(comm.rank, 3, comm.clock, ThreadGroup(3))
        comm.clock.seconds["communicate"] = 9.0
        return attribute_stragglers(knows), comm.clock.seconds["wait"]

    assert together(3, body) == [({1: 2.0, 2: 3.0}, 5.0)] * 3


def test_a_real_barrier_waits_for_a_late_rank() -> None:
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
    ("strategy", "ranks"), [("all_reduce", 3), ("gossip", 3), ("hybrid", 4)], ids=lambda each: str(each)
)
def test_waits_by_rank_add_up_to_the_wait_phase(strategy: Any, ranks: int) -> None:
    for rank, result in enumerate(train(strategy, ranks).results):
        assert result.wait_s_by_rank is not None
        assert len(result.wait_s_by_rank) == ranks
        assert result.wait_s_by_rank[rank] == 0
        assert sum(result.wait_s_by_rank) == pytest.approx(result.seconds["wait"], abs=1e-5)


def test_serial_has_no_straggler_attribution() -> None:
    (result,) = train("serial", 1).results
    assert result.wait_s_by_rank is None
