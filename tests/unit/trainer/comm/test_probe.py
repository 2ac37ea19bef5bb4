"""Mistakes in measured links: pairs, halves, units, which of several measurements, what is counted."""

from __future__ import annotations

import time
from itertools import permutations

import pytest
import torch
from torch import Tensor

from tests.unit.conftest import FakeTime
from tests.unit.threads import together
from trainer.comm import probe
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.probe import probe_links
from trainer.core.clock import Clock


def test_rank_0_measures_32_ranks_and_all_pairs_are_those_of_8_at_most() -> None:
    for size, all_pairs in (
        (1, False),
        (2, False),
        (3, False),
        (3, True),
        (33, False),
        (8, True),
        (9, True),
    ):
        pairs = [*probe._pairs(size, all_pairs)]
        if all_pairs and size <= 8:
            assert sorted(pairs + [pair[::-1] for pair in pairs]) == [*permutations(range(size), 2)]
        else:
            assert pairs == [(0, other) for other in range(1, min(size, 32))]


def test_both_ends_measure_each_link_and_nothing_is_counted_or_left() -> None:
    def body(comm: Communicator) -> tuple[list[int], float, float]:
        links = probe_links(comm, all_pairs=True)
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
        self._now, self._answers, self._transfers = now, 0, 0

    def _send(self, buffer: Tensor, to: int) -> None:
        self._now.pass_(buffer.nbytes / self.bytes_per_s if buffer.numel() > 1 else self.latency_s)
        if buffer.numel() > 1:
            self._transfers += 1
            self._now.pass_(self._transfers % 2 * 0.01)

    def _recv(self, buffer: Tensor, source: int) -> None:
        self._now.pass_(self.latency_s if self._answers else self.late_s)
        self._answers += 1


def test_latency_is_half_a_round_trip_and_bandwidth_that_of_the_fastest_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = FakeTime()
    monkeypatch.setattr(time, "perf_counter", now)
    link = probe._measure(Link(now), 1)
    assert (link.to, link.latency_s) == (1, pytest.approx(Link.latency_s))
    assert link.bytes_per_s == pytest.approx(Link.bytes_per_s)
