"""When packets arrive and which are lost, by a clock that the tests set."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from trainer.link_switch.shaping import QUEUE_BYTES, Shaper
from trainer.spec.link import Links

MS = 0.001
PACKET = bytes(1250)  # 10 ms at 1 Mbit/s, 0.1 ms at 100


def shaper(nodes: int = 3, seed: int = 0, **link: Any) -> Shaper:
    return Shaper(Links.of(link), nodes, seed)


def arrivals(links: Shaper) -> list[tuple[float, int]]:
    """Times and receivers of all packets, as a switch that wakes at the right moments would see them."""
    found = []
    while (now := links.next_at) is not None:
        found += [(now, to) for to, _ in links.due(now)]
    return found


def times(links: Shaper) -> list[float]:
    return [at for at, _ in arrivals(links)]


def test_nothing_stated_passes_at_once() -> None:
    links = shaper(loss=0.0)
    links.offer(5.0, 0, 1, PACKET)
    assert list(links.due(5.0)) == [(1, PACKET)]
    assert links.next_at is None


def test_latency_is_one_way() -> None:
    links = shaper(latency_ms=5)
    links.offer(1.0, 0, 1, PACKET)
    assert list(links.due(1.0)) == []
    assert times(links) == pytest.approx([1.005])


def test_bandwidth_spaces_packets() -> None:
    links = shaper(bandwidth_mbit=100, latency_ms=1)
    for _ in range(5):
        links.offer(0.0, 0, 1, PACKET)
    assert times(links) == pytest.approx([1 * MS + (n + 1) * 0.1 * MS for n in range(5)])


def test_an_idle_wire_saves_nothing_up() -> None:
    links = shaper(bandwidth_mbit=100)
    links.offer(0.0, 0, 1, PACKET)
    assert times(links) == pytest.approx([0.1 * MS])
    for _ in range(2):
        links.offer(1.0, 0, 1, PACKET)
    assert times(links) == pytest.approx([1.0 + 0.1 * MS, 1.0 + 0.2 * MS])


def test_late_timers_do_not_slow_a_link_down() -> None:
    links = shaper(bandwidth_mbit=100)
    for _ in range(100):
        links.offer(0.0, 0, 1, PACKET)
    seen, now = 0, 0.0
    while links.next_at is not None:
        now = links.next_at + 0.7 * MS  # the process woke late
        seen += len(list(links.due(now)))
    assert seen == 100
    assert now < 100 * 0.1 * MS + 1 * MS


def test_peers_share_what_a_node_sends() -> None:
    links = shaper(bandwidth_mbit=100)
    for to in (1, 2, 1, 2):
        links.offer(0.0, 0, to, PACKET)
    assert arrivals(links) == [(pytest.approx((n + 1) * 0.1 * MS), to) for n, to in enumerate((1, 2, 1, 2))]


def test_peers_share_what_a_node_receives() -> None:
    links = shaper(nodes=4, bandwidth_mbit=100)
    for source in (1, 2, 3):
        links.offer(0.0, source, 0, PACKET)
    assert times(links) == pytest.approx([0.1 * MS, 0.2 * MS, 0.3 * MS])


def test_directions_are_independent() -> None:
    links = shaper(bandwidth_mbit=100)
    links.offer(0.0, 0, 1, PACKET)
    links.offer(0.0, 1, 0, PACKET)
    assert times(links) == pytest.approx([0.1 * MS] * 2)


def test_the_slower_interface_decides() -> None:
    spec = Links.of({"default": {"bandwidth_mbit": 100}, "nodes": {1: {"bandwidth_mbit": 10}}})
    links = Shaper(spec, 3, 0)
    for _ in range(3):
        links.offer(0.0, 0, 1, PACKET)
    found = times(links)
    assert [after - before for before, after in pairwise(found)] == pytest.approx([1 * MS] * 2)


def test_a_pair_with_a_bandwidth_has_a_wire_of_its_own() -> None:
    spec = Links.of({"default": {"bandwidth_mbit": 1}, "pairs": {"0>1": {"bandwidth_mbit": 100}}})
    links = Shaper(spec, 3, 0)
    links.offer(0.0, 0, 2, PACKET)
    links.offer(0.0, 0, 1, PACKET)
    assert arrivals(links) == [(pytest.approx(0.1 * MS), 1), (pytest.approx(10 * MS), 2)]


def test_jitter_varies_latency_within_its_range_and_keeps_the_order() -> None:
    links = shaper(latency_ms=5, jitter_ms=2)
    sent = [n * 10 * MS for n in range(200)]
    for at in sent:
        links.offer(at, 0, 1, PACKET)
    delays = [there - at for there, at in zip(times(links), sent, strict=True)]
    assert min(delays) >= 3 * MS - 1e-9
    assert max(delays) <= 7 * MS + 1e-9
    assert max(delays) - min(delays) > 2 * MS
    close = shaper(latency_ms=5, jitter_ms=5)
    for n in range(200):
        close.offer(n * 0.1 * MS, 0, 1, n.to_bytes(2))
    order = []
    while (now := close.next_at) is not None:
        order += [int.from_bytes(packet) for _, packet in close.due(now)]
    assert order == sorted(order)


def lost(seed: int, loss: float = 0.1) -> tuple[int, list[float]]:
    links = shaper(seed=seed, loss=loss, latency_ms=0)
    for n in range(1000):
        links.offer(float(n), 0, 1, PACKET)
    found = times(links)
    assert links.delivered == len(found) == 1000 - links.lost
    return links.lost, found


def test_loss_is_a_share_that_the_seed_determines() -> None:
    assert 60 < lost(seed=1)[0] < 140
    assert lost(seed=1) == lost(seed=1) != lost(seed=2)


def test_a_lost_packet_has_used_the_senders_wire() -> None:
    links = shaper(bandwidth_mbit=100, loss=0.5)
    for _ in range(100):
        links.offer(0.0, 0, 1, PACKET)
    assert times(links)[-1] > 80 * 0.1 * MS


def test_a_queue_is_finite() -> None:
    links = shaper(bandwidth_mbit=1)
    large = bytes(2**16)
    for _ in range(QUEUE_BYTES // len(large) + 10):
        links.offer(0.0, 0, 1, large)
    assert 5 < links.overflowed < 10


@pytest.mark.parametrize(("mbit", "size"), [(1, 1460), (100, 6210), (1000, 62460), (None, 64960)])
def test_segments_take_half_a_millisecond(mbit: float | None, size: int) -> None:
    assert shaper(bandwidth_mbit=mbit, latency_ms=0).segment_bytes(0, 1) == size
