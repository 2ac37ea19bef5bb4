"""Where torchrun's agents meet: a rendezvous backend for nodes that are known and do not change.

torchrun's own, `c10d`, is made for clusters that grow and shrink. A node's number is another after every
meeting, one that is slow for 15 s counts as dead, and attempts are counted by each agent for itself: after
one of them ranks look for each other in different places. Here numbers are fixed, and so is the count.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from trainer.comm.attempt_store import prefix
from trainer.elastic.command import BACKEND
from trainer.spec.run_spec import RunSpec

POLL_S = 0.05
LEAVE_S = 5.0  # the agent with the store gives the others this long to leave first


class Rendezvous(RendezvousHandler):
    """The meetings of N agents, one per attempt.

    An agent comes to the next one when it has ended its ranks, and it takes place when all have come: so
    when the ranks of an attempt start, none of an earlier one is left on any node.
    """

    def __init__(self, spec: RunSpec, node: int, place: str) -> None:
        """node: this agent's number. place: see `connect`. Raises RendezvousConnectionError."""
        self._spec, self._node = spec, node
        self._store, self._address = connect(place, node, spec.timeout_s)
        self._attempt = -1

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet for the next attempt. Raises RendezvousClosedError when there is to be none."""
        self._attempt += 1
        if self._attempt > self._spec.restarts:
            raise RendezvousClosedError(f"a rank was lost, and {self._spec.restarts} restarts are used up")
        here = self._keys(self._attempt)
        here.set(self._name(self._node), "here")
        deadline = time.monotonic() + self._spec.timeout_s
        # Not store.wait: a signal would be heard only afterwards.
        while not here.check([self._name(node) for node in range(self._spec.nodes)]):
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(f"not all nodes came within {self._spec.timeout_s:g} s")
            time.sleep(POLL_S)
        os.environ["SHARDYARD_ATTEMPT"] = str(self._attempt)  # ranks have the agent's environment
        return RendezvousInfo(here, self._node, self._spec.nodes, self._address)

    def num_nodes_waiting(self) -> int:
        """How many agents have come for the next attempt: then torchrun ends its ranks and comes, too."""
        later = self._keys(self._attempt + 1)
        return sum(later.check([self._name(node)]) for node in range(self._spec.nodes))

    def shutdown(self) -> bool:
        """Leave; node 0's agent last, for it has the store."""
        here = self._keys(self._attempt)
        left, deadline = here.add("left", 1), time.monotonic() + LEAVE_S
        while self._node == 0 and left < self._spec.nodes and time.monotonic() < deadline:
            time.sleep(POLL_S)
            left = here.add("left", 0)
        return True

    def _keys(self, attempt: int) -> Store:
        return PrefixStore(prefix(attempt), self._store)

    @staticmethod
    def _name(node: int) -> str:
        return f"node {node}"

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_run_id(self) -> str:
        return self._spec.key

    def is_closed(self) -> bool:
        return self._attempt > self._spec.restarts

    def set_closed(self) -> None:
        """It closes by itself, when the restarts are used up."""


def connect(place: str, node: int, timeout_s: float) -> tuple[Store, RendezvousStoreInfo]:
    """The agents' store, which is node 0's, and its address; ranks use it, too.

    place: see `torchrun`. Raises RendezvousConnectionError.
    """
    local, timeout = place.startswith("/"), timedelta(seconds=timeout_s)
    host, _, number = ("127.0.0.1", "", "0") if local else place.rpartition(":")
    try:
        if node:
            port = _told(Path(place), timeout_s) if local else int(number)
            store = TCPStore(host, port, is_master=False, timeout=timeout)
            return store, RendezvousStoreInfo(host, port)
        listener = socket.create_server((host, int(number)), backlog=1024)  # at this address and no other
        port = listener.getsockname()[1]
        store = TCPStore(
            host,
            port,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    except (OSError, RuntimeError) as error:
        raise RendezvousConnectionError(f"no meeting at {place}: {error}") from error
    if local:
        Path(place).with_suffix(".new").write_text(str(port))
        Path(place).with_suffix(".new").replace(place)
    return store, RendezvousStoreInfo(host, port)


def _told(path: Path, timeout_s: float) -> int:
    """The port that node 0's agent has written down."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"node 0 did not come up within {timeout_s:g} s")
        time.sleep(POLL_S)
    return int(path.read_text())
