"""Mistakes in waits and measured links: ends, causes, numbers of messages, pairs, halves, counts."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import combinations
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.conftest import FakeTime
from tests.unit.threads import together
from tests.unit.training import train
from trainer.comm import probe
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.nonblocking import Finished, Operation
from trainer.comm.stragglers import attribute_stragglers
from trainer.comm.traffic import Traffic
from trainer.core.clock import Clock

Span = tuple[float, float]
# Split in numbers modulo 2: ranks of a part are not those of the run.
RANKS = 5
PARTS = [[0, 2, 4], [1, 3]]


class Exchanges:
    """Random exchanges of a group, and how long each rank waits, by rank. Times are multiples of 1/8.

    A rank waits in a collective for the last rank; in the wait for a started one for the last that started
    it; in a shift for its source; in a receive until the sender starts, and in the wait for a send until
    the receiver starts; but never longer than it is inside.
    """

    def __init__(self, random: Random, size: int) -> None:
        self.traffic = [Traffic() for _ in range(size)]
        self.waits = [defaultdict[int, float](float) for _ in range(size)]
        self._random, self._size = random, size
        for _ in range(random.randrange(3)):
            self._collective()
        for _ in range(random.randrange(3)):
            self._started()
        for _ in range(random.randrange(3)):
            self._shift(random.randrange(1, size))
        for _ in range(random.randrange(6)):
            self._message(*random.sample(range(size), 2))
        for each in self.traffic:  # ranks wait for sends in any order
            random.shuffle(each.send_waits)
            random.shuffle(each.start_waits)

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

    def _started(self) -> None:
        spans = [self._span() for _ in range(self._size)]
        last = max(range(self._size), key=lambda rank: spans[rank][0])
        for rank, (started, _) in enumerate(spans):
            index, waited = len(self.traffic[rank].starts), self._span()
            self.traffic[rank].starts.append(started)
            self.traffic[rank].start_waits.append((*waited, index, None))
            self._wait(rank, waited, last, spans[last][0])

    def _shift(self, distance: int) -> None:
        spans = [self._span() for _ in range(self._size)]
        for rank, span in enumerate(spans):
            source = (rank - distance) % self._size
            self.traffic[rank].shifts.append((*span, source))
            self._wait(rank, span, source, spans[source][0])

    def _message(self, sender: int, receiver: int) -> None:
        started, received, finished = self._span()[0], self._span(), self._span()
        index = self.traffic[sender].record_send(started, receiver, 4)
        self.traffic[receiver].receives.append((*received, sender, received[0]))
        self._wait(receiver, received, sender, started)
        if self._random.random() < 0.8:  # others are not waited for in training
            self.traffic[sender].send_waits.append((*finished, receiver, index))
            self._wait(sender, finished, receiver, received[0])


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_waits_are_those_of_each_exchange_by_the_rank_waited_for(random: Random) -> None:
    whole, parts = Exchanges(random, RANKS), [Exchanges(random, len(part)) for part in PARTS]
    expected = whole.waits
    for part, exchanges in zip(PARTS, parts, strict=True):
        for rank, waits in zip(part, exchanges.waits, strict=True):
            for cause, seconds in waits.items():
                expected[rank][part[cause]] += seconds

    def body(comm: Communicator) -> tuple[dict[int, float], dict[str, float], bool]:
        part = comm.split(comm.rank % 2)
        comm.traffic, part.traffic = whole.traffic[comm.rank], parts[comm.rank % 2].traffic[part.rank]
        comm.clock.stop()
        comm.clock.seconds.update(communicate=1000.0, wait=0.0)
        sent = comm.bytes_sent
        found = attribute_stragglers(comm)
        return found, comm.clock.seconds, comm.bytes_sent == sent

    for (found, seconds, nothing_sent), waits in zip(together(RANKS, body), expected, strict=True):
        assert [found.get(rank, 0) for rank in range(RANKS)] == [waits[rank] for rank in range(RANKS)]
        waited = sum(waits.values())
        assert (seconds["wait"], seconds["communicate"]) == (waited, 1000 - waited)
        assert nothing_sent


def test_waits_by_rank_add_up_to_the_wait_phase_and_a_rank_alone_has_none() -> None:
    for strategy, ranks in (("all_reduce", 3), ("gossip", 3), ("hybrid", 4)):
        for rank, result in enumerate(train(strategy, ranks).results):
            waits = result.wait_s_by_rank or []
            assert (len(waits), waits[rank]) == (ranks, 0)
            assert sum(waits) == pytest.approx(result.seconds["wait"], abs=1e-5)
            assert sum(waits) > 0 or rank > 0
    (result,) = train("serial", 1).results
    assert (result.wait_s_by_rank, result.seconds["wait"]) == (None, 0)


# Links


def test_rank_0_measures_32_ranks_and_all_pairs_are_those_of_8_at_most() -> None:
    for size in (1, 2, 3, 8, 9, 33):
        of_rank_0 = [(0, other) for other in range(1, min(size, 32))]
        assert [*probe._pairs(size, all_pairs=False)] == of_rank_0
        all_pairs = [*combinations(range(size), 2)] if size <= 8 else of_rank_0
        assert [*probe._pairs(size, all_pairs=True)] == all_pairs


def test_both_ends_measure_each_link_and_nothing_is_counted_or_left() -> None:
    def body(comm: Communicator) -> tuple[list[int], float, float]:
        links = probe.probe_links(comm, all_pairs=True)
        value = torch.tensor([float(comm.rank)])
        comm.send(value, (comm.rank + 1) % 3)
        comm.recv(value, (comm.rank - 1) % 3)
        return [link.to for link in links], comm.bytes_sent, value.item()

    assert together(3, body, clock=Clock) == [([1, 2], 0, 2.0), ([0, 2], 0, 0.0), ([0, 1], 0, 1.0)]


class Link(MemoryCommunicator):
    """The sender's end of a link whose messages take the time of a latency and of their bytes.

    The first answer takes long, as that of a receiver that is not ready, and so does every other transfer.
    """

    latency_s, bytes_per_s, late_s = 0.002, 4e6, 3.0

    def __init__(self, now: FakeTime) -> None:
        super().__init__(0, 2, Clock(), ThreadGroup(2))
        self._now, self._transfers = now, 0

    def _isend(self, buffer: Tensor, to: int) -> Operation:
        if buffer.numel() > 1:
            self._transfers += 1
            self._now.pass_(buffer.nbytes / self.bytes_per_s + self._transfers % 2 * 0.01)
        else:
            self._now.pass_(self.latency_s)
        return Finished()

    def _recv(self, buffer: Tensor, source: int) -> None:
        self._now.pass_(self.late_s)
        self.late_s = self.latency_s


def test_latency_is_half_a_round_trip_and_the_fastest_transfer_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "perf_counter", now := FakeTime())
    link = probe._measure(Link(now), 1)
    assert (link.to, link.latency_s) == (1, pytest.approx(Link.latency_s))
    assert link.bytes_per_s == pytest.approx(Link.bytes_per_s)
