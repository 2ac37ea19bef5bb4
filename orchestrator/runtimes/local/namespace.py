"""A network of its own for the nodes of a sweep: a network namespace that has only a loopback interface.

    python -S -E namespace.py DESCRIPTOR

creates one, and sends the descriptors by which it is entered through this Unix socket. It is a process of
its own, because only a process with one thread can enter a user namespace.

Processes outside cannot connect to its ports, and abstract Unix sockets in it are not visible to them. Only
root and its owner can enter it. It has no file and no process: it ends with the descriptors, which this
process holds, and with the processes in it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Sequence
from fcntl import ioctl
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # of unshare(2)
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1  # of netdevice(7)
TIMEOUT_S = 20.0
# Settings of the kernel in /proc/sys that forbid user namespaces: name and value.
FORBIDDEN = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1"),
    ("kernel.unprivileged_userns_clone", "0"),
    ("user.max_user_namespaces", "0"),
)


class NamespaceError(Exception):
    """This machine permits no network namespace; the message says why."""


class PrivateNetwork:
    """A network namespace for local nodes, created when it is first asked for."""

    def __init__(self) -> None:
        self._prefix: list[str] | None = None
        self._reason: str | None = None
        self._closed = weakref.finalize(self, _close, ())

    @property
    def prefix(self) -> list[str]:
        """What to put before a command to run it in the namespace; empty if there is none."""
        if self._prefix is None:
            self._open()
        return self._prefix or []

    @property
    def unavailable_reason(self) -> str | None:
        """Why this machine permits no namespace; None if it does."""
        return None if self.prefix else self._reason

    def close(self) -> None:
        """Give up the namespace, which ends with its last process. Idempotent."""
        self._closed()
        self._prefix = None

    def _open(self) -> None:
        try:
            descriptors = _created()
        except NamespaceError as error:
            self._prefix, self._reason = [], str(error)
            return
        self._closed = weakref.finalize(self, _close, descriptors)
        prefix = _entering(descriptors)
        self._reason = _failure([*prefix, "true"])
        self._prefix = [] if self._reason else prefix


def _created() -> list[int]:
    """Descriptors of a new network namespace, and of its user namespace if it needs one.

    Raises NamespaceError if this machine does not permit it.
    """
    if sys.platform != "linux":
        raise NamespaceError("only Linux has network namespaces")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = theirs.fileno()
        if reason := _failure([sys.executable, "-S", "-E", __file__, str(number)], number):
            wrong = (f"{name} is {value}" for name, value in FORBIDDEN if _setting(name) == value)
            raise NamespaceError("; ".join([reason, *wrong]))
        return socket.recv_fds(ours, 1, 2, socket.MSG_CMSG_CLOEXEC)[1]


def _entering(descriptors: Sequence[int]) -> list[str]:
    """The command that enters the namespaces with the caller's user."""
    network, *user = (f"/proc/{os.getpid()}/fd/{number}" for number in descriptors)
    options = [f"--user={user[0]}", "--preserve-credentials"] if user else []
    return [shutil.which("nsenter") or "nsenter", *options, f"--net={network}", "--"]


def _failure(command: Sequence[str], *descriptors: int) -> str | None:
    """Why a command fails that inherits the descriptors, or None."""
    try:
        done = subprocess.run(
            command,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.strip() or f"{command[0]} ended with exit code {done.returncode}").splitlines()[-1]


def _setting(name: str) -> str | None:
    """The value of a setting of the kernel; None if the kernel does not have it."""
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return None


def _close(descriptors: Sequence[int]) -> None:
    for number in descriptors:
        os.close(number)


# What follows runs in the process that creates the namespace.


def main(channel: socket.socket) -> None:
    """Create the namespace and send its descriptors through the channel. Raises OSError."""
    names = ["net"]
    try:
        _unshare(CLONE_NEWNET)
    except PermissionError:  # without privileges, a user namespace of the caller has to own it
        _unshare_with_user()
        names.append("user")
    _start_loopback()
    socket.send_fds(channel, [b"."], [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in names])


def _unshare_with_user() -> None:
    """Enter a new user namespace, in which the caller's user and group keep their numbers."""
    user, group = os.geteuid(), os.getegid()
    _unshare(CLONE_NEWUSER | CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")  # required before gid_map
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        number = ctypes.get_errno()
        kind = "user" if flags & CLONE_NEWUSER else "network"
        limited = number == errno.ENOSPC
        reason = "the limit on their number is reached" if limited else os.strerror(number)
        raise OSError(number, f"cannot create a {kind} namespace: {reason}")


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        except OSError as error:
            message = f"cannot start the loopback interface of a network namespace: {error.strerror}"
            raise OSError(error.errno, message) from error


if __name__ == "__main__":
    try:
        main(socket.socket(fileno=int(sys.argv[1])))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
