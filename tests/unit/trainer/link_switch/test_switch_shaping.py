"""Mistakes in links: milliseconds and bits, whose wire, lost packets, order, random numbers."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.link_switch.shaping import QUEUE_BYTES, Shaper
from trainer.spec.link import Links

MS = 0.001
PACKET = bytes(1250)  # 10 ms at 1 Mbit/s, 0.1 ms at 100


def shaper(link: dict[str, Any], seed: int = 0) -> Shaper:
    return Shaper(Links.of(link), 4, seed)


def arrivals(links: Shaper) -> list[tuple[float, int, bytes]]:
    """Times, receivers and packets, as a switch that wakes at the right moments would see them."""
    found = []
    while (now := links.next_at) is not None:
        found += [(now, to, packet) for to, packet in links.due(now)]
    return found


FAST, SLOW = {"bandwidth_mbit": 100}, {"bandwidth_mbit": 10}
ONE = (0.0, 0, 1)
# The links, packets as (time, sender, receiver), and arrivals as (ms, receiver).
CASES: dict[str, tuple[dict[str, Any], list[tuple[float, int, int]], list[tuple[float, int]]]] = {
    "nothing stated": ({"loss": 0.0}, [(5.0, 0, 1)], [(5000, 1)]),
    "latency": ({"latency_ms": 5}, [(1.0, 0, 1)], [(1005, 1)]),
    "bandwidth": ({**FAST, "latency_ms": 1}, [ONE] * 3, [(1.1, 1), (1.2, 1), (1.3, 1)]),
    "idle wire": (FAST, [ONE, (1.0, 0, 1), (1.0, 0, 1)], [(0.1, 1), (1000.1, 1), (1000.2, 1)]),
    "one sender": (FAST, [(0.0, 0, to) for to in (1, 2, 1)], [(0.1, 1), (0.2, 2), (0.3, 1)]),
    "one receiver": (FAST, [(0.0, source, 0) for source in (1, 2, 3)], [(0.1, 0), (0.2, 0), (0.3, 0)]),
    "both directions": (FAST, [ONE, (0.0, 1, 0)], [(0.1, 1), (0.1, 0)]),
    "slow receiver": ({"default": FAST, "nodes": {1: SLOW}}, [ONE] * 2, [(1.0, 1), (2.0, 1)]),
    "slow sender": ({"default": FAST, "nodes": {0: SLOW}}, [ONE] * 2, [(1.0, 1), (2.0, 1)]),
    "pair with a wire": (
        {"default": SLOW, "pairs": {"0>1": FAST}},
        [(0.0, 0, 2), ONE],
        [(0.1, 1), (1.0, 2)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_packets_arrive_by_latency_and_wire(name: str) -> None:
    link, packets, expected = CASES[name]
    links = shaper(link)
    for at, source, to in packets:
        links.offer(at, source, to, PACKET)
    assert [*links.due(packets[0][0] - MS)] == []
    found = [(at / MS, to) for at, to, _ in arrivals(links)]
    assert found == [(pytest.approx(ms), to) for ms, to in expected]
    assert (links.delivered, links.lost, links.overflowed) == (len(packets), 0, 0)


def test_late_timers_do_not_slow_a_link_down() -> None:
    links = shaper(FAST)
    for _ in range(100):
        links.offer(0.0, 0, 1, PACKET)
    seen, now = 0, 0.0
    while links.next_at is not None:
        now = links.next_at + 0.7 * MS  # the process woke late
        seen += len(list(links.due(now)))
    assert seen == 100
    assert now < 100 * 0.1 * MS + 1 * MS


def test_jitter_varies_latency_on_both_sides_and_keeps_the_order() -> None:
    links = shaper({"latency_ms": 5, "jitter_ms": 2})
    for number in range(200):
        links.offer(number * 10 * MS, 0, 1, PACKET)
    delays = [at / MS - number * 10 for number, (at, *_) in enumerate(arrivals(links))]
    assert 3 - 1e-9 <= min(delays) < 3.2
    assert 6.8 < max(delays) <= 7 + 1e-9
    close = shaper({"latency_ms": 5, "jitter_ms": 5})
    sent = [number.to_bytes(2) for number in range(200)]
    for number, packet in enumerate(sent):
        close.offer(number * 0.1 * MS, 0, 1, packet)
    assert [packet for *_, packet in arrivals(close)] == sent


def test_loss_is_a_share_that_the_seed_determines_for_each_direction() -> None:
    def delivered(seed: int, source: int, to: int) -> list[float]:
        links = shaper({"loss": 0.1, "latency_ms": 0}, seed)
        for number in range(1000):
            links.offer(float(number), source, to, PACKET)
        found = [at for at, *_ in arrivals(links)]
        assert links.delivered == len(found) == 1000 - links.lost
        assert 60 < links.lost < 140
        return found

    assert delivered(1, 0, 1) == delivered(1, 0, 1)
    assert len({tuple(delivered(*each)) for each in ((1, 0, 1), (2, 0, 1), (1, 1, 0), (1, 0, 2))}) == 4


def test_a_lost_packet_has_used_the_senders_wire() -> None:
    links = shaper({**FAST, "loss": 0.5})
    for _ in range(100):
        links.offer(0.0, 0, 1, PACKET)
    times = [at for at, *_ in arrivals(links)]
    assert times[-1] > 80 * 0.1 * MS
    assert all(round(at / (0.1 * MS), 6).is_integer() for at in times)


def test_a_queue_is_finite() -> None:
    links, size = shaper({"bandwidth_mbit": 1}), 2**16
    for _ in range(QUEUE_BYTES // size + 10):
        links.offer(0.0, 0, 1, bytes(size))
    assert links.overflowed == 9  # one packet is taken when exactly QUEUE_BYTES wait


@pytest.mark.parametrize(
    ("mbit", "size"), [(1, 1460), (24, 1460), (100, 6210), (1000, 62460), (None, 64960)]
)
def test_segments_take_half_a_millisecond_and_leave_room_for_headers(mbit: float | None, size: int) -> None:
    assert shaper({"bandwidth_mbit": mbit, "latency_ms": 0}).segment_bytes(0, 1) == size
