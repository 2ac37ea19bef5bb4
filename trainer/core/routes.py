"""Routes of this network namespace: whether packets to other nodes pass the switch of a run's links."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection
from pathlib import Path

LINK_INTERFACE = "link0"  # of a node; on the other side is the switch (trainer/link_switch)
ROUTES = Path("/proc/net/route")
POLL_S = 0.02


def linked(table: str) -> set[str]:
    """The addresses that have a route of their own through the switch.

    table: the text of /proc/net/route.
    """
    found = set()
    for line in table.splitlines()[1:]:
        interface, destination, _, _, _, _, _, mask, *_ = line.split()
        if interface == LINK_INTERFACE and mask == "FFFFFFFF":
            found.add(socket.inet_ntoa(int(destination, 16).to_bytes(4, "little")))
    return found


def wait_until_linked(peers: Collection[str], timeout_s: float, routes: Path = ROUTES) -> bool:
    """Wait until packets to these addresses pass the switch. Returns False when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not {*peers} <= linked(routes.read_text()):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
