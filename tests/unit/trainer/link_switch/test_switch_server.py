"""The switch, with pairs of sockets in place of TUN devices, and how it is spoken to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.link_switch.test_switch_packets import ACK, mss, packet
from trainer.core.routes import linked, wait_until_linked
from trainer.link_switch import server
from trainer.link_switch.__main__ import main
from trainer.link_switch.control import Plug, Setup, Stats, SwitchAnswer, SwitchError, ask
from trainer.link_switch.packets import SYN
from trainer.link_switch.server import Switch
from trainer.spec.link import Links

A, B, C = "172.18.0.2", "172.18.0.3", "172.18.0.4"
DATAGRAM = socket.SOCK_SEQPACKET


class Running:
    """A switch in a thread of this process."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "socket"
        self.switch = Switch(self.path)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.nodes: dict[str, socket.socket] = {}

    def _serve(self) -> None:
        while not self._ended.is_set():
            self.switch.step(0.02)

    def ask(self, message: Any, *descriptors: int) -> Any:
        return ask(message, descriptors, self.path)

    def setup(self, *addresses: str, nodes: int | None = None, **link: Any) -> None:
        self.ask(
            Setup(
                addresses=list(addresses),
                nodes=nodes or len(addresses),
                seed=0,
                timeout_s=60.0,
                link=Links.of(link),
            )
        )

    def plug(self, *addresses: str) -> None:
        """Connect nodes. Each waits for all others, so they connect at the same time."""
        threads = []
        for address in addresses:
            self.nodes[address], device = socket.socketpair(socket.AF_UNIX, DATAGRAM)
            self.nodes[address].settimeout(5)
            threads.append(threading.Thread(target=self._plug, args=(address, device)))
            threads[-1].start()
        for each in threads:
            each.join()

    def _plug(self, address: str, device: socket.socket) -> None:
        with device:
            self.ask(Plug(address=address), device.fileno())

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self.switch.close()
        for each in self.nodes.values():
            each.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.close()


def between(source: str, to: str, **options: Any) -> bytes:
    made = packet(ACK, **options)
    return made[:12] + socket.inet_aton(source) + socket.inet_aton(to) + made[20:]


def is_silent(node: socket.socket) -> bool:
    node.settimeout(0.1)
    try:
        node.recv(2**16)
    except TimeoutError:
        return True
    return False


def test_packets_reach_the_node_with_their_address(running: Running) -> None:
    running.setup(A, B, C, latency_ms=1)
    running.plug(A, B, C)
    running.nodes[A].send(between(A, C))
    assert running.nodes[C].recv(2**16) == between(A, C)
    assert is_silent(running.nodes[B])
    stats = running.ask(Stats())
    assert (stats.delivered, stats.lost, stats.overflowed) == (1, 0, 0)


@pytest.mark.parametrize(
    ("source", "to"),
    [(B, C), (A, A), (A, "8.8.8.8"), (A, "172.18.0.1")],
    ids=["forged", "own", "far", "host"],
)
def test_a_node_can_only_send_as_itself_and_to_nodes_of_its_run(
    running: Running, source: str, to: str
) -> None:
    running.setup(A, B, C, latency_ms=0)
    running.plug(A, B, C)
    for odd in (between(source, to), b"x", b"\x60" + bytes(60)):
        running.nodes[A].send(odd)
    assert all(is_silent(running.nodes[each]) for each in (A, B, C))
    running.nodes[A].settimeout(5)
    running.nodes[A].send(between(A, B))
    running.nodes[B].settimeout(5)
    assert running.nodes[B].recv(2**16) == between(A, B)


def test_nodes_that_a_run_does_not_use_are_not_connected(running: Running) -> None:
    running.setup(A, B, C, nodes=2, latency_ms=0)
    running.plug(A, B, C)
    running.nodes[A].send(between(A, C))
    assert is_silent(running.nodes[C])


def test_the_next_run_has_its_own_links(running: Running) -> None:
    running.setup(A, B, default={"latency_ms": 0}, pairs={"0>1": {"loss": 0.999}})
    running.plug(A, B)
    for _ in range(20):
        running.nodes[A].send(between(A, B))
    assert is_silent(running.nodes[B])
    assert running.ask(Stats()).lost == 20
    running.setup(A, B, latency_ms=0)
    running.nodes[B].settimeout(5)
    running.nodes[A].send(between(A, B))
    assert running.nodes[B].recv(2**16) == between(A, B)
    assert running.ask(Stats()).lost == 0


def test_connections_get_segments_that_suit_the_other_direction(running: Running) -> None:
    running.setup(A, B, pairs={"1>0": {"bandwidth_mbit": 100}})
    running.plug(A, B)
    opening = packet(SYN, mss(64960))
    running.nodes[A].send(opening[:12] + socket.inet_aton(A) + socket.inet_aton(B) + opening[20:])
    assert mss(6210) in running.nodes[B].recv(2**16), "it limits what the other side sends"


def test_a_plug_waits_for_the_others(running: Running) -> None:
    running.setup(A, B, latency_ms=0)
    plugged = threading.Event()
    first = threading.Thread(target=lambda: (running.plug(A), plugged.set()))
    first.start()
    assert not plugged.wait(0.2)
    running.plug(B)
    assert plugged.wait(5)
    first.join()


def test_a_plug_needs_a_device(running: Running) -> None:
    running.setup(A, latency_ms=0)
    with pytest.raises(SwitchError, match="descriptor"):
        running.ask(Plug(address=A))


@pytest.mark.parametrize("message", [SwitchAnswer(), Stats()])
def test_unexpected_messages_are_refused(running: Running, message: Any) -> None:
    with pytest.raises(SwitchError, match="not expected"):
        running.ask(message)


def test_an_address_that_is_none_is_refused(running: Running) -> None:
    with pytest.raises(SwitchError):
        running.setup("the address of node 0", latency_ms=1)


def test_a_switch_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SwitchError, match="does not answer"):
        ask(Stats(), path=tmp_path / "socket")
    assert main(["stats"]) == 1
    assert main(["setup", "{}"]) == 1
    assert "addresses" in capsys.readouterr().err
    assert main(["unknown"]) == 2


def test_a_switch_ends_when_it_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.0)
    Switch(tmp_path / "socket").run()


# Routes

TABLE = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
eth0\t050012AC\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
link0\t030012AC\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
"""


def test_routes_through_the_switch() -> None:
    assert linked(TABLE) == {B}
    assert linked(TABLE.splitlines()[0]) == set()


@pytest.mark.parametrize(("peers", "found"), [([B], True), ([B, C], False), ([], True)])
def test_waiting_for_routes(tmp_path: Path, peers: list[str], found: bool) -> None:
    (tmp_path / "route").write_text(TABLE)
    assert wait_until_linked(peers, 0.0, tmp_path / "route") is found
