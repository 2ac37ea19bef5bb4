"""Mistakes in the rendezvous: waits, their errors, which ranks connect, what else reaches the store."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from trainer.comm import rendezvous as module
from trainer.comm.base import CommunicationError
from trainer.comm.rendezvous import rendezvous, to_connect
from trainer.core.context import NodeContext


def context(address: str, rank: int, size: int = 3, timeout_s: float = 0.5) -> NodeContext:
    return NodeContext(rank, size, "gloo", Path(), rendezvous=address, timeout_s=timeout_s)


@pytest.fixture
def free() -> str:
    """An address on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def test_timeout_names_missing_ranks(tmp_path: Path) -> None:
    address = f"{tmp_path}/a#b? %20ö [c]"
    with pytest.raises(CommunicationError) as caught:
        rendezvous(context(address, rank=1))
    assert all(fact in str(caught.value) for fact in ("node 0, 2", address, "0.5 s"))


def test_rank_0_that_does_not_listen_is_named(free: str) -> None:
    with pytest.raises(CommunicationError) as caught:
        rendezvous(context(free, rank=1))
    assert all(fact in str(caught.value) for fact in ("node 0", free, "0.5 s"))


def test_ranks_join_a_rank_0_that_listens_later(free: str) -> None:
    stores = {}
    ranks = [
        threading.Thread(
            target=lambda rank=rank: stores.update({rank: rendezvous(context(free, rank, timeout_s=30))})
        )
        for rank in range(3)
    ]
    for rank in reversed(ranks):
        rank.start()
        time.sleep(0.1)
    for rank in ranks:
        rank.join()
    stores[0].set("key", "value")
    assert stores[2].get("key") == b"value"


@pytest.mark.parametrize("address", ["", "rendezvous", "file:///tmp/x", "tcp://node-1", "tcp://:29500"])
def test_invalid_rendezvous_is_rejected(address: str) -> None:
    with pytest.raises(CommunicationError, match="/path or tcp://host:port"):
        rendezvous(context(address, rank=1))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNREACHABLE_S", 0.2)


@pytest.mark.usefixtures("short")
def test_a_rank_0_that_does_not_answer_is_named_long_before_the_time_limit(
    free: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", lost)
    with pytest.raises(CommunicationError) as caught:
        rendezvous(context(free, rank=1, timeout_s=60))
    assert all(fact in str(caught.value) for fact in ("node 0", free.removeprefix("tcp://"), "timed out"))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("late", [ConnectionRefusedError("refused"), socket.gaierror("unknown")])
def test_a_machine_that_refuses_or_has_no_name_yet_is_waited_for(
    free: str, late: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise late

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(CommunicationError, match=r"within 1 s"):
        rendezvous(context(free, rank=1, timeout_s=1))


def test_all_ranks_name_a_pair_that_does_not_meet(free: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(module, "to_connect", lambda rank, _: [1] if rank == 2 else [])
    monkeypatch.setattr(module, "_connect", lambda *_: refuse(closed))
    causes = {}

    def join(rank: int) -> None:
        with pytest.raises(CommunicationError) as caught:
            rendezvous(context(free, rank, timeout_s=4))
        causes[rank] = str(caught.value)

    ranks = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert len(causes) == 3
    (cause,) = set(causes.values())
    assert "node 2 does not reach node 1 at 127.0.0.1" in cause


def refuse(address: tuple[str, int]) -> None:
    socket.create_connection(address).close()


def test_of_two_machines_that_with_the_higher_address_connects() -> None:
    at = ["10.0.0.5", "10.0.0.9", "10.0.0.5", "10.0.0.3", "", "10.0.0.10", "fd00::1"]
    assert [to_connect(rank, at) for rank in range(7)] == [
        [3],
        [2, 3],
        [3],
        [],
        [],
        [2, 1, 3],
        [0, 1, 3, 5],
    ]


def test_the_address_of_a_rank_is_that_of_the_interface_that_gloo_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = {
        "eth1": [
            SimpleNamespace(family=socket.AF_INET6, address="fe80::1%eth1"),
            SimpleNamespace(family=socket.AF_INET6, address="fd00::1"),
        ],
        "eth2": [
            SimpleNamespace(family=psutil.AF_LINK, address="02:00:00:00:00:00"),
            SimpleNamespace(family=socket.AF_INET6, address="fd00::2"),
            SimpleNamespace(family=socket.AF_INET, address="10.0.0.2"),
        ],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: at)
    for name, expected in {"eth1": "fd00::1", "eth2": "10.0.0.2", "eth3": "", "": ""}.items():
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
        assert module._own_address() == expected
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert module._own_address() == ""


def listening(port: int) -> list[str]:
    """The addresses at which this process listens."""
    found = psutil.Process().net_connections("tcp")
    return [
        each.laddr.ip for each in found if each.laddr.port == port and each.status == psutil.CONN_LISTEN
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.1.1", "0.0.0.0"])
def test_the_store_of_a_loopback_address_listens_on_loopback_alone(free: str, host: str) -> None:
    """Whoever reaches the store can end the run, and other machines reach all other interfaces."""
    port = int(free.rpartition(":")[2])
    store = rendezvous(context(f"tcp://{host}:{port}", rank=0, size=1))
    (found,) = listening(port)
    assert found in ("::", "0.0.0.0") if host == "0.0.0.0" else found.startswith("127.")
    del store


def test_ranks_check_that_they_reach_each_other_on_loopback_where_they_are() -> None:
    for address, allowed in (("127.0.0.1", ["127.0.0.1"]), ("::1", ["::1"]), ("", ["::", "0.0.0.0"])):
        with module.listener_at(address, 0, 1) as listener:
            assert listener.getsockname()[0] in allowed


def test_a_port_in_use_is_named(free: str) -> None:
    port = int(free.rpartition(":")[2])
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(CommunicationError, match=f"port {port} of 127.0.0.1 cannot be used"),
    ):
        rendezvous(context(free, rank=0, size=1))
