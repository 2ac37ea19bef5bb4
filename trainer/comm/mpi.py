"""Transport `mpi`: mpi4py's buffer calls on flat tensors, without pickling."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError
from trainer.comm.nonblocking import Operation
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.core.context import NodeContext


# Waits of oversubscribed ranks: poll at full speed for SPIN_S, since most waits are short, then sleep
# NAP_S between polls.
SPIN_S = 0.0003
NAP_S = 0.00005

INTERFACES = "OMPI_MCA_btl_tcp_if_include"  # names them, if a launcher does
IFF_UP = 0x1  # of the flags in /sys/class/net
UP_S = 30.0  # for the interfaces to be up, when MPI starts
CONNECT_S = 30.0  # for the ranks to connect, once MPI has started on all of them
CONNECT_POLL_S = 0.01
PROGRESS_S = 0.0002  # between calls that move what goes on beside the computation


class Progress:
    """Moves what ranks exchange beside the computation: Open MPI moves bytes only while it is called.

    A thread tests the operations for which the rank does not wait. It ends when there are none.
    """

    def __init__(self) -> None:
        self._operations: list[Moved] = []
        self._lock = threading.Lock()
        self._running = False

    def add(self, operation: Moved) -> None:
        """Move an operation until it is complete, or a rank waits for it."""
        with self._lock:
            self._operations.append(operation)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="mpi progress", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._operations = [each for each in self._operations if not each.moved()]
                if not self._operations:
                    self._running = False
                    return
            time.sleep(PROGRESS_S)


class Moved(Operation):
    """An operation of MPI. outcome: what it brings. finish: waits for one of MPI's requests."""

    def __init__(self, request: Any, outcome: Any, memory: object, finish: Callable[[Any], None]) -> None:
        """memory: what MPI reads and writes, which has to stay alive."""
        self._request, self._outcome, self._memory, self._wait = request, outcome, memory, finish
        self._lock = threading.Lock()  # two threads must not test one request at once
        self._waited_for = self._complete = False
        self._wall: Callable[[], float] | None = None

    def watch(self, wall: Callable[[], float]) -> None:
        self._wall = wall

    def moved(self) -> bool:
        """Let MPI move it. Returns whether that is not needed any more."""
        if self._waited_for:
            return True
        with self._lock:
            return self._waited_for or self._test()

    def _test(self) -> bool:
        if not self._complete and self._request.Test():
            self._complete, self._memory = True, None
            self.completed_s = self._wall() if self._wall else None
        return self._complete

    def finish(self) -> Any:
        self._waited_for = True
        with self._lock:
            if not self._complete:
                self._wait(self._request)
                self._complete, self._memory = True, None
        return self._outcome

    def done(self) -> bool:
        with self._lock:
            return self._test()


