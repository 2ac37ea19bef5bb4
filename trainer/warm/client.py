"""The client of a warm parent: stands for one rank.

    python -S -E client.py NAME

The parent with this socket name forks the rank, which takes over the client's environment and standard
streams. The client forwards signals to the rank, and exits as the rank exits. mpirun, the orchestrator and
an agent start, signal and wait for the client as if it were the rank.
"""

import json
import os
import signal
import socket
import struct
import sys

# Exit code if the parent cannot fork the rank, or has died. EX_UNAVAILABLE of sysexits.h; no rank uses it.
UNAVAILABLE = 69
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(name: str) -> int:
    """Run one rank. Returns its exit code, negative if a signal killed it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until the rank's PID is known
    parent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connect(parent, name)
        request = json.dumps({"environment": dict(os.environ), "directory": os.getcwd()}).encode() + b"\n"
        sent = socket.send_fds(parent, [request], [0, 1, 2])
        if rest := request[sent:]:  # sending nothing fails, too, if the parent has already refused
            parent.sendall(rest)
        replies = parent.makefile("r")
        started = json.loads(replies.readline() or "{}")
        if "pid" not in started:
            raise OSError(started.get("refused", "it closed the connection"))
        for number in FORWARDED:
            signal.signal(number, lambda received, _: _forward(started["pid"], received))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        ended = json.loads(replies.readline() or "{}")
        if "code" not in ended:
            raise OSError("it died")
    except OSError as error:
        print(f"warm parent {name}: {error}", file=sys.stderr)
        return UNAVAILABLE
    return int(ended["code"])


def connect(parent: socket.socket, name: str) -> None:
    """Connect to the parent of this name. Raises OSError, also if it belongs to another user.

    Abstract names leave no file behind, but have no file's permissions either.
    """
    parent.connect("\0" + name)
    if peer_uid(parent) != os.getuid():
        raise PermissionError(f"{name} belongs to another user")


def peer_uid(connected: socket.socket) -> int:
    """The user of the process at the other end."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


def _forward(rank: int, number: int) -> None:
    try:  # contextlib takes longer to import
        os.kill(rank, number)
    except ProcessLookupError:
        return  # its exit code is on the way


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stderr.flush()
    if code < 0:
        if -code in FORWARDED:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
