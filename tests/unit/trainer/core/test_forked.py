"""Mistakes in how users' code is run in a process of its own: how it has ended, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest

from trainer.core.forked import Child, Ended


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


ENDS: dict[str, Callable[[], None]] = {
    "exited with code 3": lambda: os._exit(3),
    "was killed by SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "did not finish within 1 s": lambda: time.sleep(60),
}


@pytest.mark.parametrize("how", ["", *ENDS], ids=str)
def test_what_a_process_answers_and_how_it_has_ended(how: str) -> None:
    """What it has started is gone in any case."""

    def answer(request: bytes) -> bytes:
        if request == b"end":
            ENDS[how]()
        return str(subprocess.Popen(["sleep", "60"]).pid).encode()

    child = Child(answer)
    started = [int(child.ask(b"start")) for _ in range(2)]
    if how:
        with pytest.raises(Ended, match=how):
            child.ask(b"end", limit_s=1.0 if "1 s" in how else None)
        with pytest.raises(Ended):
            child.ask(b"start")
    child.close()
    give_up = time.monotonic() + 10
    while any(map(alive, started)) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not any(map(alive, started))
