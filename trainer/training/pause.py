"""Stop this whole process for a time, and its helper process: `python -I -S pause.py PIDFD SECONDS`.

A process cannot continue itself, so a helper sends both signals. It holds a file descriptor of the process
(pidfd) instead of its PID, which another process could get later, and ends as soon as the process ends.
"""

import os
import select
import signal
import subprocess
import sys


def pause(seconds: float) -> None:
    """Stop all threads of this process for so many seconds. Needs Linux.

    The helper inherits the environment, by which a runtime finds the processes of a run.

    Raises:
        OSError: the system does not permit it; the message says why.
    """
    process = os.pidfd_open(os.getpid())
    try:
        command = [sys.executable, "-I", "-S", __file__, str(process), str(seconds)]
        helper = subprocess.run(
            command, pass_fds=[process], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(process)
    if helper.returncode:
        raise OSError(helper.stderr.strip().rpartition("\n")[2])


def hold(process: int, seconds: float) -> None:
    """Stop the process of a pidfd for so many seconds, or until it ends."""
    signal.pidfd_send_signal(process, signal.SIGSTOP)
    try:
        select.select([process], [], [], seconds)  # readable once the process has ended
    finally:
        signal.pidfd_send_signal(process, signal.SIGCONT)


if __name__ == "__main__":
    hold(int(sys.argv[1]), float(sys.argv[2]))
