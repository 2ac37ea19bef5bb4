"""Transport rpc in one process; tests/integration runs several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.comm.base import CommunicationError
from trainer.comm.rpc import RpcCommunicator, _in_own_storage
from trainer.core.clock import Clock
from trainer.core.context import NodeContext


def context(rendezvous: str, rank: int = 1, **fields: Any) -> NodeContext:
    return NodeContext(rank, 3, "rpc", Path(), rendezvous=rendezvous, timeout_s=0.5, **fields)


def test_rendezvous_timeout_names_missing_ranks(tmp_path: Path) -> None:
    address = f"{tmp_path}/a#b? %20ö [c]"
    with pytest.raises(CommunicationError) as caught:
        RpcCommunicator.connect(context(address), Clock())
    assert all(fact in str(caught.value) for fact in ("node 0, 2", address, "0.5 s"))


@pytest.mark.parametrize("address", ["", "rendezvous", "file:///tmp/x", "tcp://node-1", "tcp://:29500"])
def test_invalid_rendezvous_is_rejected(address: str) -> None:
    with pytest.raises(CommunicationError, match="/path or tcp://host:port"):
        RpcCommunicator.connect(context(address), Clock())


def test_view_is_sent_without_the_rest_of_its_storage() -> None:
    whole = torch.arange(10.0)
    assert _in_own_storage(whole) is whole
    view = _in_own_storage(whole[2:9])
    assert view.untyped_storage().nbytes() == 7 * 4
    assert torch.equal(view, whole[2:9])
