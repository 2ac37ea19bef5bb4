"""The rendezvous of transports gloo and rpc."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from trainer.comm.base import CommunicationError
from trainer.comm.rendezvous import rendezvous
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
