"""Lose packets that arrive over TCP connections of this process, without privileges.

A socket can demand that packets have passed few routers: that their time to live (TTL) is at least a
minimum (ip(7), IP_MINTTL; for IPv6 IPV6_MINHOPCOUNT). Packets start with 64, so with a minimum of 255 the
kernel drops all that arrive. TCP sends again what was dropped, data and acknowledgements alike, so
connections stay intact. They resume with the sender's next attempt: after each it waits twice as long, so
a cut of s seconds can stall a connection for up to about 2 s seconds.

A socket filter (BPF) could drop single packets at random, but some kernels require CAP_NET_ADMIN for it,
which containers do not have.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from random import Random

from trainer.comm.sockets import open_sockets

SLICE_S = 0.002  # in which either all packets are lost or none
NEVER = 255  # the largest TTL, which no packet has
# By address family: level of the options, minimum TTL of arriving packets, TTL of packets sent.
_OPTIONS = {
    socket.AF_INET: (socket.IPPROTO_IP, 21, socket.IP_TTL),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 73, socket.IPV6_UNICAST_HOPS),
}


class PacketLoss:
    """Loses packets that arrive at sockets of this process, from `start` to `stop`."""

    def __init__(self, sockets: Collection[socket.socket], random: Random | None = None) -> None:
        """sockets: duplicates, which stay valid when the owner closes its own, and which `stop` closes."""
        self._sockets = [*sockets]
        self._random = random or Random()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="packet loss", daemon=True)
        self._share = 1.0

    def start(self, share: float) -> None:
        """Lose this share of the packets, 0 … 1: all that arrive in randomly drawn slices of time.

        Raises OSError if the system does not support it.
        """
        for each in self._sockets:
            level, _, own = _OPTIONS[each.family]
            # Peers on this machine send with the same TTL.
            if each.getsockopt(level, own) >= NEVER or each.getpeername()[0].startswith("::ffff:"):
                raise OSError(f"packets from {each.getpeername()[0]} have a TTL that cannot be limited")
        self._share = share
        self._lose(share >= 1)
        if share < 1:
            self._thread.start()

    def stop(self) -> None:
        """Let all packets arrive again."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        for each in self._sockets:
            with suppress(OSError):
                self._set(each, 0)
            each.close()
        self._sockets.clear()

    def _run(self) -> None:
        losing = False
        while not self._stopped.wait(SLICE_S):
            if losing != (self._random.random() < self._share):
                losing = not losing
                with suppress(OSError):  # a connection was closed
                    self._lose(losing)

    def _lose(self, losing: bool) -> None:
        for each in self._sockets:
            self._set(each, NEVER if losing else 0)

    @staticmethod
    def _set(each: socket.socket, ttl: int) -> None:
        level, minimum, _ = _OPTIONS[each.family]
        each.setsockopt(level, minimum, ttl)


def connections(service_ports: Collection[int] = ()) -> list[socket.socket]:
    """Duplicates of the sockets of this process's TCP connections.

    Args:
        service_ports: ports of services that are no ranks, whose connections are left out.
    """
    found = []
    for number in open_sockets():
        with suppress(OSError, ValueError):  # closed meanwhile, or not connected
            each = socket.socket(fileno=os.dup(number))
            if _is_connection(each, service_ports):
                found.append(each)
            else:
                each.close()
    return found


def _is_connection(each: socket.socket, service_ports: Collection[int]) -> bool:
    if each.family not in _OPTIONS or each.type != socket.SOCK_STREAM:
        return False
    try:
        ports = {each.getsockname()[1], each.getpeername()[1]}
    except OSError:  # it listens, or the connection is gone
        return False
    return ports.isdisjoint(service_ports)


def service_ports(rendezvous: str, environment: Mapping[str, str]) -> set[int]:
    """Ports of what ranks connect to beside each other: the rendezvous' store and mpirun's daemon."""
    daemons = [text for name, text in environment.items() if name.startswith("PMIX_SERVER_URI")]
    found = [re.search(r":(\d{1,5})$", text.strip()) for text in [rendezvous, *daemons]]
    return {int(match[1]) for match in found if match}
