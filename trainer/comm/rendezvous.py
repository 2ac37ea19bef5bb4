"""The key-value store through which the ranks of a run find each other."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from trainer.comm.errors import CommunicationError, communication_errors
from trainer.comm.tcp_store import listener_at, tcp_store

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from trainer.core.context import NodeContext

POLL_S = 0.01
ATTEMPT_S = 5.0  # of a connection; a lost packet is sent again after 1 and 3 s
UNREACHABLE_S = 45.0  # until an address counts as not reachable


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
    from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]

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
            store = tcp_store(url.hostname, url.port, timeout, serves=rank == 0, size=size)
        elif url.scheme == "store" and url.hostname and url.port:
            _wait_for_store("the launcher's store", url.hostname, url.port, context)
            served = tcp_store(url.hostname, url.port, timeout, serves=False)
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
            _check_peers(store, context)
    return store


def _wait_for_store(who: str, host: str, port: int, context: NodeContext) -> None:
    """Return when the store of `who` accepts connections.

    torch's client waits half a second and longer after its first refused connection. Only a machine that
    does not answer at all counts as unreachable. One that refuses may start its rank later, as may one
    whose name or route is not known yet.
    """
    began = answered_at = time.monotonic()
    while True:
        try:
            socket.create_connection((host, port), min(ATTEMPT_S, context.timeout_s)).close()
            return
        except OSError as error:
            now = time.monotonic()
            if not isinstance(error, TimeoutError):
                answered_at = now
            if now - began > context.timeout_s:
                late = f"{who} did not answer at {context.rendezvous} within {context.timeout_s:g} s"
                raise CommunicationError(f"{late}: {error}") from None
            if now - answered_at > UNREACHABLE_S:
                late = f"{who} did not answer at {host}:{port} for {UNREACHABLE_S:g} s"
                raise CommunicationError(f"{late}: {error}") from None
            time.sleep(POLL_S)


def _check_peers(store: Store, context: NodeContext) -> None:
    """Check that the ranks reach each other at the addresses of the interfaces that gloo uses.

    Without it, gloo hangs, or fails after the time limit and names no node. Ranks to which no interface was
    assigned are left out.

    Raises:
        CommunicationError: one does not reach another. It is the same error on all ranks.
    """
    rank, ranks = context.rank, range(context.size)
    own = _own_address()
    with listener_at(own, 0, context.size) as listener:
        store.set(f"at/{rank}", json.dumps([own, listener.getsockname()[1]]))
        at = [json.loads(each) for each in store.multi_get([f"at/{each}" for each in ranks])]
        store.set(f"misses/{rank}", _missed(context, at))
        missed = store.multi_get([f"misses/{each}" for each in ranks])
    if not any(missed):
        return
    store.set(f"read/{rank}", "")
    if rank == 0:  # the store ends with it
        with suppress(RuntimeError):
            store.wait([f"read/{each}" for each in ranks], timedelta(seconds=ATTEMPT_S))
    first = next(each for each in ranks if missed[each])
    raise CommunicationError(f"node {first} does not reach {missed[first].decode()}")


def _own_address() -> str:
    """The address of gloo's interface; empty if none was assigned, or if it has none."""
    found = psutil.net_if_addrs().get(os.environ.get("GLOO_SOCKET_IFNAME", ""), [])
    of_families = (
        each.address
        for family in (socket.AF_INET, socket.AF_INET6)
        for each in found
        if each.family == family and not ip_address(each.address.partition("%")[0]).is_link_local
    )
    return next(of_families, "")


def _missed(context: NodeContext, at: Sequence[tuple[str, int]]) -> str:
    """The first peer that a rank does not reach, its address and the error; empty if it reaches all."""
    for peer in to_connect(context.rank, [address for address, _ in at]):
        address, port = at[peer]
        try:
            _connect(address, port, min(UNREACHABLE_S, context.timeout_s / 2))  # before its peers give up
        except OSError as error:
            return f"node {peer} at {address}: {error}"
    return ""


def to_connect(rank: int, addresses: Sequence[str]) -> list[int]:
    """The ranks to which a rank connects: one on each other machine.

    Of two ranks, that with the higher address connects, as in gloo, which does without the other direction.
    Ranks of one address are on one machine, and take the connections of other machines in turn.

    Args:
        addresses: of each rank; empty: unknown.
    """
    if not addresses[rank]:
        return []
    machines: dict[str, list[int]] = {}
    for peer, address in enumerate(addresses):
        if address and _order(address) < _order(addresses[rank]):
            machines.setdefault(address, []).append(peer)
    return [ranks[rank % len(ranks)] for ranks in machines.values()]


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
