"""Groups of an elastic run over torch RPC: its calls between two ranks do not need the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainer.comm.base import CommunicationError, communication_errors
from trainer.comm.elastic import Group, Groups
from trainer.comm.rpc import HEARTBEAT_S, RpcCommunicator
from trainer.core.clock import Clock

if TYPE_CHECKING:
    from trainer.core.context import NodeContext

POLL_S = 0.02


class RpcGroup(RpcCommunicator, Group):
    """Some ranks of the one RPC network. A message reaches only the group in which it was sent."""

    _left = False

    def _split(self, groups: list[list[int]], number: int) -> RpcCommunicator:
        raise NotImplementedError("no elastic strategy splits its communicator")

    def _await(self, answer: Any) -> None:
        answered = threading.Event()
        answer.then(lambda _: answered.set())
        while not answered.wait(HEARTBEAT_S):
            self._check()
        answer.wait()  # raises its error

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
