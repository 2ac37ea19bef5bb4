"""Transport `rpc`: torch's remote procedure calls over TensorPipe.

It exists for strategies that partition the model and call each other's functions. The collectives are
built from such calls too, so that all strategies can be compared on it: a rank puts tensors into its peers'
mailboxes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm.base import CommunicationError, Communicator, communication_errors
from trainer.comm.elastic import ElasticCommunicator, Group, Groups
from trainer.comm.rendezvous import rendezvous
from trainer.comm.rpc_calls import HEARTBEAT_S, Heartbeat, rpc_errors, wait_and_look, worker_name
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from torch._C._distributed_c10d import Store

    from trainer.comm.requests import Requests
    from trainer.core.context import NodeContext
    from trainer.core.events import EventWriter

WORKER_THREADS = 4  # answer requests; only rpc_split's requests block, on the previous stage
POLL_S = 0.02  # between looks at the store

# Tensors received, by group and sender. Global, because a process has one RPC agent, and its requests name
# functions and not objects.
_mailboxes: dict[tuple[str, int], SimpleQueue[Tensor]] = {}


class RpcCommunicator(Communicator):
    """torch RPC over TCP, with collectives made of remote calls.

    Every pair of ranks exchanges directly, and every collective sends the bytes that Traffic counts. In an
    all-reduce each rank sums one slice of the buffer, in rank order, and sends the sum to all, so all ranks
    get the same bits. Latency is not optimal: a tensor counts as sent when the peer has answered, and
    P(P-1) tensors are in flight at once.
    """

    topology: ClassVar[str] = "rpc"

    def __init__(
        self,
        rank: int,
        size: int,
        clock: Clock,
        rpc: Any,
        store: Store,
        timeout_s: float,
        ranks: Sequence[int] = (),
        group: str = "",
    ) -> None:
        """
        Args:
            ranks: The global rank of each rank here; empty for all ranks of the run.
            group: Ranks receive only what was sent in the group of this name.
        """
        super().__init__(rank, size, clock)
        self._ranks, self._name = ranks or range(size), group
        self._rpc = rpc
        self._store = store
        self._timeout_s = timeout_s

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> RpcCommunicator:
        from torch.distributed import rpc
        from torch.distributed.rpc import constants

        # torch has no parameter for this, and would wait 25 days for a rank that fails during start-up.
        constants.DEFAULT_PROCESS_GROUP_TIMEOUT = timedelta(seconds=context.timeout_s)
        store = rendezvous(context)
        with (
            communication_errors(f"RPC between {context.size} ranks at {context.rendezvous}"),
            warnings.catch_warnings(),
        ):
            # A warning about torch's own code, in every node's log.
            warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)
            rpc.init_rpc(
                worker_name(context.rank),
                rank=context.rank,
                world_size=context.size,
                rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
                    init_method=_address_of(store, context),
                    num_worker_threads=WORKER_THREADS,
                    rpc_timeout=context.timeout_s,
                    # By default TensorPipe uses shared memory between processes of one machine, which
                    # could not be compared with other transports.
                    _transports=["uv"],
                    _channels=["basic"],
                ),
            )
        return cls(context.rank, context.size, clock, rpc, store, context.timeout_s)

    @classmethod
    def connect_elastic(
        cls, context: NodeContext, clock: Clock, membership: Path, events: EventWriter
    ) -> Communicator:
        return ElasticCommunicator(context, clock, RpcGroups(context, clock), membership, events)

    def close(self) -> None:
        # Each rank stays until it has answered the last request.
        if self.size > 1:
            self._barrier()
        with communication_errors("shutdown"):
            self._rpc.shutdown(graceful=True, timeout=self._timeout_s)
            # The shutdown counts calls in the store, which rank 0's process serves: it ends last.
            if self.rank == 0:
                gone = [f"left/{rank}" for rank in range(1, self.size)]
                self._store.wait(gone, timedelta(seconds=self._timeout_s))
            else:
                self._store.set(f"left/{self.rank}", "")

    def requests(self, timeout_s: float) -> Requests:
        from trainer.comm.rpc_requests import RpcRequests

        return RpcRequests(self, timeout_s)

    # No `abort`: a failed rank ends, and the heartbeats of its peers fail.

    def _all_reduce(self, buffer: Tensor) -> None:
        import torch

        mine = torch.stack(self._exchange(buffer.tensor_split(self.size))).sum(dim=0)
        torch.cat(self._exchange([mine] * self.size), out=buffer)

    def _all_gather(self, buffer: Tensor) -> Tensor:
        import torch

        return torch.stack(self._exchange([buffer] * self.size))

    def _all_to_all(self, buffer: Tensor) -> Tensor:
        import torch

        return torch.stack(self._exchange(buffer.unbind()))

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        if self.rank == root:
            self._put(dict.fromkeys(self._others(), buffer))
        else:
            buffer.copy_(self._take(root))

    def _send(self, buffer: Tensor, to: int) -> None:
        self._put({to: buffer})

    def _recv(self, buffer: Tensor, source: int) -> None:
        buffer.copy_(self._take(source))

    def _barrier(self) -> None:
        import torch

        self._exchange([torch.empty(0)] * self.size)

    def _split(self, groups: list[list[int]], number: int) -> RpcCommunicator:
        # Subgroups share the mailboxes: two ranks exchange in the same order on both sides, over whichever
        # communicator.
        group = groups[number]
        rank, ranks = group.index(self.rank), [self._ranks[each] for each in group]
        return RpcCommunicator(rank, len(group), self.clock, self._rpc, self._store, self._timeout_s, ranks)

    def _exchange(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Send tensors[i] to rank i. Returns the tensor from each rank, in rank order."""
        self._put({rank: tensors[rank] for rank in self._others()})
        return [tensors[rank] if rank == self.rank else self._take(rank) for rank in range(self.size)]

    def _others(self) -> list[int]:
        """The other ranks, starting with the next one, so that not all ranks send to rank 0 first."""
        return [(self.rank + distance) % self.size for distance in range(1, self.size)]

    def _put(self, tensors: Mapping[int, Tensor]) -> None:
        """Put each tensor into the mailbox of its rank. Returns when all have arrived.

        An earlier return would let the next tensor overtake: a peer answers requests with several threads.
        """
        answers = {}
        for to, tensor in tensors.items():
            peer, mine = self._ranks[to], self._ranks[self.rank]
            with rpc_errors(peer, "sending to"):
                answers[peer] = self._rpc.rpc_async(
                    worker_name(peer),
                    _deliver,
                    args=(self._name, mine, _in_own_storage(tensor)),
                    timeout=self._timeout_s,
                )
        for peer, answer in answers.items():
            with rpc_errors(peer, "sending to"):
                self._await(answer)

    def _await(self, answer: Any) -> None:
        """Wait for the answer of a remote call."""
        answer.wait()

    def _check(self) -> None:
        """Raise CommunicationError if a wait is in vain."""

    def _take(self, source: int) -> Tensor:
        """The next tensor from rank `source` in this rank's mailbox."""
        source = self._ranks[source]
        deadline = time.monotonic() + self._timeout_s
        heartbeat = Heartbeat(source, self._timeout_s)
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                return _mailbox(self._name, source).get(timeout=min(HEARTBEAT_S, left_s))
            except Empty:
                heartbeat.check()
                self._check()
        raise CommunicationError(
            f"waiting for node {source} failed: no message within {self._timeout_s:g} s"
        )


