"""Mistakes of single transports: memory that others read, GPUs, clocks, waits for a rank that failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, MagicMock, Mock, call

import pytest
import torch
import torch.distributed as dist

from tests.unit.conftest import FakeTime
from tests.unit.threads import together
from trainer.comm import gloo
from trainer.comm import mpi as mpi_transport
from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError
from trainer.comm.memory import MemoryCommunicator, ThreadGroup, total
from trainer.comm.mpi import MpiCommunicator
from trainer.comm.nccl import NcclCommunicator
from trainer.comm.rpc import _in_own_storage
from trainer.core.clock import Clock
from trainer.core.context import NodeContext


def test_rpc_sends_a_view_without_the_rest_of_its_storage() -> None:
    whole = torch.arange(10.0)
    assert _in_own_storage(whole) is whole
    view = _in_own_storage(whole[2:9])
    assert view.untyped_storage().nbytes() == 7 * 4
    assert torch.equal(view, whole[2:9])


def test_mpi_gets_contiguous_memory_of_a_type_that_it_knows() -> None:
    memory = SimpleNamespace(fromaddress=lambda address, nbytes: (address, nbytes))
    types = {"FLOAT": "float", "DOUBLE": "double", "C_FLOAT_COMPLEX": "complex", "C_DOUBLE_COMPLEX": "z"}
    comm = MpiCommunicator(0, 2, Clock(), SimpleNamespace(buffer=memory, **types), world=SimpleNamespace())
    for kind, name in ((torch.float32, "float"), (torch.float64, "double"), (torch.complex64, "complex")):
        part = torch.ones(10, dtype=kind)[2:6]
        assert comm._memory(part) == ((part.data_ptr(), part.nbytes), name)
    for buffer in (torch.ones(4, dtype=torch.int64), torch.ones(8)[::2]):
        with pytest.raises(ValueError, match="contiguous"):
            comm._memory(buffer)


def mpi_calls(naps: bool, operation: Callable[[MpiCommunicator, torch.Tensor], Any]) -> list[Any]:
    """What rank 1 of 3 calls in an operation on its own buffer. No request is ever pending."""
    world, mpi, own = Mock(), Mock(FLOAT="f", IN_PLACE="in place", SUM="+"), torch.ones(6)
    mpi.buffer.fromaddress = lambda address, nbytes: ("own" if address == own.data_ptr() else "new", nbytes)
    operation(MpiCommunicator(1, 3, Clock(), mpi, naps, world), own)
    return list(world.mock_calls)


@pytest.mark.parametrize("naps", [False, True])
def test_ranks_of_mpi_meet_before_an_operation_that_spins_if_they_share_cores(naps: bool) -> None:
    own, new, all_new = (("own", 24), "f"), (("new", 24), "f"), (("new", 72), "f")
    meet = [call.Ibarrier(), call.Ibarrier().Test()] if naps else []
    send, receive = call.Isend(own, dest=2), call.Irecv(own, source=0)
    sent, received = (getattr(each, "Test" if naps else "Wait")() for each in (call.Isend(), call.Irecv()))
    operations: list[tuple[Callable[[Any, torch.Tensor], Any], list[Any]]] = [
        (lambda c, x: c._all_reduce(x), [*meet, call.Allreduce("in place", own, op="+")]),
        (lambda c, x: c._all_gather(x), [*meet, call.Allgather(own, all_new)]),
        (lambda c, x: c._all_to_all(x), [*meet, call.Alltoall(own, new)]),
        (lambda c, x: c._broadcast(x, 2), [*meet, call.Bcast(own, root=2)]),
        (lambda c, x: c._isend(x, 2).finish(), [send, sent]),
        (lambda c, x: c._recv(x, 0), [receive, received]),
        (lambda c, x: c._shift(x, 2, 0), [call.Irecv(new, source=0), send, sent, received]),
        (lambda c, x: c._barrier(), meet or [call.Ibarrier(), call.Ibarrier().Wait()]),
    ]
    for operation, expected in operations:
        assert mpi_calls(naps, operation) == expected


def test_a_group_over_gloo_gives_torch_the_numbers_of_ranks_in_the_run() -> None:
    dist, own, group = MagicMock(P2POp=lambda *each: each), MagicMock(), {"group": "group"}
    comm = gloo.GlooCommunicator(1, 3, Clock(), dist, "group", [4, 5, 7])
    comm._broadcast(own, 2)
    comm._isend(own, 2).finish()
    comm._recv(own, 0)
    dist.batch_isend_irecv.return_value = [dist.isend.return_value]
    new = comm._shift(own, 2, 0)  # asks for its message before it sends one
    gloo.GlooCommunicator(1, 2, Clock(), dist, "group", [4, 5])._all_gather(own)
    assert dist.isend.return_value.wait.call_count == 3
    comm.close()
    assert dist.method_calls == [
        call.broadcast(own, src=7, **group, async_op=True),
        call.isend(own, dst=7, **group),
        call.irecv(own, src=4, **group),
        call.batch_isend_irecv([(dist.irecv, new, 4, "group", ANY), (dist.isend, own, 7, "group", ANY)]),
        call.batch_isend_irecv([(dist.irecv, ANY, 4, "group", ANY), (dist.isend, own, 4, "group", ANY)]),
        call.barrier(**group),
        call.destroy_process_group(),
    ]


def test_a_wait_of_mpi_spins_for_a_moment_and_then_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, naps = FakeTime(0.0), list[float]()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "sleep", naps.append)
    ends = iter([False] * 5 + [True])
    request: Any = Mock(Test=lambda: (clock.pass_(mpi_transport.SPIN_S / 2.5), next(ends))[1])
    MpiCommunicator(0, 2, Clock(), Mock(), naps=True, world=Mock())._finish(request)
    assert naps == [mpi_transport.NAP_S] * 3


def context(local_rank: int) -> NodeContext:
    return NodeContext(5, 8, "nccl", Path(), rendezvous="tcp://node-1:29500", local_rank=local_rank)


def test_nccl_takes_a_gpu_and_reads_the_clock_after_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def current_stream() -> SimpleNamespace:
        calls.append("stream")  # of the present thread: DDP's hook runs in another one
        return SimpleNamespace(synchronize=lambda: calls.append("settle"))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("device", device)))
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(gloo, "rendezvous", lambda context: f"store of rank {context.rank}")
    monkeypatch.setattr(dist, "init_process_group", lambda *group, **how: calls.append((*group, how)))
    clock = Clock(wall=lambda: calls.append("read") or 0.0)  # type: ignore[func-returns-value]
    comm = NcclCommunicator.connect(context(1), clock)
    device, (group, how) = calls
    assert device == ("device", 1)
    assert (group, how["rank"], how["world_size"], how["store"]) == ("nccl", 5, 8, "store of rank 5")
    assert how["device_id"] == torch.device("cuda:1")
    assert (comm.device, NcclCommunicator.device) == ("cuda:1", "cuda")
    calls.clear()
    clock.start()
    with clock.phase("compute"):
        calls.append("kernels")
    read = ["stream", "settle", "read"]
    assert calls == [*read, *read, "kernels", *read]


def test_a_rank_without_a_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in (0, 2):  # also the first rank after the last GPU
        monkeypatch.setattr(torch.cuda, "device_count", lambda found=found: found)
        with pytest.raises(CommunicationError, match=rf"rank 5 .*GPU {found}, torch .* finds {found} GPUs"):
            NcclCommunicator.connect(context(found), Clock())


# All ways to wait for rank 1.
WAITS: dict[str, Callable[[Communicator], Any]] = {
    "collective": lambda comm: comm.all_reduce(torch.ones(4), "sum"),
    "receive": lambda comm: comm.recv(torch.ones(4), 1),
    "part": lambda comm: comm.subgroups[0].barrier(),
}


def test_sums_of_many_buffers() -> None:
    """Up to 16 buffers, bit for bit the sum of all of them at once; more, in the memory of a few."""
    for count in (1, 2, 15, 16, 17, 18, 31, 32, 33, 49):
        buffers = [torch.randn(33) for _ in range(count)]
        kept = [buffer.clone() for buffer in buffers]
        found = total(buffers)
        exact = torch.stack(buffers).double().sum(dim=0)
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)
        assert count > 16 or torch.equal(found, torch.stack(buffers).sum(dim=0))
        assert all(map(torch.equal, buffers, kept))


@pytest.mark.parametrize("name", WAITS)
def test_a_rank_that_fails_releases_those_that_wait_for_it(name: str) -> None:
    def body(comm: Communicator) -> None:
        comm.split(colour=0)
        if comm.rank == 1:
            time.sleep(0.05)
            raise ValueError("odd")
        WAITS[name](comm)

    first, failed, last = together(3, body)
    assert isinstance(failed, ValueError)
    for released in (first, last):
        assert isinstance(released, CommunicationError)
        assert "another rank" in str(released)


def test_an_exchange_after_a_failure_raises() -> None:
    group = ThreadGroup(2)
    MemoryCommunicator(0, 2, Clock(), group).abort()
    for each in (group, group.subgroup([0, 1], 0)):
        with pytest.raises(CommunicationError):
            MemoryCommunicator(1, 2, Clock(), each).barrier()


def test_a_wait_ends_at_the_time_limit_of_the_run_and_several_ranks_need_a_common_group() -> None:
    for name in ("collective", "receive"):
        with pytest.raises(CommunicationError):
            WAITS[name](MemoryCommunicator(0, 2, Clock(), ThreadGroup(2, timeout_s=0.01)))
    alone = NodeContext(0, 1, "memory", Path(), timeout_s=7200)
    assert MemoryCommunicator.connect(alone, Clock())._group.subgroup([0], 0).timeout_s == 7200
    with pytest.raises(ValueError, match="ThreadGroup"):
        MemoryCommunicator.connect(NodeContext(0, 2, "memory", Path()), Clock())
