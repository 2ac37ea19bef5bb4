"""Transport rpc as far as one process can tell; the rest is in tests/integration."""

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


def test_ranks_that_do_not_come_are_named(tmp_path: Path) -> None:
    place = f"{tmp_path}/a#b? %20ö [c]"
    with pytest.raises(CommunicationError) as caught:
        RpcCommunicator.connect(context(place), Clock())
    assert all(fact in str(caught.value) for fact in ("node 0, 2", place, "0.5 s"))


@pytest.mark.parametrize("place", ["", "rendezvous", "file:///tmp/x", "tcp://node-1", "tcp://:29500"])
def test_a_place_where_nobody_can_meet_is_refused(place: str) -> None:
    with pytest.raises(CommunicationError, match="/path or tcp://host:port"):
        RpcCommunicator.connect(context(place), Clock())


def test_a_view_travels_without_what_it_is_part_of() -> None:
    whole = torch.arange(10.0)
    assert _in_own_storage(whole) is whole
    piece = _in_own_storage(whole[2:9])
    assert piece.untyped_storage().nbytes() == 7 * 4
    assert torch.equal(piece, whole[2:9])
