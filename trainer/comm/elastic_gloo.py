"""Groups of an elastic run over gloo: a process group of its own for each."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from zlib import crc32

from trainer.comm.base import CommunicationError, communication_errors
from trainer.comm.elastic import Group, Groups
from trainer.comm.rendezvous import rendezvous, wait_for_listener
from trainer.comm.sockets import open_sockets
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import Store

    from trainer.core.context import NodeContext

POLL_S = 0.02
CONNECT_S = 30.0  # for the members of a group, which have all arrived, to connect
ATTEMPT_S = 1.0  # to connect to a rendezvous
FIRST_PORT, PORTS = 30000, 20000  # of the rendezvous of later groups, in containers


class GlooGroup(Group):
    """One process group of gloo. Its operations raise CommunicationError when a member is lost."""

    def __init__(
        self, rank: int, size: int, clock: Clock, group: Any, sockets: Mapping[int, str] | None = None
    ) -> None:
        """
        Args:
            group: torch's ProcessGroupGloo; None for a single rank.
            sockets: those of the group, by descriptor.
        """
        super().__init__(rank, size, clock)
        self.group, self._sockets = group, dict(sockets or {})

    def _all_reduce(self, buffer: Tensor) -> None:
        with communication_errors("all-reduce"):
            self.group.allreduce([buffer]).wait()

    def _all_gather(self, buffer: Tensor) -> Tensor:
        gathered = buffer.new_empty(self.size, buffer.numel())
        with communication_errors("all-gather"):
            self.group.allgather([list(gathered.unbind())], [buffer]).wait()
        return gathered

    def _broadcast(self, buffer: Tensor, root: int) -> None:
        with communication_errors("broadcast"):
            self.group.broadcast(buffer, root).wait()

    def _shift(self, buffer: Tensor, to: int, source: int) -> Tensor:
        received = buffer.new_empty(buffer.shape)
        with communication_errors("shift"):
            sent = self.group.send([buffer], to, 0)
            self.group.recv([received], source, 0).wait()
            sent.wait()
        return received

    def _barrier(self) -> None:
        with communication_errors("barrier"):
            self.group.barrier().wait()

    def leave(self) -> None:
        # Connections close when the last reference is gone; exceptions hold some in circles.
        self.group = None
        gc.collect()

    def interrupt(self) -> None:
        # ProcessGroupGloo.abort does not end an operation that waits. Without its connections it fails.
        present = open_sockets()
        for number, name in self._sockets.items():
            if present.get(number) == name:
                with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                    connection.getpeername()  # not of a listener, whose end would end the process
                    connection.shutdown(socket.SHUT_RDWR)


class GlooGroups(Groups):
    """The groups of one rank. Their members find each other at a file or port that follows from a name."""

    def __init__(self, context: NodeContext, clock: Clock) -> None:
        self._context, self._clock = context, clock

    def first(self) -> Group:
        context = self._context
        with communication_errors(f"process group of {context.size} ranks at {context.rendezvous}"):
            return self._group(rendezvous(context), range(context.size), context.timeout_s)

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
                    raise CommunicationError(f"process group {name}: a member was lost")
                time.sleep(POLL_S)
            return self._group(store, ranks, CONNECT_S)

    def _group(self, store: Store, ranks: Sequence[int], connect_s: float) -> GlooGroup:
        """A process group over `store`, in which all of these ranks have arrived."""
        import torch.distributed as dist

        rank, before = ranks.index(self._context.rank), open_sockets()
        group = dist.ProcessGroupGloo(store, rank, len(ranks), timeout=timedelta(seconds=connect_s))
        group.set_timeout(timedelta(seconds=self._context.timeout_s))
        sockets = {number: name for number, name in open_sockets().items() if before.get(number) != name}
        return GlooGroup(rank, len(ranks), self._clock, group, sockets)

    def _store(self, name: str, address: str, serves: bool, give_up: Callable[[], bool]) -> Store:
        """The store of this name, which the rank at `address` serves."""
        from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]

        if self._context.rendezvous.startswith("/"):
            return FileStore(f"{self._context.rendezvous}-{name}")
        port = FIRST_PORT + crc32(name.encode()) % PORTS
        if not serves:
            try:
                wait_for_listener(address, port, ATTEMPT_S, give_up)
            except OSError as error:
                raise CommunicationError(f"{address}:{port}: {error}") from None
        timeout = timedelta(seconds=self._context.timeout_s)
        return TCPStore(address, port, None, serves, timeout, wait_for_workers=False)

    def invite(self, name: str, address: str, group: str) -> None:
        deadline = time.monotonic() + CONNECT_S
        with communication_errors(f"inviting {name}"):
            store = self._store(name, address, False, lambda: time.monotonic() > deadline)
            store.set("group", group)

    def invitation(self, name: str, address: str, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        with communication_errors(f"waiting for an invitation as {name}"):
            self._waiting = store = self._store(name, address, True, lambda: False)
            while not store.check(["group"]):
                if time.monotonic() > deadline:
                    raise CommunicationError(f"{name}: the other nodes did not answer in {timeout_s:g} s")
                time.sleep(POLL_S)
            return str(store.get("group").decode())
