"""Where a rank finds itself: its number, how many there are, and how to reach them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.spec.registries import TRANSPORTS

if TYPE_CHECKING:
    from trainer.comm.base import Communicator
    from trainer.comm.memory import ThreadGroup
    from trainer.core.clock import Clock
    from trainer.spec.run_spec import RunSpec

# How each topology's launcher tells a process its rank and the number of ranks. In `single` there is
# one process, which starts the ranks itself.
RANK_VARIABLES: Mapping[str, tuple[str, str]] = {
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "ddp": ("RANK", "WORLD_SIZE"),
    "rpc": ("RANK", "WORLD_SIZE"),
}
# The same for a process's number in its node.
LOCAL_RANK_VARIABLES: Mapping[str, str] = {
    "mpi": "OMPI_COMM_WORLD_LOCAL_RANK",
    "ddp": "LOCAL_RANK",
    "rpc": "LOCAL_RANK",
}


class ContextError(Exception):
    """The environment does not say what a rank has to know."""


@dataclass
class NodeContext:
    """One rank's place in the run.

    local_rank: its number in its node, 0-based; 0 where all ranks share a process. It decides which of
    the node's GPUs is its own. rendezvous: where torch.distributed's ranks meet: the path of a file, or
    a URL as tcp://node-1:29500; of a run that is restarted HOST:PORT of torchrun's store. attempt: how
    often torchrun had started the ranks before, None where it does not.
    scarce: whether a rank has less than a core, so that waiting must not use it up.
    timeout_s: how long a rank waits for others. room: where ranks that share a process meet. shared:
    what forked ranks share. out_dir: where what is worth keeping goes, if anywhere.
    checkpoints_dir: where checkpoints lie, for a run that takes any.
    """

    rank: int
    size: int
    transport: str
    data_dir: Path
    local_rank: int = 0
    rendezvous: str = ""
    attempt: int | None = None
    oversubscribed: bool = False
    timeout_s: float = 600.0
    room: ThreadGroup | None = None
    shared: Any = None
    out_dir: Path | None = None
    checkpoints_dir: Path | None = None
    _comm: Communicator | None = field(default=None, init=False, repr=False)

    @classmethod
    def from_env(cls, spec: RunSpec, env: Mapping[str, str]) -> NodeContext:
        """Read the launcher's variables. Raises ContextError, naming the variable."""
        rank, size, local_rank = 0, spec.world_size, 0
        if names := RANK_VARIABLES.get(spec.topology):
            rank, size = (_integer(env, name) for name in names)
            if size != spec.world_size:
                raise ContextError(f"{names[1]} is {size}, but the run has {spec.size_label}")
            if not 0 <= rank < size:
                raise ContextError(f"{names[0]} is {rank}; ranks go from 0 to {size - 1}")
            local_rank = _local_rank(spec, rank, env)
        meet, attempt = env.get("SHARDYARD_RENDEZVOUS", ""), None
        if spec.restarts:
            meet = f"{env.get('MASTER_ADDR', '')}:{_integer(env, 'MASTER_PORT')}"
            attempt = _integer(env, "SHARDYARD_ATTEMPT")
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            transport=spec.transport,
            data_dir=Path(env.get("SHARDYARD_DATA", "data")),
            rendezvous=meet,
            attempt=attempt,
            oversubscribed=spec.oversubscribed,
            timeout_s=spec.timeout_s,
            checkpoints_dir=Path(env["SHARDYARD_CHECKPOINTS"]) if "SHARDYARD_CHECKPOINTS" in env else None,
        )

    def as_rank(self, rank: int, room: ThreadGroup | None = None) -> NodeContext:
        """The place of another rank that lives in this process or is forked from it."""
        return replace(self, rank=rank, room=room)

    def connect(self, clock: Clock) -> Communicator:
        """Meet the other ranks over the run's transport."""
        self._comm = TRANSPORTS.load(self.transport).connect(self, clock)
        return self._comm

    def close(self) -> None:
        """Part from the other ranks in good order."""
        if self._comm is not None:
            self._comm.close()

    def abort(self) -> None:
        """Tell the other ranks that this one has failed."""
        if self._comm is not None:
            self._comm.abort()

    def cpu_clock(self) -> float:
        """CPU seconds of this rank: its thread's where ranks share a process, else its process's."""
        return time.thread_time() if self.room and self.size > 1 else time.process_time()


def _local_rank(spec: RunSpec, rank: int, env: Mapping[str, str]) -> int:
    """The number of this rank in its node.

    Ranks fill one node after the other. Another order is refused: which node a rank is on is told from
    the rank alone, in logs, causes and reports.
    """
    expected = rank % spec.processes_per_node
    name = LOCAL_RANK_VARIABLES[spec.topology]
    # Nodes of the local runtime are one host to mpirun, which numbers the ranks of them all.
    told = _integer(env, name) % spec.processes_per_node if name in env else expected
    if told != expected:
        raise ContextError(f"{name} is {env[name]}, but rank {rank} is number {expected} in its node")
    return expected


def _integer(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except KeyError:
        raise ContextError(f"{name} is not set; the launcher sets it") from None
    except ValueError:
        raise ContextError(f"{name} is {env[name]!r}, not a whole number") from None
