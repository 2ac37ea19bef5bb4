"""Mistakes in the rendezvous: waits, their errors, which ranks connect, what else reaches the store."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from trainer.comm import rendezvous as module
from trainer.comm.errors import CommunicationError
from trainer.comm.rendezvous import rendezvous, to_connect
from trainer.core.context import NodeContext


def context(address: str, rank: int, size: int = 3, timeout_s: float = 30) -> NodeContext:
    return NodeContext(rank, size, "gloo", Path(), rendezvous=address, timeout_s=timeout_s)


@pytest.fixture
def free() -> str:
    """An address on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def failure(address: str, rank: int, size: int = 3, timeout_s: float = 0.2) -> str:
    with pytest.raises(CommunicationError) as caught:
        rendezvous(context(address, rank, size, timeout_s))
    return str(caught.value)


def test_ranks_that_do_not_join_are_named(tmp_path: Path, free: str) -> None:
    path = f"{tmp_path}/a#b? %20ö [c]"
    for address, named in ((path, "node 0, 2 "), (free, "node 0 ")):
        cause = failure(address, rank=1)
        assert all(fact in cause for fact in (named, address, "0.2 s"))


def test_ranks_join_a_rank_0_that_listens_later(free: str) -> None:
    def join(rank: int) -> Any:
        time.sleep(0.1 * (2 - rank))
        return rendezvous(context(free, rank))

    with ThreadPoolExecutor(3) as pool:
        stores = [*pool.map(join, range(3))]
    stores[0].set("key", "value")
    assert stores[2].get("key") == b"value"


def test_an_address_of_another_form_is_refused() -> None:
    for address in ("", "rendezvous", "file:///tmp/x", "tcp://node-1", "tcp://:29500"):
        assert "/path or tcp://host:port" in failure(address, rank=1)


def test_a_machine_that_answers_is_waited_for_longer(free: str, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {
        TimeoutError("timed out"): f"{free.removeprefix('tcp://')} for 0.2 s: timed out",
        ConnectionRefusedError("refused"): "within 0.5 s: refused",
        socket.gaierror("unknown"): "within 0.5 s: unknown",  # its name may be known later
    }
    monkeypatch.setattr(module, "UNREACHABLE_S", 0.2)
    for error, named in errors.items():
        monkeypatch.setattr(socket, "create_connection", Mock(side_effect=error))
        cause = failure(free, rank=1, timeout_s=0.5)
        assert "node 0 did not answer" in cause
        assert named in cause


def test_all_ranks_name_a_pair_that_does_not_meet(free: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(module, "to_connect", lambda rank, _: [1] if rank == 2 else [])
    monkeypatch.setattr(module, "_connect", Mock(side_effect=ConnectionRefusedError("refused")))
    with ThreadPoolExecutor(3) as pool:
        causes = {*pool.map(lambda rank: failure(free, rank, timeout_s=4), range(3))}
    (cause,) = causes
    assert "node 2 does not reach node 1 at 127.0.0.1" in cause


def test_of_two_machines_that_with_the_higher_address_connects() -> None:
    at = ["10.0.0.5", "10.0.0.9", "10.0.0.5", "10.0.0.3", "", "10.0.0.10", "fd00::1"]
    connects = [[3], [2, 3], [3], [], [], [2, 1, 3], [0, 1, 3, 5]]
    assert [to_connect(rank, at) for rank in range(7)] == connects


def test_the_address_of_a_rank_is_that_of_gloos_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    v4, v6, link = socket.AF_INET, socket.AF_INET6, psutil.AF_LINK
    at = {
        "eth1": [(v6, "fe80::1%eth1"), (v6, "fd00::1")],
        "eth2": [(link, "02:00:00:00:00:00"), (v6, "fd00::2"), (v4, "10.0.0.2")],
    }
    found = {name: [Mock(family=family, address=to) for family, to in each] for name, each in at.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    for name, expected in {"eth1": "fd00::1", "eth2": "10.0.0.2", "eth3": "", "": ""}.items():
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
        assert module._own_address() == expected
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert module._own_address() == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.1.1", "0.0.0.0"])
def test_the_store_of_a_loopback_address_listens_on_loopback_alone(free: str, host: str) -> None:
    """Whoever reaches the store can end the run, and other machines reach all other interfaces."""
    port = int(free.rpartition(":")[2])
    store = rendezvous(context(f"tcp://{host}:{port}", rank=0, size=1))
    sockets = psutil.Process().net_connections("tcp")
    listening = [each for each in sockets if each.laddr.port == port and each.status == psutil.CONN_LISTEN]
    (found,) = [each.laddr.ip for each in listening]
    assert found in ("::", "0.0.0.0") if host == "0.0.0.0" else found.startswith("127.")
    del store


def test_a_port_in_use_is_named(free: str) -> None:
    port = int(free.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        assert f"port {port} of 127.0.0.1 cannot be used" in failure(free, rank=0, size=1)
