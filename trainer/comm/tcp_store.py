"""torch's store over TCP, which at a loopback address listens on loopback only."""

from __future__ import annotations

import socket
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BACKLOG = 1024


def tcp_store(host: str, port: int, timeout: timedelta, serves: bool, size: int | None = None) -> Store:
    """A client of the store at this address, or the store itself.

    torch's own listener would be on all interfaces, without authentication.

    Args:
        size: how many clients there are; None: any number.

    Raises:
        RuntimeError: It cannot be reached, or the port is in use.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if not serves:
        return TCPStore(host, port, size, False, timeout, wait_for_workers=False)
    try:
        listener = listener_at(host, port, BACKLOG)
    except OSError as error:
        raise RuntimeError(f"port {port} of {host} cannot be used ({error.strerror})") from error
    return TCPStore(
        host,
        listener.getsockname()[1],
        size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def listener_at(host: str, port: int, backlog: int) -> socket.socket:
    """Listens on loopback at a loopback address, and otherwise on all interfaces.

    A name may mean loopback on its own machine only, and an address may be that of a service before it.
    """
    if _is_loopback(host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
        )
    return socket.create_server(("", port), backlog=backlog)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
