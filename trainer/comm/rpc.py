"""Transport `rpc`: torch's remote procedure calls over TensorPipe.

It exists for strategies that partition the model and call each other's functions. The collectives are
built from such calls too, so that all strategies can be compared on it: a rank puts tensors into its peers'
mailboxes.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

from trainer.comm.base import Communicator
from trainer.comm.elastic import ElasticCommunicator, Group, Groups
from trainer.comm.errors import CommunicationError, communication_errors
from trainer.comm.nonblocking import Finished, Operation, Posted
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

# Tensors received, by group and sender, and sums under way. Global, because a process has one RPC agent,
# and its requests name functions and not objects.
_mailboxes: dict[tuple[str, int], SimpleQueue[Tensor]] = {}
_sums: dict[str, Sum] = {}


class Sum:
    """The sum of the slices that ranks send to this process, in rank order."""

    def __init__(self, size: int) -> None:
        self._slices: list[Tensor | None] = [None] * size
        self._lock = threading.Lock()
        self._missing = size
        self._send: Callable[[Tensor], None] | None = None
        self._found: Tensor | None = None
        self.found = threading.Event()

    def add(self, rank: int, values: Tensor, send: Callable[[Tensor], None] | None = None) -> None:
        """Add a rank's slice. The thread that adds the last one sends the sum on. send: of the own rank."""
        with self._lock:
            self._slices[rank] = values
            self._missing -= 1
            self._send = send or self._send
            if self._missing:
                return
        import torch

        self._found = torch.stack([each for each in self._slices if each is not None]).sum(dim=0)
        if self._send:  # the own rank, which has it, is among those whose slices are here
            self._send(self._found)
        self.found.set()

    @property
    def value(self) -> Tensor:
        if self._found is None:
            raise RuntimeError("the sum is not there")
        return self._found


class Exchanged(Operation):
    """Tensors that ranks put into each other's mailboxes."""

    def __init__(
        self,
        comm: RpcCommunicator,
        name: str,
        answers: Sequence[Mapping[int, Any]],
        combine: Callable[[list[Tensor]], Any],
        senders: Sequence[int] | None = None,
    ) -> None:
        """
        Args:
            name: That of the mailboxes.
            answers: What the peers answer to what was sent.
            combine: Makes the outcome of what the senders have sent, in rank order.
            senders: None: all other ranks.
        """
        self._comm, self._name, self._answers, self._combine = comm, name, answers, combine
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._senders = others if senders is None else senders

    def finish(self) -> Any:
        comm = self._comm
        outcome = self._combine([comm._take(rank, self._name) for rank in self._senders])
        for answers in self._answers:
            comm._await_all(answers)
        _forget(self._name, [comm._ranks[rank] for rank in self._senders])
        return outcome

    def done(self) -> bool:
        comm = self._comm
        return all(_mailbox(self._name, comm._ranks[rank]).qsize() for rank in self._senders)


