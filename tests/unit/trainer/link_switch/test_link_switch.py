"""Mistakes in the switch: odd packets, other nodes, units, wires, lost packets, order, plugs that wait."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from trainer.core.routes import linked, wait_until_linked
from trainer.link_switch import server
from trainer.link_switch.__main__ import main
from trainer.link_switch.control import Plug, Setup, Stats, SwitchAnswer, SwitchError, ask
from trainer.link_switch.packets import SYN, addresses, limit_segments, opens_connection
from trainer.link_switch.server import Switch
from trainer.link_switch.shaping import QUEUE_BYTES, Shaper
from trainer.spec.link import Links

SOURCE, TO = (socket.inet_aton(text) for text in ("172.18.0.2", "172.18.0.3"))
ACK = 0x10


def checksum(data: bytes) -> int:
    """The one's complement sum of RFC 1071, which is 0 over data with its own checksum."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def checksum_of_segment(packet: bytes) -> int:
    """Of the TCP segment with its pseudo header: 0 if it is valid."""
    segment = packet[(packet[0] & 0xF) * 4 :]
    return checksum(packet[12:20] + struct.pack("!HH", socket.IPPROTO_TCP, len(segment)) + segment)


def packet(
    flags: int = SYN, options: bytes = b"", protocol: int = socket.IPPROTO_TCP, ip_options: bytes = b""
) -> bytes:
    options += b"\0" * (-len(options) % 4)
    offset, words = (20 + len(options)) << 2, 5 + len(ip_options) // 4
    tcp = struct.pack("!HHIIBBHHH", 1000, 2000, 7, 0, offset, flags, 65535, 0, 0) + options
    length = 4 * words + len(tcp)
    ip = struct.pack("!BBHHHBBH", 0x40 + words, 0, length, 0, 0, 64, protocol, 0) + SOURCE + TO + ip_options
    summed = checksum_of_segment(ip + tcp)
    return ip + tcp[:16] + summed.to_bytes(2) + tcp[18:]


def mss(size: int) -> bytes:
    return struct.pack("!BBH", 2, 4, size)


def test_addresses_and_openings_of_connections() -> None:
    assert addresses(packet()) == addresses(packet()[:20]) == (SOURCE, TO)
    for odd in (b"\x60" + bytes(39), b"", packet()[:19]):  # the first one is IPv6
        assert addresses(odd) is None
    for opening in (packet(SYN), packet(SYN | ACK), packet(ip_options=bytes(8))):
        assert opens_connection(opening)
    for other in (packet(ACK), packet(SYN, protocol=socket.IPPROTO_UDP), packet()[:39]):
        assert not opens_connection(other)


def test_a_segment_size_is_limited_wherever_its_option_is() -> None:
    for before, ip_options in product((b"", b"\1", b"\1\1", b"\4\2", b"\3\3\7"), (b"", bytes(4))):
        original = packet(options=before + mss(64960) + b"\x08\x0a" + bytes(8), ip_options=ip_options)
        assert checksum_of_segment(original) == 0
        changed = limit_segments(original, 6210)
        assert mss(6210) in changed
        assert len(changed) == len(original)
        assert checksum_of_segment(changed) == 0


def test_other_options_and_smaller_sizes_stay_as_they_are() -> None:
    odd = [b"", b"\0" + mss(64960), b"\2\4", b"\3\0\0\0", b"\2\3\1\1", b"\1\1\1\2"]
    for options in (mss(1460), mss(6210), *odd):
        original = packet(options=options)
        assert limit_segments(original, 6210) == original


# Nodes

A, B, C = "172.18.0.2", "172.18.0.3", "172.18.0.4"
NONE = {"latency_ms": 0}


