"""Lose packets that arrive over TCP connections of this process, without privileges.

A socket may have a filter, a classic BPF program that the kernel runs for every packet that arrives; 0 as
its result drops the packet (Linux: Documentation/networking/filter.rst). TCP sends again what was dropped,
data and acknowledgements alike, so connections stay intact. They resume with the sender's next attempt:
after each it waits twice as long, so a cut of s seconds can stall a connection for up to about 2 s.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
# Instructions: code, offsets of the jumps if true and if false, operand (linux/bpf_common.h).
_LOAD, _JUMP_IF_GREATER_OR_EQUAL, _RETURN = 0x20, 0x35, 0x06
_RANDOM = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM: a random 32-bit word (linux/filter.h)
_WHOLE = 0xFFFFFFFF


def program(share: float) -> bytes:
    """The filter that drops this share of the packets, 0 … 1; 1 drops all."""
    if share >= 1:
        instructions = [(_RETURN, 0, 0, 0)]
    else:
        instructions = [
            (_LOAD, 0, 0, _RANDOM),
            (_JUMP_IF_GREATER_OR_EQUAL, 0, 1, round(share * 2**32)),
            (_RETURN, 0, 0, _WHOLE),
            (_RETURN, 0, 0, 0),
        ]
    return b"".join(struct.pack("HBBI", *each) for each in instructions)


class PacketLoss:
    """Filters on sockets of this process."""

    def __init__(self, sockets: Collection[socket.socket]) -> None:
        """sockets: duplicates, which stay valid when the owner closes its own."""
        self._sockets = [*sockets]

    def attach(self, share: float) -> None:
        """Drop this share of the packets that arrive, 0 … 1. Raises OSError."""
        code = program(share)
        memory = ctypes.create_string_buffer(code)
        # struct sock_fprog: number of instructions, pointer to them.
        filter_ = struct.pack("HP", len(code) // 8, ctypes.addressof(memory))
        for each in self._sockets:
            each.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)

    def detach(self) -> None:
        """Let all packets arrive again."""
        for each in self._sockets:
            with suppress(OSError):  # it has no filter any more
                each.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
            each.close()
        self._sockets.clear()


def connections(service_ports: Collection[int] = ()) -> list[socket.socket]:
    """Duplicates of the sockets of this process's TCP connections.

    Args:
        service_ports: ports of services that are no ranks, whose connections are left out.
    """
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError, ValueError):  # closed meanwhile, no socket, or not connected
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            each = socket.socket(fileno=os.dup(int(entry)))
            if _is_connection(each, service_ports):
                found.append(each)
            else:
                each.close()
    return found


def _is_connection(each: socket.socket, service_ports: Collection[int]) -> bool:
    if each.family not in (socket.AF_INET, socket.AF_INET6) or each.type != socket.SOCK_STREAM:
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
