"""The probe of links before training: which pairs, what it measures, and that nothing of it is counted."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import Tensor

from tests.unit.threads import together
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.probe import LinkSpeed, probe_links
from trainer.core.clock import Clock


@pytest.mark.parametrize(
    ("size", "all_pairs", "expected"),
    [
        (1, False, [[]]),
        (2, False, [[1], [0]]),
        (3, False, [[1, 2], [0], [0]]),
        (3, True, [[1, 2], [0, 2], [0, 1]]),
        (9, True, [[*range(1, 9)], *[[0]] * 8]),
    ],
)
def test_pairs(size: int, all_pairs: bool, expected: list[list[int]]) -> None:
    found = together(size, lambda comm: probe_links(comm, all_pairs), clock=Clock)
    assert [[link.to for link in links] for links in found] == expected
    assert all(0 < link.latency_s < 1 and 0 < link.bytes_per_s < 1e15 for links in found for link in links)


def test_nothing_is_counted_and_nothing_is_left() -> None:
    def body(comm: Communicator) -> tuple[float, float]:
        probe_links(comm)
        value = torch.tensor([float(comm.rank)])
        comm.send(value, 1 - comm.rank)
        comm.recv(value, 1 - comm.rank)
        return comm.bytes_sent, value.item()

    assert together(2, body, clock=Clock) == [(0, 1.0), (0, 0.0)]


class Slow(MemoryCommunicator):
    """Each message takes a latency and the time of its bytes."""

    latency_s, bytes_per_s = 0.002, 4e6

    def _send(self, buffer: Tensor, to: int) -> None:
        time.sleep(self.latency_s + buffer.nbytes / self.bytes_per_s)
        super()._send(buffer, to)


def test_latency_and_bandwidth_of_a_slow_link() -> None:
    group = ThreadGroup(2, timeout_s=10)
    found: dict[int, list[LinkSpeed]] = {}

    def run(rank: int) -> None:
        found[rank] = probe_links(Slow(rank, 2, Clock(), group))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for (link,) in found.values():
        assert Slow.latency_s <= link.latency_s < Slow.latency_s + 0.05
        assert Slow.bytes_per_s / 4 < link.bytes_per_s < Slow.bytes_per_s * 1.1
