"""The key-value store through which the ranks of a run find each other."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trainer.comm.base import CommunicationError, communication_errors

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from trainer.core.context import NodeContext

POLL_S = 0.01


def rendezvous(context: NodeContext) -> Store:
    """Join the other ranks at `context.rendezvous`.

    Args:
        context: Its rendezvous is the path of a file that all ranks share; tcp://host:port, where rank 0
            listens; or store://host:port/prefix, where the launcher does.

    Returns:
        A store that all ranks have joined.

    Raises:
        CommunicationError: The rendezvous is neither, or ranks did not join within `context.timeout_s`. The
            error names them.
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
                late = f"node 0 did not join {address} within {context.timeout_s:g} s"
                _wait_for_listener(url.hostname, url.port, context, late)
            store = TCPStore(url.hostname, url.port, size, rank == 0, timeout, wait_for_workers=False)
        elif url.scheme == "store" and url.hostname and url.port:
            _wait_for_listener(url.hostname, url.port, context, "the launcher's store is not reachable")
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
    return store


def _wait_for_listener(host: str, port: int, context: NodeContext, late: str) -> None:
    """Return when the port accepts connections. late: the error if it does not.

    torch's client waits half a second and longer after its first refused connection.
    """
    deadline = time.monotonic() + context.timeout_s
    try:
        wait_for_listener(host, port, context.timeout_s, lambda: time.monotonic() > deadline)
    except OSError as error:
        raise CommunicationError(f"{late}: {error}") from None


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