class RpcGroup(RpcCommunicator, Group):
    """Some ranks of the one RPC network. A message reaches only the group in which it was sent."""

    _left = False

    def _await(self, answer: Any) -> None:
        wait_and_look(answer, self._check)

    def _check(self) -> None:
        if self._left:
            raise CommunicationError("the group has lost a node")

    def leave(self) -> None:
        self._left = True

    def interrupt(self) -> None:
        self._left = True


class RpcGroups(Groups):
    """The groups of one rank. RPC has connected all ranks of the run, so a group needs no rendezvous."""

    def __init__(self, context: NodeContext, clock: Clock) -> None:
        self._context, self._clock = context, clock
        self._network = RpcCommunicator.connect(context, clock)

    def first(self) -> Group:
        return self._group("first", range(self._context.size))

    def form(
        self, name: str, ranks: Sequence[int], host: int, address: str, give_up: Callable[[], bool]
    ) -> Group:
        return self._group(name, ranks)

    def _group(self, name: str, ranks: Sequence[int]) -> RpcGroup:
        network, rank = self._network, ranks.index(self._context.rank)
        group = RpcGroup(
            rank,
            len(ranks),
            self._clock,
            network._rpc,
            network._store,
            self._context.timeout_s,
            ranks,
            name,
        )
        group.parent_ranks = ranks
        return group

    def requests(self, comm: Communicator, timeout_s: float) -> Requests:
        from trainer.comm.rpc_requests import RpcRequests

        return RpcRequests(comm, timeout_s)

    def close(self, group: Group) -> None:
        """Disconnect without the ranks that are lost, for which RPC's own shutdown would wait."""
        if group.size == self._context.size:
            self._network.close()
            return
        own, store = self._context.rank, self._network._store
        with communication_errors("shutdown"):
            for phase in ("answered", "left"):  # a rank may end when the others have its answers
                store.set(f"{phase}/{own}", "")
                others = group.parent_ranks if own == 0 or phase == "answered" else ()
                self._wait([f"{phase}/{rank}" for rank in others])
            self._network._rpc.shutdown(graceful=False)

    def _wait(self, keys: list[str]) -> None:
        deadline = time.monotonic() + self._context.timeout_s
        while keys and not self._network._store.check(keys):
            if time.monotonic() > deadline:
                raise CommunicationError("shutdown: a node did not answer")
            time.sleep(POLL_S)


def _mailbox(group: str, source: int) -> SimpleQueue[Tensor]:
    """What a rank has sent in a group. A peer may send before this rank has joined the group."""
    return _mailboxes.setdefault((group, source), SimpleQueue())


def _deliver(group: str, source: int, tensor: Tensor) -> None:
    """Runs in the receiving process."""
    _mailbox(group, source).put(tensor)


def _in_own_storage(tensor: Tensor) -> Tensor:
    """The tensor, copied if it is a view: TensorPipe may send the whole storage of a view."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _address_of(store: Store, context: NodeContext) -> str:
    """A URL at which init_rpc finds `store`.

    init_rpc takes only URLs, and torch's file:// URLs end at a `#` or `?` in the path.
    """
    from torch.distributed.rendezvous import register_rendezvous_handler

    def existing_store(*_: Any, **__: Any) -> Iterator[tuple[Store, int, int]]:
        yield store, context.rank, context.size

    scheme = f"shardyard-{id(store):x}"
    register_rendezvous_handler(scheme, existing_store)
    return f"{scheme}://"
