"""Transport `rpc`: torch's remote procedure calls over TensorPipe.

It is there for strategies that split a model, which call each other's functions. So that they compare
with others, the collectives are made of such calls here: a rank puts tensors into its peers' mailboxes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from trainer.comm.base import CommunicationError, Communicator, communication_errors
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import Store

    from trainer.core.context import NodeContext

WORKER_THREADS = 4  # that answer requests; of ours none waits in one but rpc_split's, for the part before
HEARTBEAT_S = 0.5  # how often a rank that waits for another asks whether it is still there
ROLL_CALL_S = 3.0  # in which one that is asked nothing else says that it is there

# What the peers have put here, by rank. A module's, because a process has one RPC agent, whose requests
# name functions and not objects.
_mailbox: dict[int, SimpleQueue[Tensor]] = {}


class RpcCommunicator(Communicator):
    """torch RPC over TCP, with collectives made of remote calls.

    Every pair exchanges directly. All-gather, all-to-all and broadcast send as the Traffic of `base`
    says. So does all-reduce: each rank sums one P-th of the buffer, in rank order, and sends its sum to
    all. So no number is computed twice, and all ranks hold the same bits. What is not optimal are
    latencies: a piece counts as sent when the peer has answered, and P(P-1) pieces are under way at once.
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
    ) -> None:
        """ranks: of its members among all of the run's, if those are not all."""
        super().__init__(rank, size, clock)
        self._ranks = ranks or range(size)
        self._rpc = rpc
        self._store = store
        self._timeout_s = timeout_s

    @classmethod
    def connect(cls, context: NodeContext, clock: Clock) -> RpcCommunicator:
        from torch.distributed import rpc
        from torch.distributed.rpc import constants

        # torch gives it no parameter, and would wait 25 days for a rank that is gone during start-up.
        constants.DEFAULT_PROCESS_GROUP_TIMEOUT = timedelta(seconds=context.timeout_s)
        # A peer that is ready earlier may write at once.
        _mailbox.update((rank, SimpleQueue()) for rank in range(context.size))
        store = _roll_call(context)
        with (
            communication_errors(f"meeting of {context.size} ranks at {context.rendezvous}"),
            warnings.catch_warnings(),
        ):
            # Of what torch itself does in there, in every node's log.
            warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)
            rpc.init_rpc(
                worker_name(context.rank),
                rank=context.rank,
                world_size=context.size,
                rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
                    init_method=_address_of(store, context),
                    num_worker_threads=WORKER_THREADS,
                    rpc_timeout=context.timeout_s,
                    # Left to itself, TensorPipe takes shared memory between processes of one machine:
                    # bytes that cross no link do not compare with those of other transports.
                    _transports=["uv"],
                    _channels=["basic"],
                ),
            )
        return cls(context.rank, context.size, clock, rpc, store, context.timeout_s)

    def close(self) -> None:
        # All ranks leave together, and each stays until it has answered the last request.
        if self.size > 1:
            self._barrier()
        with communication_errors("parting"):
            self._rpc.shutdown(graceful=True, timeout=self._timeout_s)
            # The shutdown counts calls in the store, which lives in rank 0's process: that goes last.
            if self.rank == 0:
                gone = [f"left/{rank}" for rank in range(1, self.size)]
                self._store.wait(gone, timedelta(seconds=self._timeout_s))
            else:
                self._store.set(f"left/{self.rank}", "")

    # `abort` has nothing to do: a rank that has failed ends, and its peers, who knock, find it gone.

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
        # The mailboxes are the same: two ranks do what they do with each other in one order, over whatever
        # communicator.
        group = groups[number]
        rank, ranks = group.index(self.rank), [self._ranks[each] for each in group]
        return RpcCommunicator(rank, len(group), self.clock, self._rpc, self._store, self._timeout_s, ranks)

    def _exchange(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Give every rank its piece, in rank order; returns what each rank has given this one."""
        self._put({rank: pieces[rank] for rank in self._others()})
        return [pieces[rank] if rank == self.rank else self._take(rank) for rank in range(self.size)]

    def _others(self) -> list[int]:
        """The other ranks, from the next one on: not everybody writes to rank 0 first."""
        return [(self.rank + distance) % self.size for distance in range(1, self.size)]

    def _put(self, pieces: Mapping[int, Tensor]) -> None:
        """Put each piece into the mailbox of the rank that it is for. Returns when all are there.

        No earlier, or the next piece could overtake: a peer answers requests with several threads.
        """
        answers = {}
        for to, piece in pieces.items():
            peer, mine = self._ranks[to], self._ranks[self.rank]
            with rpc_errors(peer, "sending to"):
                answers[peer] = self._rpc.rpc_async(
                    worker_name(peer), _deliver, args=(mine, _alone(piece)), timeout=self._timeout_s
                )
        for peer, answer in answers.items():
            with rpc_errors(peer, "sending to"):
                answer.wait()

    def _take(self, source: int) -> Tensor:
        """What rank `source` has put, or puts next, into this rank's mailbox."""
        source = self._ranks[source]
        deadline = time.monotonic() + self._timeout_s
        knock = Heartbeat(source, self._timeout_s)
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                return _mailbox[source].get(timeout=min(HEARTBEAT_S, left_s))
            except Empty:
                knock.again()
        raise CommunicationError(
            f"waiting for node {source} failed: nothing came within {self._timeout_s:g} s"
        )


def worker_name(rank: int) -> str:
    """What torch RPC calls a rank."""
    return f"node-{rank}"


@contextmanager
def rpc_errors(rank: int, doing: str) -> Iterator[None]:
    """Turn the failure of a request to `rank` into a CommunicationError: "waiting for node 1 failed"."""
    with communication_errors(f"{doing} node {rank}"):
        yield


class Heartbeat:
    """Asks a rank that one waits for whether it is there: a mailbox does not notice that it is gone."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._answer: Any = None

    def again(self) -> None:
        """Ask, unless the last answer is still to come: one that computes may answer late, that is no
        failure. Raises CommunicationError if the rank has not answered within `timeout_s`, or is gone."""
        from torch.distributed import rpc

        with rpc_errors(self._rank, "waiting for"):
            if self._answer is None or self._answer.done():
                if self._answer is not None:
                    self._answer.wait()
                self._answer = rpc.rpc_async(worker_name(self._rank), _answer, timeout=self._timeout_s)


def check_alive(ranks: Iterable[int]) -> None:
    """Raises CommunicationError unless each of the ranks says within ROLL_CALL_S that it is there."""
    from torch.distributed import rpc

    calls = [(rank, rpc.rpc_async(worker_name(rank), _answer, timeout=ROLL_CALL_S)) for rank in ranks]
    for rank, call in calls:
        with rpc_errors(rank, "calling"):
            call.wait()


def _deliver(source: int, piece: Tensor) -> None:
    """Runs in the process of the rank that the piece is for."""
    _mailbox[source].put(piece)


def _answer() -> None:
    """Runs in the process of a rank that another one waits for."""


def _alone(piece: Tensor) -> Tensor:
    """The piece in a storage of its own: TensorPipe may send the whole storage that a view is part of."""
    return piece if piece.untyped_storage().nbytes() == piece.nbytes else piece.clone()


def _roll_call(context: NodeContext) -> Store:
    """The store over which the ranks find each other, once all of them are there.

    rendezvous: the path of a file, or tcp://host:port where rank 0 listens. Raises CommunicationError,
    which names the ranks that have not come.
    """
    from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]

    place, patience = context.rendezvous, timedelta(seconds=context.timeout_s)
    size, rank = context.size, context.rank
    everyone = [f"here/{each}" for each in range(size)]
    url = urlsplit(place)
    store: Store
    with communication_errors(f"meeting at {place}"):
        if place.startswith("/"):
            store = FileStore(place, size)
        elif url.scheme == "tcp" and url.hostname and url.port:
            store = TCPStore(url.hostname, url.port, size, rank == 0, patience, wait_for_workers=False)
        else:
            raise CommunicationError(f"ranks cannot meet at {place!r}: neither /path nor tcp://host:port")
        store.set_timeout(patience)
        store.set(everyone[rank], "")
        try:
            store.wait(everyone, patience)
        except RuntimeError:
            absent = ", ".join(str(each) for each in range(size) if not store.check([everyone[each]]))
            if not absent:
                raise
            late = f"node {absent} has not come to {place} within {context.timeout_s:g} s"
            raise CommunicationError(late) from None
    return store


def _address_of(store: Store, context: NodeContext) -> str:
    """A URL under which init_rpc finds `store`. It takes no store, and a file:// URL of torch's ends
    at a `#` or `?` in a directory's name."""
    from torch.distributed.rendezvous import register_rendezvous_handler

    def hand_over(*_: Any, **__: Any) -> Iterator[tuple[Store, int, int]]:
        yield store, context.rank, context.size

    scheme = f"shardyard-{id(store):x}"
    register_rendezvous_handler(scheme, hand_over)
    return f"{scheme}://"
