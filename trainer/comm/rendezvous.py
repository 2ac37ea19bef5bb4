"""The key-value store through which the ranks of a run find each other."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trainer.comm.base import CommunicationError, communication_errors

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from trainer.core.context import NodeContext

POLL_S = 0.01
ATTEMPT_S = 5.0  # of a connection; a lost packet is sent again after 1 and 3 s
# Until an address counts as not reachable. A Docker Swarm may learn an address half a minute late.
UNREACHABLE_S = 45.0


def rendezvous(context: NodeContext) -> Store:
    """Join the other ranks at `context.rendezvous`.

    Args:
        context: Its rendezvous is the path of a file that all ranks share; tcp://host:port, where rank 0
            listens; or store://host:port/prefix, where the launcher does.

    Returns:
        A store that all ranks have joined. If it is served over TCP, their addresses are reachable, too.

    Raises:
        CommunicationError: The rendezvous is neither, or ranks did not join within `context.timeout_s`, or
            one cannot reach another. The error names them.
    """
    from torch.distributed import FileStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

    address, timeout = context.rendezvous, timedelta(seconds=context.timeout_s)
    size, rank = context.size, context.rank
    joined = [f"here/{each}" for each in range(size)]
    url = urlsplit(address)
    store: Store
    with communication_errors(f"rendezvous of {size} ranks at {address}"):
        # Not a file:// URL, which would end at a `#` or `?` in the path.
        if address.startswith("/"):
            store = FileStore(address, size)
        elif url.scheme == "tcp" and url.hostname and url.port:
            if rank != 0:
                _wait_for_store("node 0", url.hostname, url.port, context)
            store = TCPStore(url.hostname, url.port, size, rank == 0, timeout, wait_for_workers=False)
        elif url.scheme == "store" and url.hostname and url.port:
            _wait_for_store("the launcher's store", url.hostname, url.port, context)
            served = TCPStore(url.hostname, url.port, is_master=False, timeout=timeout)
            store = PrefixStore(url.path, served)  # an earlier attempt has left keys
        else:
            forms = "/path or tcp://host:port, or store://host:port/prefix of a launcher"
            raise CommunicationError(f"rendezvous {address!r}: must be {forms}")
        store.set_timeout(timeout)
        store.set(joined[rank], "")
        try:
            store.wait(joined, timeout)
        except RuntimeError:
            missing = ", ".join(str(each) for each in range(size) if not store.check([joined[each]]))
            if not missing:
                raise
            late = f"node {missing} did not join {address} within {context.timeout_s:g} s"
            raise CommunicationError(late) from None
        if size > 1 and url.hostname and url.port:
            _check_peers(store, context, url.hostname, url.port)
    return store


def _wait_for_store(who: str, host: str, port: int, context: NodeContext) -> None:
    """Return when the store of `who` accepts connections.

    torch's client waits half a second and longer after its first refused connection. A machine that refuses
    is reachable, and its rank may start later, as may a machine whose name is not known yet.
    """
    began = answered_at = time.monotonic()
    while True:
        try:
            socket.create_connection((host, port), min(ATTEMPT_S, context.timeout_s)).close()
            return
        except OSError as error:
            now = time.monotonic()
            if isinstance(error, (ConnectionRefusedError, socket.gaierror)):
                answered_at = now
            if now - began > context.timeout_s:
                late = f"{who} did not answer at {context.rendezvous} within {context.timeout_s:g} s"
                raise CommunicationError(f"{late}: {error}") from None
            if now - answered_at > UNREACHABLE_S:
                late = f"{who} is not reachable at {host}:{port} for {UNREACHABLE_S:g} s"
                raise CommunicationError(f"{late}: {error}") from None
            time.sleep(POLL_S)


def _check_peers(store: Store, context: NodeContext, host: str, port: int) -> None:
    """Check that the ranks reach each other at their addresses on the route to the store.

    Without it, gloo hangs, or fails after the time limit and names no node.

    Raises:
        CommunicationError: one does not reach another. It is the same error on all ranks.
    """
    own = first = ""
    if context.rank:  # rank 0 need not know under which of its addresses the others reach it
        with socket.create_connection((host, port), context.timeout_s) as route:
            own, first = route.getsockname()[0], route.getpeername()[0]
    with _listener(context.size) as listener:
        store.set(f"at/{context.rank}", json.dumps([own, first, listener.getsockname()[1]]))
        at = [json.loads(each) for each in store.multi_get([f"at/{each}" for each in range(context.size)])]
        store.set(f"misses/{context.rank}", _missed(context, at))
        missed = store.multi_get([f"misses/{each}" for each in range(context.size)])
    for rank, peer in enumerate(missed):
        if peer:
            raise CommunicationError(f"node {rank} does not reach {peer.decode()}")


def _listener(backlog: int) -> socket.socket:
    """Listens on all interfaces. Connections need not be accepted."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=backlog)


def _missed(context: NodeContext, at: Sequence[tuple[str, str, int]]) -> str:
    """The first peer that a rank does not reach, its address and the error; empty if it reaches all."""
    for peer, (address, port) in to_connect(context.rank, at).items():
        try:
            _connect(address, port, min(UNREACHABLE_S, context.timeout_s / 2))  # before its peers give up
        except OSError as error:
            return f"node {peer} at {address}: {error}"
    return ""


def to_connect(rank: int, at: Sequence[tuple[str, str, int]]) -> dict[int, tuple[str, int]]:
    """Where a rank connects to: one peer on each machine, its address and port.

    Of two ranks, that with the higher address connects, as in gloo, which does without the other direction.
    Ranks of one address are on one machine.

    Args:
        at: of each rank its address, that of rank 0 as it sees it, and a port. Rank 0 has no addresses.
    """
    own, first, _ = at[rank]
    found: dict[str, tuple[int, int]] = {}
    for peer, (address, seen, port) in enumerate(at):
        target, source = address or first, own or seen
        linked = target.startswith("fe80:")  # which means a machine only with the name of an interface
        if peer != rank and not linked and _order(target) < _order(source):
            found.setdefault(target, (peer, port))
    return {peer: (target, port) for target, (peer, port) in found.items()}


def _order(address: str) -> tuple[int, int]:
    found = ip_address(address)
    return found.version, int(found)


def _connect(host: str, port: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    wait_for_listener(host, port, min(ATTEMPT_S, within_s), lambda: time.monotonic() > deadline)


def wait_for_listener(host: str, port: int, timeout_s: float, give_up: Callable[[], bool]) -> None:
    """Return when the port accepts connections.

    Args:
        timeout_s: the time limit of each attempt, in seconds.
        give_up: asked after each attempt that fails.

    Raises:
        OSError: the error of the last attempt.
    """
    while True:
        try:
            socket.create_connection((host, port), timeout=timeout_s).close()
            return
        except OSError:
            if give_up():
                raise
            time.sleep(POLL_S)
