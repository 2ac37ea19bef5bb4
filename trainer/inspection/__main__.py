"""`python -m trainer.inspection DIRECTORY`: answers requests, a line of JSON each, until its input ends.

Each request is served by a forked process, so that users' modules and random states do not meet, and so
that the files that a component opens are its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait

from trainer.core.events import signal_name
from trainer.inspection.inspect import Answer, Request, inspect

PR_SET_PDEATHSIG = 1  # of prctl(2)


def main() -> None:
    """Serve requests. The working directory is that of the sweep file."""
    import torch

    torch.set_num_threads(1)  # a thread pool would not survive the fork
    os.chdir(sys.argv[1])
    sys.dont_write_bytecode = True
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what users' code prints is not an answer
    with tempfile.TemporaryDirectory() as empty:
        sys.pycache_prefix = empty  # so that imports open sources, and the files that they need are known
        for line in requests:
            print(_served(Request.model_validate_json(line)).model_dump_json(), file=answers, flush=True)


def _served(request: Request) -> Answer:
    fork = get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_serve, args=(request, sender, os.getpid()))
    process.start()
    sender.close()
    if wait([receiver, sys.stdin.fileno()]) != [receiver] and not receiver.poll():
        process.kill()  # whoever asked has ended: there is one request at a time
        process.join()
        sys.exit(1)
    try:
        answer = Answer.model_validate_json(receiver.recv())
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        return Answer(error=f"the process that tried it {how}")
    process.join()
    return answer


def _serve(request: Request, sender: Connection, parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        sender.send(inspect(request).model_dump_json())


if __name__ == "__main__":
    main()