class Running:
    """A switch in a thread of this process, with pairs of sockets in place of TUN devices."""

    def __init__(self, path: Path) -> None:
        self.path, self.ended = path, threading.Event()
        self.nodes: dict[str, socket.socket] = {}

    def ask(self, message: Any, *descriptors: int) -> Any:
        return ask(message, descriptors, self.path)

    def setup(self, link: dict[str, Any], *addresses: str, nodes: int | None = None) -> None:
        count, spec = nodes or len(addresses), Links.of(link)
        self.ask(Setup(addresses=list(addresses), nodes=count, seed=0, timeout_s=60.0, link=spec))

    def plug(self, address: str) -> None:
        """Connect a node, which waits for all others."""
        self.nodes[address], device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.nodes[address].settimeout(5)
        with device:
            self.ask(Plug(address=address), device.fileno())

    def connect(self, link: dict[str, Any], *addresses: str, nodes: int | None = None) -> None:
        """Set the links of a run, and connect its nodes."""
        self.setup(link, *addresses, nodes=nodes)
        with ThreadPoolExecutor(len(addresses)) as pool:
            [*pool.map(self.plug, addresses)]

    def passes(self, source: str, to: str) -> bool:
        """Whether a packet arrives, as it is and nowhere else."""
        self.nodes[source].send(sent := between(source, to))
        return self.nodes[to].recv(2**16) == sent and self.is_silent()

    def is_silent(self) -> bool:
        """Whether nothing arrives, at any node."""
        return not select.select([*self.nodes.values()], (), (), 0.1)[0]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path / "socket")
    switch = Switch(found.path)

    def serve() -> None:
        while not found.ended.is_set():
            switch.step(0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    yield found
    found.ended.set()
    thread.join()
    switch.close()
    for each in found.nodes.values():
        each.close()


def between(source: str, to: str, made: bytes = packet(ACK)) -> bytes:
    return made[:12] + socket.inet_aton(source) + socket.inet_aton(to) + made[20:]


def test_a_node_can_only_send_as_itself_and_to_nodes_of_its_run(running: Running) -> None:
    running.connect(NONE, A, B, C)
    forged, own, far, host = between(B, C), between(A, A), between(A, "8.8.8.8"), between(A, "172.18.0.1")
    for odd in (forged, own, far, host, b"x", b"\x60" + bytes(60)):
        running.nodes[A].send(odd)
    assert running.is_silent()
    assert running.passes(A, C)
    stats = running.ask(Stats())
    assert (stats.delivered, stats.lost, stats.overflowed) == (1, 0, 0)


def test_each_run_has_its_own_nodes_and_links(running: Running) -> None:
    running.connect({"default": NONE, "pairs": {"0>1": {"loss": 0.999}}}, A, B, C, nodes=2)
    for _ in range(20):
        running.nodes[A].send(between(A, B))
    running.nodes[A].send(between(A, C))
    assert running.is_silent()
    assert running.ask(Stats()).lost == 20
    running.setup(NONE, A, B, C)
    assert running.passes(A, B)
    assert running.passes(A, C)
    assert running.ask(Stats()).lost == 0


def test_connections_get_segments_that_suit_the_other_direction(running: Running) -> None:
    running.connect({"pairs": {"1>0": {"bandwidth_mbit": 100}}}, A, B)
    running.nodes[A].send(between(A, B, packet(SYN, mss(64960))))
    assert mss(6210) in running.nodes[B].recv(2**16)  # it limits what the other side sends


def test_a_plug_waits_for_the_others(running: Running) -> None:
    running.setup(NONE, A, B)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(running.plug, A)
        with pytest.raises(TimeoutError):
            first.result(timeout=0.1)
        running.plug(B)
        first.result(timeout=5)


def test_messages_that_do_not_fit_are_refused(running: Running) -> None:
    for message in (Stats(), SwitchAnswer()):
        with pytest.raises(SwitchError, match="not expected"):
            running.ask(message)
    with pytest.raises(SwitchError):
        running.setup(NONE, "the address of node 0")
    running.setup(NONE, A)
    with pytest.raises(SwitchError, match="descriptor"):
        running.ask(Plug(address=A))


def test_a_switch_that_is_not_there_is_named_and_one_that_is_idle_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SwitchError, match="does not answer"):
        ask(Stats(), path=tmp_path / "socket")
    assert [main(arguments) for arguments in (["stats"], ["setup", "{}"], ["unknown"], [])] == [1, 1, 2, 2]
    assert "addresses" in capsys.readouterr().err
    monkeypatch.setattr(server, "IDLE_S", 0.0)
    Switch(tmp_path / "socket").run()


