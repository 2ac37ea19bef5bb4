"""A torchrun rendezvous backend for a fixed set of nodes.

torchrun's own backend, `c10d`, is made for clusters that grow and shrink: node ranks change in every
rendezvous, a node that is silent for 15 s counts as dead, and each agent counts attempts for itself, so
that after a restart ranks may look for each other under different keys. Here node ranks are fixed, and one
counter of attempts holds for the whole run.
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
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts.command import BACKEND

POLL_S = 0.05
SHUTDOWN_S = 5.0  # how long the agent that hosts the store waits for the others to leave


class Rendezvous(RendezvousHandler):
    """The rendezvous of N agents, once per attempt.

    An agent arrives after it has stopped its ranks, and the rendezvous completes when all agents have
    arrived. So no rank of an earlier attempt runs on any node when an attempt starts.
    """

    def __init__(self, spec: RunSpec, node: int, endpoint: str) -> None:
        """node: this agent's number. endpoint: see `connect`. Raises RendezvousConnectionError."""
        self._spec, self._node = spec, node
        self._store, self._address = connect(endpoint, node, spec.timeout_s)
        self._attempt = -1

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all agents have arrived for the next attempt.

        Raises:
            RendezvousClosedError: all restarts are used.
            RendezvousTimeoutError: an agent did not arrive in time.
        """
        self._attempt += 1
        if self._attempt > self._spec.restarts:
            raise RendezvousClosedError(f"a rank was lost and all {self._spec.restarts} restarts are used")
        keys = self._keys(self._attempt)
        keys.set(self._name(self._node), "arrived")
        deadline = time.monotonic() + self._spec.timeout_s
        # Not store.wait, during which Python handles no signals.
        while not keys.check([self._name(node) for node in range(self._spec.nodes)]):
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(f"not all nodes arrived within {self._spec.timeout_s:g} s")
            time.sleep(POLL_S)
        os.environ["SHARDYARD_ATTEMPT"] = str(self._attempt)  # ranks inherit it
        return RendezvousInfo(keys, self._node, self._spec.nodes, self._address)

    def num_nodes_waiting(self) -> int:
        """How many agents have arrived for the next attempt. If any, torchrun stops its ranks, too."""
        following = self._keys(self._attempt + 1)
        return sum(following.check([self._name(node)]) for node in range(self._spec.nodes))

    def shutdown(self) -> bool:
        """Leave the rendezvous. Node 0's agent hosts the store and leaves last."""
        keys = self._keys(self._attempt)
        left, deadline = keys.add("left", 1), time.monotonic() + SHUTDOWN_S
        while self._node == 0 and left < self._spec.nodes and time.monotonic() < deadline:
            time.sleep(POLL_S)
            left = keys.add("left", 0)
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
        """Does nothing: the rendezvous closes when all restarts are used."""


def connect(endpoint: str, node: int, timeout_s: float) -> tuple[Store, RendezvousStoreInfo]:
    """Create node 0's store, or connect to it. Agents and ranks use the same store.

    Args:
        endpoint: see `torchrun`.
        node: this agent's number.
        timeout_s: the time limit of the connection and of every later operation, in seconds.

    Returns:
        The store and its address.

    Raises:
        RendezvousConnectionError: the port is taken, or node 0 does not answer in time.
    """
    local, timeout = endpoint.startswith("/"), timedelta(seconds=timeout_s)
    host, _, number = ("127.0.0.1", "", "0") if local else endpoint.rpartition(":")
    try:
        if node:
            port = _read_port(Path(endpoint), timeout_s) if local else int(number)
            store = TCPStore(host, port, is_master=False, timeout=timeout)
            return store, RendezvousStoreInfo(host, port)
        # TCPStore itself would listen on all interfaces.
        listener = socket.create_server((host, int(number)), backlog=1024)
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
        raise RendezvousConnectionError(f"no rendezvous at {endpoint}: {error}") from error
    if local:
        Path(endpoint).with_suffix(".new").write_text(str(port))
        Path(endpoint).with_suffix(".new").replace(endpoint)
    return store, RendezvousStoreInfo(host, port)


def _read_port(path: Path, timeout_s: float) -> int:
    """The port that node 0's agent has written to the file."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"node 0 did not write {path} within {timeout_s:g} s")
        time.sleep(POLL_S)
    return int(path.read_text())