class RpcCommunicator(Communicator):
    """torch RPC over TCP, with collectives made of remote calls.

    Every pair of ranks exchanges directly, and every collective sends the bytes that Traffic counts. In an
    all-reduce each rank sums one slice of the buffer, in rank order, and sends the sum to all, so all ranks
    get the same bits. P(P-1) tensors are in flight at once. Every collective has mailboxes of its own, so
    that tensors cannot overtake each other: a peer answers requests with several threads.
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
        path: str = "",
    ) -> None:
        """
        Args:
            ranks: The global rank of each rank here; empty for all ranks of the run.
            group: Ranks receive only what was sent in the group of this name.
            path: A name that no other communicator of these ranks has; empty: the group's.
        """
        super().__init__(rank, size, clock)
        self._ranks, self._name = ranks or range(size), group
        self._rpc = rpc
        self._store = store
        self._timeout_s = timeout_s
        self._path = path or group or "run"
        self._collectives = self._splits = 0
        self._posted: defaultdict[int, deque[Posted]] = defaultdict(deque)

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

    def _iall_reduce(self, buffer: Tensor) -> Operation:
        import torch

        name, answers = self._next_name(), dict[int, Any]()
        own = _sum(name, self.size)
        slices, others = buffer.tensor_split(self.size), self._others()

        def send(found: Tensor) -> None:
            answers.update(self._send_all(_deliver, name, dict.fromkeys(others, found)))

        sent = self._send_all(_add, name, {rank: slices[rank] for rank in others}, self.rank, self.size)
        own.add(self.rank, slices[self.rank].clone(), send)

        def combine(sums: list[Tensor]) -> Tensor:
            if not own.found.wait(self._timeout_s):
                raise CommunicationError(f"no sum within {self._timeout_s:g} s")
            _forget(name)
            sums.insert(self.rank, own.value)
            return torch.cat(sums, out=buffer)

        return Exchanged(self, name, [sent, answers], combine)

    def _iall_gather(self, buffer: Tensor) -> Operation:
        return self._exchange([buffer] * self.size)

    def _iall_to_all(self, buffer: Tensor) -> Operation:
        return self._exchange(buffer.unbind())

    def _ibroadcast(self, buffer: Tensor, root: int) -> Operation:
        name = self._next_name()
        to = self._others() if self.rank == root else []
        answers = self._send_all(_deliver, name, dict.fromkeys(to, buffer))
        senders = [] if self.rank == root else [root]

        def combine(sent: list[Tensor]) -> Tensor:
            return buffer.copy_(sent[0]) if sent else buffer

        return Exchanged(self, name, [answers], combine, senders)

    def _isend(self, buffer: Tensor, to: int) -> Operation:
        # Messages stay in order: this one has arrived before the next one leaves.
        self._await_all(self._send_all(_deliver, self._name, {to: buffer}))
        return Finished()

    def _irecv(self, buffer: Tensor, source: int) -> Operation:
        arrived = _mailbox(self._name, self._ranks[source]).qsize
        return Posted(self._posted[source], buffer, lambda: self._take(source, self._name), arrived)

    def _barrier(self) -> None:
        import torch

        self._exchange([torch.empty(0)] * self.size).finish()

    def _split(self, groups: list[list[int]], number: int) -> RpcCommunicator:
        # Subgroups share the mailboxes of messages: two ranks exchange in the same order on both sides,
        # over whichever communicator.
        group = groups[number]
        rank, ranks = group.index(self.rank), [self._ranks[each] for each in group]
        path = f"{self._path}/{self._splits}.{number}"
        self._splits += 1
        return RpcCommunicator(
            rank, len(group), self.clock, self._rpc, self._store, self._timeout_s, ranks, path=path
        )

    def _next_name(self) -> str:
        """The name of the mailboxes of the next collective."""
        self._collectives += 1
        return f"{self._path}#{self._collectives}"

    def _exchange(self, tensors: Sequence[Tensor]) -> Operation:
        """Send tensors[i] to rank i. Brings the tensors of all ranks, stacked in rank order."""
        import torch

        name = self._next_name()
        answers = self._send_all(_deliver, name, {rank: tensors[rank] for rank in self._others()})
        own = tensors[self.rank].clone()

        def combine(others: list[Tensor]) -> Tensor:
            others.insert(self.rank, own)
            return torch.stack(others)

        return Exchanged(self, name, [answers], combine)

    def _others(self) -> list[int]:
        """The other ranks, starting with the next one, so that not all ranks send to rank 0 first."""
        return [(self.rank + distance) % self.size for distance in range(1, self.size)]

    def _send_all(
        self, function: Callable[..., None], name: str, tensors: Mapping[int, Tensor], *details: int
    ) -> dict[int, Any]:
        """Call a function of each rank with its tensor. Returns their answers, by rank of the run."""
        answers = {}
        for to, tensor in tensors.items():
            peer, mine = self._ranks[to], self._ranks[self.rank]
            with rpc_errors(peer, "sending to"):
                answers[peer] = self._rpc.rpc_async(
                    worker_name(peer),
                    function,
                    args=(name, mine, _in_own_storage(tensor), *details),
                    timeout=self._timeout_s,
                )
        return answers

    def _await_all(self, answers: Mapping[int, Any]) -> None:
        """Wait until the tensors have arrived."""
        for peer, answer in answers.items():
            with rpc_errors(peer, "sending to"):
                self._await(answer)

    def _await(self, answer: Any) -> None:
        """Wait for the answer of a remote call."""
        answer.wait()

    def _check(self) -> None:
        """Raise CommunicationError if a wait is in vain."""

    def _take(self, source: int, name: str) -> Tensor:
        """The next tensor from rank `source` in this rank's mailbox of this name."""
        source = self._ranks[source]
        deadline = time.monotonic() + self._timeout_s
        heartbeat = Heartbeat(source, self._timeout_s)
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                return _mailbox(name, source).get(timeout=min(HEARTBEAT_S, left_s))
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


def _sum(name: str, size: int) -> Sum:
    """The sum of this name. A peer may send before this rank has started the all-reduce."""
    return _sums.setdefault(name, Sum(size))  # atomic


def _forget(name: str, sources: Sequence[int] = ()) -> None:
    """Forget a sum or mailboxes, which are not used again."""
    _sums.pop(name, None)
    for source in sources:
        _mailboxes.pop((name, source), None)


def _deliver(group: str, source: int, tensor: Tensor) -> None:
    """Runs in the receiving process."""
    _mailbox(group, source).put(tensor)


def _add(name: str, _: int, values: Tensor, rank: int, size: int) -> None:
    """Add a slice to a sum. Runs in the receiving process."""
    _sum(name, size).add(rank, values)


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