class MpiCommunicator(Communicator):
    """Open MPI; `mpirun` starts the ranks."""

    topology: ClassVar[str] = "mpi"
    threads_only_communicate: ClassVar[bool] = True
    knows_completion: ClassVar[bool] = True

    def __init__(
        self,
        rank: int,
        size: int,
        clock: Clock,
        mpi: Any,
        naps: bool = False,
        world: Any = None,
        progress: Progress | None = None,
    ) -> None:
        """
        Args:
            naps: Sleep while waiting. Open MPI polls without pause, which uses up the CPU quota of a node
                with less than a core per rank: four nodes of 0.4 cpus trained four times slower than over
                gloo, which sleeps.
            world: MPI's communicator; None for COMM_WORLD.
            progress: That of the communicator which was split; None: it is of all ranks.
        """
        import torch

        super().__init__(rank, size, clock)
        self._types = {
            torch.float32: mpi.FLOAT,
            torch.float64: mpi.DOUBLE,
            torch.complex64: mpi.C_FLOAT_COMPLEX,
            torch.complex128: mpi.C_DOUBLE_COMPLEX,
        }
        self._mpi = mpi
        self._world = world or mpi.COMM_WORLD
        self._naps = naps
        self._progress = progress or Progress()

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> MpiCommunicator:
        from mpi4py import MPI  # initialises MPI, unless a warm parent has imported it without

        if not MPI.Is_initialized():
            _wait_for_interfaces(os.environ.get(INTERFACES, "").split(","), UP_S)
            MPI.Init_thread()
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise CommunicationError(
                "this MPI does not let several threads call it at once (MPI_THREAD_MULTIPLE)"
            )
        world = MPI.COMM_WORLD
        if (world.Get_rank(), world.Get_size()) != (context.rank, context.size):
            raise CommunicationError(
                f"MPI says rank {world.Get_rank()} of {world.Get_size()}, "
                f"the environment says {context.rank} of {context.size}"
            )
        _connect_all(world, CONNECT_S)
        return cls(context.rank, context.size, clock, MPI, naps=context.oversubscribed)

    def close(self) -> None:
        self._world.Barrier()
        self._mpi.Finalize()

    def abort(self) -> None:
        # Ranks inside a collective would otherwise wait forever.
        self._world.Abort(1)

    def _all_reduce(self, buffer: Tensor) -> None:
        self._wait_for_all()
        self._world.Allreduce(self._mpi.IN_PLACE, self._memory(buffer), op=self._mpi.SUM)

    def _all_gather(self, buffer: Tensor) -> Tensor:
        gathered = buffer.new_empty(self.size, buffer.numel())
        self._wait_for_all()
        self._world.Allgather(self._memory(buffer), self._memory(gathered))
        return gathered

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        received = buffer.new_empty(buffer.shape)
        self._wait_for_all()
        self._world.Alltoall(self._memory(buffer), self._memory(received))
        return received

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        self._wait_for_all()
        self._world.Bcast(self._memory(buffer), root=root)

    def _iall_reduce(self, buffer: Tensor) -> Operation:
        request = self._world.Iallreduce(self._mpi.IN_PLACE, self._memory(buffer), op=self._mpi.SUM)
        return self._moved(request, buffer, buffer)

    def _iall_gather(self, buffer: Tensor) -> Operation:
        gathered = buffer.new_empty(self.size, buffer.numel())
        request = self._world.Iallgather(self._memory(buffer), self._memory(gathered))
        return self._moved(request, gathered, buffer)

    def _iall_to_all(self, buffer: Tensor) -> Operation:
        received = buffer.new_empty(buffer.shape)
        request = self._world.Ialltoall(self._memory(buffer), self._memory(received))
        return self._moved(request, received, buffer)

    def _ibroadcast(self, buffer: Tensor, root: int) -> Operation:
        return self._moved(self._world.Ibcast(self._memory(buffer), root=root), buffer, buffer)

    def _isend(self, buffer: Tensor, to: int) -> Operation:
        request = self._world.Isend(self._memory(buffer), dest=to)
        return Moved(request, None, buffer, self._finish)  # MPI sends most of them at once

    def _irecv(self, buffer: Tensor, source: int) -> Operation:
        return self._moved(self._world.Irecv(self._memory(buffer), source=source), buffer, buffer)

    def _recv(self, buffer: Tensor, source: int) -> None:
        self._finish(self._world.Irecv(self._memory(buffer), source=source))

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        received = buffer.new_empty(buffer.shape)
        receive = self._world.Irecv(self._memory(received), source=source)
        self._finish(self._world.Isend(self._memory(buffer), dest=to))
        self._finish(receive)
        return received

    def _moved(self, request: Any, outcome: Tensor, memory: Tensor) -> Operation:
        operation = Moved(request, outcome, memory, self._finish)
        self._progress.add(operation)
        return operation

    def _barrier(self) -> None:
        self._finish(self._world.Ibarrier())

    def _split(self, groups: list[list[int]], number: int) -> MpiCommunicator:
        world = self._world.Split(number, self.rank)
        rank, size = groups[number].index(self.rank), len(groups[number])
        return MpiCommunicator(rank, size, self.clock, self._mpi, self._naps, world, self._progress)

    def _memory(self, buffer: Tensor) -> tuple[Any, Any]:
        """The buffer's memory and type for mpi4py. The buffer must stay alive while MPI uses it.

        Passing `buffer.numpy()` makes a small all-reduce a tenth slower, and a fifth where ranks share
        cores.
        """
        kind = self._types.get(buffer.dtype)
        if kind is None or not buffer.is_contiguous():
            raise ValueError(
                f"buffer is {buffer.dtype}, strides {buffer.stride()}; must be contiguous floating-point "
                "or complex"
            )
        return self._mpi.buffer.fromaddress(buffer.data_ptr(), buffer.nbytes), kind

    def _wait_for_all(self) -> None:
        """Sleep before a collective, which spins, until all ranks have entered (if `naps`)."""
        if self._naps:
            self._finish(self._world.Ibarrier())

    def _finish(self, request: Any) -> None:
        if not self._naps:
            request.Wait()
            return
        spin_until = time.perf_counter() + SPIN_S
        while not request.Test():
            if time.perf_counter() > spin_until:
                time.sleep(NAP_S)


def _wait_for_interfaces(names: list[str], timeout_s: float) -> None:
    """Wait until all of these interfaces are up. Open MPI looks for them once, when it starts.

    names: other values, like 10.0.0.0/8, are left out. Raises CommunicationError.
    """
    deadline = time.monotonic() + timeout_s
    flags = {name: Path(f"/sys/class/net/{name}/flags") for name in names if name and "/" not in name}
    for name, path in flags.items():
        while path.exists() and not int(path.read_text(encoding="ascii"), 16) & IFF_UP:
            if time.monotonic() > deadline:
                raise CommunicationError(f"network interface {name} was not up within {timeout_s:g} s")
            time.sleep(CONNECT_POLL_S)


def _connect_all(world: Any, timeout_s: float) -> None:
    """Connect every rank to every other one, which Open MPI does at their first message.

    A connection that fails then is tried again by no one: the ranks would wait for ever. Raises
    CommunicationError.
    """
    size = world.Get_size()
    request = world.Ialltoall(bytearray(size), bytearray(size))
    deadline = time.monotonic() + timeout_s
    while not request.Test():
        if time.monotonic() > deadline:
            raise CommunicationError(f"MPI did not connect all ranks within {timeout_s:g} s")
        time.sleep(CONNECT_POLL_S)
