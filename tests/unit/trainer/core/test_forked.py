"""Mistakes in how users' code is run in a process of its own: how it has ended, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest

from trainer.core.forked import Ended, Send, forked


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


ENDS: dict[str | None, Callable[[], None]] = {
    None: lambda: None,
    "exited with code 3": lambda: os._exit(3),
    "was killed by SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "did not finish within 1 s": lambda: time.sleep(60),
}


@pytest.mark.parametrize("how", ENDS, ids=str)
def test_what_a_process_has_sent_and_how_it_has_ended(how: str | None) -> None:
    """What it has started is gone in any case."""

    def work(send: Send) -> None:
        send(str(subprocess.Popen(["sleep", "60"]).pid))
        send("two")
        ENDS[how]()

    sent: list[str] = []
    ended = None
    try:
        for message in forked(work, limit_s=1.0 if how and "1 s" in how else None):
            sent.append(message)  # noqa: PERF402  (what came before an error counts)
    except Ended as error:
        ended = str(error)
    assert (ended, sent[1:]) == (how, ["two"])
    give_up = time.monotonic() + 10
    while alive(int(sent[0])) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not alive(int(sent[0]))
