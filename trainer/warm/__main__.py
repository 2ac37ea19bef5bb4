"""`python -m trainer.warm NAME`: a warm parent, which ends when its standard input is closed.

NAME is its abstract socket's. It prints one line once clients can connect. Standard input is a socket,
through which the process that started the parent requests its status.
"""

from __future__ import annotations

import os
import pkgutil
import socket
import sys
from contextlib import suppress
from importlib import import_module

import trainer
from trainer.__main__ import main as run_ranks
from trainer.warm.parent import WarmParent

# Of containers, of torchrun, of the grader and of Slurm; ranks do not import them.
NOT_RANKS = ("trainer.node", "trainer.course", "trainer.torchrun_restarts", "trainer.warm")
# Imported by libraries when ranks connect or take their first step.
IMPORTED_LATER = ("torch.distributed.algorithms.ddp_comm_hooks", "torch.distributed.rpc.rref_proxy")


def main(name: str) -> None:
    """Import what ranks need, then serve clients."""
    preload()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + name)
    listener.listen(128)
    try:
        print("ready", flush=True)
    except BrokenPipeError:  # the orchestrator was killed meanwhile
        os._exit(1)
    WarmParent(listener, sys.stdin.fileno(), run_ranks).serve()


def preload() -> None:
    """Import the trainer, and with it torch, and MPI without initialising it."""
    for module in pkgutil.walk_packages(trainer.__path__, "trainer."):
        if not module.name.startswith(NOT_RANKS):
            import_module(module.name)
    for name in IMPORTED_LATER:
        import_module(name)
    import mpi4py

    mpi4py.rc.initialize = False  # each rank does that itself
    with suppress(RuntimeError):  # without an MPI library, the ranks that need it report that
        import_module("mpi4py.MPI")


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
