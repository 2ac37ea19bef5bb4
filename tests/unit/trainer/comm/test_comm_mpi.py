"""Mistakes in calls to Open MPI: memory, types, and waits of ranks that nap. Integration tests run it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.comm.mpi import MpiCommunicator
from trainer.core.clock import Clock


class World:
    """Records its calls. A request is done when it is asked for the third time."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def Allreduce(self, sent: str, received: Any, op: str) -> None:
        self.calls.append((sent, *received, op))

    def Ibarrier(self) -> Any:
        tests = iter([False, False, True])
        self.calls.append("barrier")
        return SimpleNamespace(Test=lambda: next(tests), Wait=lambda: self.calls.append("spins"))


def comm_of(naps: bool = False) -> tuple[MpiCommunicator, list[Any]]:
    """A communicator of two ranks, and the calls that it makes."""
    memory = SimpleNamespace(fromaddress=lambda address, nbytes: (address, nbytes))
    types = {"FLOAT": "float", "DOUBLE": "double", "C_FLOAT_COMPLEX": "complex", "C_DOUBLE_COMPLEX": "z"}
    world = World()
    mpi = SimpleNamespace(COMM_WORLD=world, IN_PLACE="in place", SUM="sum", buffer=memory, **types)
    return MpiCommunicator(0, 2, Clock(), mpi, naps), world.calls


def test_all_reduce_is_in_place_and_states_the_type_of_its_numbers() -> None:
    types = {torch.float32: "float", torch.float64: "double", torch.complex64: "complex"}
    for kind, name in types.items():
        comm, calls = comm_of()
        whole = torch.ones(10, dtype=kind)
        part = whole[2:6]
        comm.all_reduce(part, "sum")
        assert calls == [("in place", (part.data_ptr(), part.nbytes), name, "sum")]
        assert part.data_ptr() == whole.data_ptr() + 2 * whole.element_size()


def test_all_reduce_rejects_other_types_and_gaps_in_memory() -> None:
    """Open MPI reads the memory as contiguous values of the type."""
    for buffer in (torch.ones(4, dtype=torch.int64), torch.ones(8)[::2]):
        comm, calls = comm_of()
        with pytest.raises(ValueError, match="contiguous"):
            comm.all_reduce(buffer, "sum")
        assert calls == []


def test_ranks_that_share_cores_nap_before_a_collective_and_others_spin() -> None:
    comm, calls = comm_of(naps=True)
    comm.all_reduce(torch.ones(1), "sum")
    comm.barrier()
    assert [calls[0], calls[2]] == ["barrier", "barrier"]
    assert "spins" not in calls
    comm, calls = comm_of()
    comm.barrier()
    assert calls == ["barrier", "spins"]