TABLE = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t050012AC\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
link0\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
link0\t030012AC\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
"""


def test_routes_of_single_addresses_lead_through_the_switch(tmp_path: Path) -> None:
    assert linked(TABLE) == {B}
    (tmp_path / "route").write_text(TABLE)
    found = [wait_until_linked(peers, 0.0, tmp_path / "route") for peers in ([B], [B, C], [])]
    assert found == [True, False, True]


# Links

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
    "own wire": ({"default": SLOW, "pairs": {"0>1": FAST}}, [(0.0, 0, 2), ONE], [(0.1, 1), (1.0, 2)]),
}


def test_packets_arrive_by_latency_and_wire() -> None:
    for name, (link, packets, expected) in CASES.items():
        links = shaper(link)
        for at, source, to in packets:
            links.offer(at, source, to, PACKET)
        assert [*links.due(packets[0][0] - MS)] == [], name
        found = [(at / MS, to) for at, to, _ in arrivals(links)]
        assert found == [(pytest.approx(ms), to) for ms, to in expected], name
        assert (links.delivered, links.lost, links.overflowed) == (len(packets), 0, 0)


def test_late_timers_do_not_slow_a_link_down() -> None:
    links = shaper(FAST)
    for _ in range(100):
        links.offer(0.0, 0, 1, PACKET)
    now = 0.0
    while links.next_at is not None:
        now = links.next_at + 0.7 * MS  # the process woke late
        assert [*links.due(now)]
    assert links.delivered == 100
    assert now < 100 * 0.1 * MS + 1 * MS


def test_jitter_varies_latency_on_both_sides_and_keeps_the_order() -> None:
    far, close = shaper({"latency_ms": 5, "jitter_ms": 2}), shaper({"latency_ms": 5, "jitter_ms": 5})
    sent = [number.to_bytes(2) for number in range(200)]
    for number, each in enumerate(sent):
        far.offer(number * 10 * MS, 0, 1, PACKET)
        close.offer(number * 0.1 * MS, 0, 1, each)
    delays = [at / MS - number * 10 for number, (at, *_) in enumerate(arrivals(far))]
    assert 3 - 1e-9 <= min(delays) < 3.2
    assert 6.8 < max(delays) <= 7 + 1e-9
    assert [each for *_, each in arrivals(close)] == sent


def test_loss_is_a_share_that_the_seed_determines_for_each_direction() -> None:
    def delivered(seed: int, source: int, to: int) -> tuple[float, ...]:
        links = shaper({"loss": 0.1, "latency_ms": 0}, seed)
        for number in range(1000):
            links.offer(float(number), source, to, PACKET)
        found = tuple(at for at, *_ in arrivals(links))
        assert links.delivered == len(found) == 1000 - links.lost
        assert 60 < links.lost < 140
        return found

    assert delivered(1, 0, 1) == delivered(1, 0, 1)
    assert len({delivered(*each) for each in ((1, 0, 1), (2, 0, 1), (1, 1, 0), (1, 0, 2))}) == 4


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


def test_segments_take_half_a_millisecond_and_leave_room_for_headers() -> None:
    for mbit, size in {1: 1460, 24: 1460, 100: 6210, 1000: 62460, None: 64960}.items():
        assert shaper({"bandwidth_mbit": mbit, "latency_ms": 0}).segment_bytes(0, 1) == size
