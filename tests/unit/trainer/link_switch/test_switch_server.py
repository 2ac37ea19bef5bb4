"""Mistakes in the switch: packets of or to other nodes, links of the run before, plugs that wait."""

from __future__ import annotations

import socket
import threading
import time
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
NONE = {"latency_ms": 0}


class Running:
    """A switch in a thread of this process, with pairs of sockets in place of TUN devices."""

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

    def setup(self, link: dict[str, Any], *addresses: str, nodes: int | None = None) -> None:
        count, spec = nodes or len(addresses), Links.of(link)
        self.ask(Setup(addresses=list(addresses), nodes=count, seed=0, timeout_s=60.0, link=spec))

    def plug(self, *addresses: str) -> None:
        """Connect nodes. Each waits for all others, so they connect at the same time."""
        threads = []
        for address in addresses:
            self.nodes[address], device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.nodes[address].settimeout(5)
            threads.append(threading.Thread(target=self._plug, args=(address, device)))
            threads[-1].start()
        for each in threads:
            each.join()

    def _plug(self, address: str, device: socket.socket) -> None:
        with device:
            self.ask(Plug(address=address), device.fileno())

    def passes(self, source: str, to: str) -> bool:
        """Whether a packet arrives, as it is and nowhere else."""
        sent = between(source, to)
        self.nodes[source].send(sent)
        return self.nodes[to].recv(2**16) == sent and self.is_silent()

    def is_silent(self) -> bool:
        """Whether nothing arrives, at any node."""
        time.sleep(0.1)
        for node in self.nodes.values():
            node.setblocking(False)
            try:
                node.recv(2**16)
            except BlockingIOError:
                node.settimeout(5)
            else:
                return False
        return True

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


def between(source: str, to: str, opened: bytes | None = None) -> bytes:
    made = opened or packet(ACK)
    return made[:12] + socket.inet_aton(source) + socket.inet_aton(to) + made[20:]


def test_a_node_can_only_send_as_itself_and_to_nodes_of_its_run(running: Running) -> None:
    running.setup(NONE, A, B, C)
    running.plug(A, B, C)
    forged, own, far, host = between(B, C), between(A, A), between(A, "8.8.8.8"), between(A, "172.18.0.1")
    for odd in (forged, own, far, host, b"x", b"\x60" + bytes(60)):
        running.nodes[A].send(odd)
    assert running.is_silent()
    assert running.passes(A, C)
    stats = running.ask(Stats())
    assert (stats.delivered, stats.lost, stats.overflowed) == (1, 0, 0)


def test_each_run_has_its_own_nodes_and_links(running: Running) -> None:
    running.setup({"default": NONE, "pairs": {"0>1": {"loss": 0.999}}}, A, B, C, nodes=2)
    running.plug(A, B, C)
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
    running.setup({"pairs": {"1>0": {"bandwidth_mbit": 100}}}, A, B)
    running.plug(A, B)
    running.nodes[A].send(between(A, B, packet(SYN, mss(64960))))
    assert mss(6210) in running.nodes[B].recv(2**16), "it limits what the other side sends"


def test_a_plug_waits_for_the_others(running: Running) -> None:
    running.setup(NONE, A, B)
    plugged = threading.Event()
    first = threading.Thread(target=lambda: (running.plug(A), plugged.set()))
    first.start()
    assert not plugged.wait(0.2)
    running.plug(B)
    assert plugged.wait(5)
    first.join()


def test_messages_that_do_not_fit_are_refused(running: Running) -> None:
    refused = [(Stats(), "not expected"), (SwitchAnswer(), "not expected")]
    for message, reason in refused:
        with pytest.raises(SwitchError, match=reason):
            running.ask(message)
    with pytest.raises(SwitchError):
        running.setup(NONE, "the address of node 0")
    running.setup(NONE, A)
    with pytest.raises(SwitchError, match="descriptor"):
        running.ask(Plug(address=A))


def test_a_switch_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SwitchError, match="does not answer"):
        ask(Stats(), path=tmp_path / "socket")
    assert [main(arguments) for arguments in (["stats"], ["setup", "{}"], ["unknown"], [])] == [1, 1, 2, 2]
    assert "addresses" in capsys.readouterr().err


def test_a_switch_ends_when_it_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.0)
    Switch(tmp_path / "socket").run()


# Routes

TABLE = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
eth0\t050012AC\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
link0\t000012AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
link0\t030012AC\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
"""


def test_routes_of_single_addresses_lead_through_the_switch(tmp_path: Path) -> None:
    assert linked(TABLE) == {B}
    assert linked(TABLE.splitlines()[0]) == set()
    (tmp_path / "route").write_text(TABLE)
    found = [wait_until_linked(peers, 0.0, tmp_path / "route") for peers in ([B], [B, C], [])]
    assert found == [True, False, True]
