"""A TUN device in this network namespace, and routes through it. Needs CAP_NET_ADMIN and /dev/net/tun."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable

from trainer.core.routes import LINK_INTERFACE
from trainer.link_switch.shaping import MAX_MTU

DEVICE = "/dev/net/tun"
QUEUE_PACKETS = 10_000  # that the kernel keeps until the switch reads them

# linux/if_tun.h, linux/sockios.h, linux/if.h and linux/route.h
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFMTU, SIOCSIFTXQLEN, SIOCADDRT = 0x8913, 0x8914, 0x8922, 0x8943, 0x890B
IFF_UP, RTF_UP, RTF_HOST = 0x1, 0x1, 0x4

_NAME = LINK_INTERFACE.encode()


def create() -> int:
    """Create the device and start it. Returns its descriptor, with which it disappears. Raises OSError."""
    tun = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", _NAME, IFF_TUN | IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFMTU, struct.pack("16si20x", _NAME, MAX_MTU))
        fcntl.ioctl(any_socket, SIOCSIFTXQLEN, struct.pack("16si20x", _NAME, QUEUE_PACKETS))
        found = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH22x", _NAME, 0))
        (flags,) = struct.unpack_from("H", found, 16)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", _NAME, flags | IFF_UP))
    return tun


def route(peers: Iterable[str]) -> None:
    """Send packets for these addresses through the device. Raises OSError."""
    device = ctypes.create_string_buffer(_NAME)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for peer in peers:
            fcntl.ioctl(any_socket, SIOCADDRT, _rtentry(peer, ctypes.addressof(device)))


def _rtentry(peer: str, device: int) -> bytes:
    """struct rtentry of a route to one address. device: the memory address of the device's name."""
    address = {
        name: struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))
        for name, text in (("to", peer), ("gateway", "0.0.0.0"), ("mask", "255.255.255.255"))
    }
    return struct.pack(
        "@L16s16s16sHhL8xhPLLH6x",
        0,
        address["to"],
        address["gateway"],
        address["mask"],
        RTF_UP | RTF_HOST,
        *(0, 0, 0),
        device,
        *(0, 0, 0),
    )
