"""What transport mpi hands to Open MPI. That it arrives is tested with real processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.comm.mpi import MpiCommunicator
from trainer.core.clock import Clock


class World:
    """Notes the memory that an all-reduce is given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def Allreduce(self, sent: str, received: Any, op: str) -> None:
        self.given.append((sent, *received, op))


@pytest.fixture
def comm() -> MpiCommunicator:
    memory = SimpleNamespace(fromaddress=lambda address, nbytes: (address, nbytes))
    mpi = SimpleNamespace(COMM_WORLD=World(), IN_PLACE="in place", SUM="sum", FLOAT="float", buffer=memory)
    return MpiCommunicator(0, 2, Clock(), mpi)


def test_a_buffer_is_reduced_where_it_lies(comm: MpiCommunicator) -> None:
    whole = torch.ones(10)
    comm.all_reduce(whole[2:6], "sum")
    assert comm._world.given == [("in place", (whole.data_ptr() + 8, 16), "float", "sum")]


@pytest.mark.parametrize("buffer", [torch.ones(4, dtype=torch.float64), torch.ones(8)[::2]])
def test_what_is_no_flat_float32_is_refused(comm: MpiCommunicator, buffer: Tensor) -> None:
    """It would be taken for other numbers than it holds."""
    with pytest.raises(ValueError, match="contiguous float32"):
        comm.all_reduce(buffer, "sum")
    assert comm._world.given == []
