"""Transport `mpi`: mpi4py's buffer calls on flat tensors; nothing is ever pickled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trainer.clock import Clock
from trainer.comm.base import CommunicationError, Communicator

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.context import NodeContext


class MpiCommunicator(Communicator):
    """Open MPI's COMM_WORLD; the ranks are started by mpirun."""

    topology: ClassVar[str] = "mpi"

    def __init__(self, rank: int, size: int, clock: Clock, mpi: Any) -> None:
        super().__init__(rank, size, clock)
        self._mpi = mpi
        self._world = mpi.COMM_WORLD

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> MpiCommunicator:
        from mpi4py import MPI  # initialises MPI

        world = MPI.COMM_WORLD
        if (world.Get_rank(), world.Get_size()) != (context.rank, context.size):
            raise CommunicationError(
                f"MPI says rank {world.Get_rank()} of {world.Get_size()}, "
                f"the environment says {context.rank} of {context.size}"
            )
        return cls(context.rank, context.size, clock, MPI)

    def close(self) -> None:
        self._world.Barrier()
        self._mpi.Finalize()

    def abort(self) -> None:
        # Ranks inside a collective would wait for this one for ever.
        self._world.Abort(1)

    def _all_reduce(self, buffer: Tensor) -> None:
        self._world.Allreduce(self._mpi.IN_PLACE, buffer.numpy(), op=self._mpi.SUM)

    def _all_gather(self, buffer: Tensor) -> Tensor:
        gathered = buffer.new_empty(self.size, buffer.numel())
        self._world.Allgather(buffer.numpy(), gathered.numpy())
        return gathered

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        self._world.Bcast(buffer.numpy(), root=root)

    def _send(self, buffer: Tensor, to: int) -> None:
        self._world.Send(buffer.numpy(), dest=to)

    def _recv(self, buffer: Tensor, source: int) -> None:
        self._world.Recv(buffer.numpy(), source=source)

    def _barrier(self) -> None:
        self._world.Barrier()
