"""Groups of an elastic run over gloo: a process group of its own for each."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from trainer.comm.elastic import Group, Groups
from trainer.comm.errors import CommunicationError, communication_errors
from trainer.comm.rendezvous import rendezvous, wait_for_listener
from trainer.comm.sockets import end_connection, open_sockets
from trainer.comm.tcp_store import tcp_store
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import Store

    from trainer.core.context import NodeContext

POLL_S = 0.02
CONNECT_S = 30.0  # for the members of a group, which have all arrived, to connect
ATTEMPT_S = 1.0  # to connect to a rendezvous
FAILURE_S = 0.25  # for an operation whose connections are ended to fail by itself
GIVEN_UP = "the process group is given up: a member was lost"
FIRST_PORT, PORTS = 30000, 20000  # of the rendezvous of later groups, in containers

R = TypeVar("R")


class GlooGroup(Group):
    """One process group of gloo. Its operations raise CommunicationError when a member is lost.

    Gloo lets an operation fail when a connection breaks, but for the message that is just being sent or
    received: its operation waits until its time limit (`Pair::signalException` in transport/tcp/pair.cc).
    So an operation is left alone when the group is interrupted, and with it the process group: to delete it
    would wait for the operation.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        clock: Clock,
        group: Any,
        sockets: Mapping[int, str] | None = None,
        left_alone: list[Any] | None = None,
    ) -> None:
        """
        Args:
            group: torch's ProcessGroupGloo; None for a single rank.
            sockets: those of the group, by descriptor.
            left_alone: keeps process groups that are not deleted.
        """
        super().__init__(rank, size, clock)
        self.group, self._sockets = group, dict(sockets or {})
        self._left_alone = [] if left_alone is None else left_alone
        self._interrupted = False

    def _all_reduce(self, buffer: Tensor) -> None:
        with communication_errors("all-reduce"):
            self._finish(self.group.allreduce([buffer]))

    def _all_gather(self, buffer: Tensor) -> Tensor:
        gathered = buffer.new_empty(self.size, buffer.numel())
        with communication_errors("all-gather"):
            self._finish(self.group.allgather([list(gathered.unbind())], [buffer]))
        return gathered

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        with communication_errors("broadcast"):
            self._finish(self.group.broadcast(buffer, root))

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        received = buffer.new_empty(buffer.shape)

        def exchange(group: Any = self.group) -> None:
            # By default, messages have the time limit with which the group was made: that to connect.
            limit = group.options._timeout
            sent = group.send([buffer], to, 0)
            group.recv([received], source, 0).wait(limit)
            sent.wait(limit)

        with communication_errors("shift"):
            # To wait for single messages with a time limit breaks the connection when the limit is reached.
            in_thread(exchange, self._give_up)
        return received

    def _barrier(self) -> None:
        with communication_errors("barrier"):
            self._finish(self.group.barrier())

    def _finish(self, work: Any) -> None:
        """Wait for a collective operation, unless the group is given up."""
        while not work.is_completed():
            with suppress(RuntimeError):  # it has failed, or takes longer
                work.wait(timedelta(seconds=FAILURE_S))
            if not work.is_completed() and self._give_up():
                raise CommunicationError(GIVEN_UP)
        work.wait()  # raises why it has failed

    def _give_up(self) -> bool:
        """Whether to leave an operation alone that has not ended."""
        if self._interrupted:
            self._left_alone.append(self.group)
        return self._interrupted

    def leave(self) -> None:
        # Connections close when the last reference is gone; exceptions hold some in circles.
        self.group = None
        gc.collect()

    def interrupt(self) -> None:
        # ProcessGroupGloo.abort does not end an operation that waits. Without its connections most fail.
        for number, name in self._sockets.items():
            with suppress(OSError):
                end_connection(number, name)
        self._interrupted = True


def in_thread(call: Callable[[], R], give_up: Callable[[], bool]) -> R:
    """The result of a call, which cannot be interrupted: a thread makes it, and is left alone if given up.

    Raises what the call raises, or CommunicationError.
    """
    made: Future[R] = Future()

    def make() -> None:
        try:
            made.set_result(call())
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=make, name="operation", daemon=True).start()
    while not made.done():
        with suppress(TimeoutError):
            made.exception(FAILURE_S)
        if not made.done() and give_up():
            raise CommunicationError(GIVEN_UP)
    return made.result()


class GlooGroups(Groups):
    """The groups of one rank. Their members find each other at a file or port that follows from a name."""

    def __init__(self, context: NodeContext, clock: Clock) -> None:
        self._context, self._clock = context, clock
        self._left_alone: list[Any] = []  # process groups

    def first(self) -> Group:
        context = self._context
        with communication_errors(f"process group of {context.size} ranks at {context.rendezvous}"):
            return self._group(rendezvous(context), range(context.size), context.timeout_s, lambda: False)

    def form(
        self, name: str, ranks: Sequence[int], host: int, address: str, give_up: Callable[[], bool]
    ) -> Group:
        own = self._context.rank
        with communication_errors(f"process group {name} of {len(ranks)} ranks"):
            if len(ranks) == 1:
                return GlooGroup(0, 1, self._clock, None)
            store = self._store(name, address, own == host, give_up)
            store.set(f"here/{own}", "")
            while not store.check([f"here/{rank}" for rank in ranks]):
                if give_up():
                    raise CommunicationError(GIVEN_UP)
                time.sleep(POLL_S)
            return self._group(store, ranks, CONNECT_S, give_up)

    def _group(
        self, store: Store, ranks: Sequence[int], connect_s: float, give_up: Callable[[], bool]
    ) -> GlooGroup:
        """A process group over `store`, in which all of these ranks have arrived.

        Gloo waits up to 30 s for a member that is lost before it has connected.
        """
        import torch.distributed as dist

        rank, before = ranks.index(self._context.rank), open_sockets()

        def connect() -> Any:
            return dist.ProcessGroupGloo(store, rank, len(ranks), timeout=timedelta(seconds=connect_s))

        group = in_thread(connect, give_up)
        group.set_timeout(timedelta(seconds=self._context.timeout_s))
        sockets = {number: name for number, name in open_sockets().items() if before.get(number) != name}
        return GlooGroup(rank, len(ranks), self._clock, group, sockets, self._left_alone)

    def _store(self, name: str, address: str, serves: bool, give_up: Callable[[], bool]) -> Store:
        """The store of this name, which the rank at `address` serves."""
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        if self._context.rendezvous.startswith("/"):
            return FileStore(f"{self._context.rendezvous}-{name}")
        port = FIRST_PORT + crc32(name.encode()) % PORTS
        if not serves:
            try:
                wait_for_listener(address, port, ATTEMPT_S, give_up)
            except OSError as error:
                raise CommunicationError(f"{address}:{port}: {error}") from None
        timeout = timedelta(seconds=self._context.timeout_s)
        return tcp_store(address, port, timeout, serves)
