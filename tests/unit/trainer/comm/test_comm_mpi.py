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
    types = {"FLOAT": "float", "DOUBLE": "double", "C_FLOAT_COMPLEX": "complex", "C_DOUBLE_COMPLEX": "z"}
    mpi = SimpleNamespace(COMM_WORLD=World(), IN_PLACE="in place", SUM="sum", buffer=memory, **types)
    return MpiCommunicator(0, 2, Clock(), mpi)


def test_all_reduce_is_in_place(comm: MpiCommunicator) -> None:
    whole = torch.ones(10)
    comm.all_reduce(whole[2:6], "sum")
    assert comm._world.given == [("in place", (whole.data_ptr() + 8, 16), "float", "sum")]


@pytest.mark.parametrize(("kind", "name"), [(torch.float64, "double"), (torch.complex64, "complex")])
def test_all_reduce_states_the_type_of_its_numbers(
    comm: MpiCommunicator, kind: torch.dtype, name: str
) -> None:
    buffer = torch.ones(4, dtype=kind)
    comm.all_reduce(buffer, "sum")
    assert comm._world.given == [("in place", (buffer.data_ptr(), buffer.nbytes), name, "sum")]


@pytest.mark.parametrize("buffer", [torch.ones(4, dtype=torch.int64), torch.ones(8)[::2]])
def test_all_reduce_rejects_other_types_and_gaps_in_memory(comm: MpiCommunicator, buffer: Tensor) -> None:
    """Open MPI reads the memory as contiguous values of the type."""
    with pytest.raises(ValueError, match="contiguous"):
        comm.all_reduce(buffer, "sum")
    assert comm._world.given == []
