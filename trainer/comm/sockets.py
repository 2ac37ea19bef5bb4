"""The sockets of this process, those that libraries have opened included."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path


def open_sockets() -> dict[int, str]:
    """The name of every socket, by descriptor; a name is never used again. Needs Linux."""
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed since it was listed
            if (name := os.readlink(each)).startswith("socket:"):
                found[int(each.name)] = name
    return found


def end_connection(number: int, name: str) -> None:
    """Shut down the connection of this descriptor if its socket still has this name. Raises OSError.

    The name is that of a duplicate: another thread may close the descriptor at any moment, and a new
    connection get its number.
    """
    duplicate = os.dup(number)
    if os.readlink(f"/proc/self/fd/{duplicate}") != name:
        os.close(duplicate)
        return
    with socket.socket(fileno=duplicate) as connection:
        connection.getpeername()  # not of a listener, whose end would end the process
        connection.shutdown(socket.SHUT_RDWR)
