"""The calls of transport mpi to Open MPI; tests/integration runs real processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.comm.mpi import MpiCommunicator
from trainer.core.clock import Clock


class World:
    """Records the buffers passed to Allreduce."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def Allreduce(self, sent: str, received: Any, op: str) -> None:
        self.given.append((sent, *received, op))


@pytest.fixture
def comm() -> MpiCommunicator:
    memory = SimpleNamespace(fromaddress=lambda address, nbytes: (address, nbytes))
    mpi = SimpleNamespace(COMM_WORLD=World(), IN_PLACE="in place", SUM="sum", FLOAT="float", buffer=memory)
    return MpiCommunicator(0, 2, Clock(), mpi)


def test_all_reduce_is_in_place(comm: MpiCommunicator) -> None:
    whole = torch.ones(10)
    comm.all_reduce(whole[2:6], "sum")
    assert comm._world.given == [("in place", (whole.data_ptr() + 8, 16), "float", "sum")]


@pytest.mark.parametrize("buffer", [torch.ones(4, dtype=torch.float64), torch.ones(8)[::2]])
def test_all_reduce_rejects_other_than_contiguous_float32(comm: MpiCommunicator, buffer: Tensor) -> None:
    """Open MPI reads the memory as contiguous float32 values."""
    with pytest.raises(ValueError, match="contiguous float32"):
        comm.all_reduce(buffer, "sum")
    assert comm._world.given == []
