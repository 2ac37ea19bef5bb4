"""Runs users' code in a process forked from this one, so that neither its crash nor its state matters."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import cast

from trainer.core.events import signal_name
from trainer.core.processes import end_with_parent

EXIT_S = 5.0  # in which a process that has sent everything must have ended

Send = Callable[[str], None]


class Ended(Exception):
    """The process did not finish its work. The message says how it ended."""


class CallerEnded(Exception):
    """No process wants the answer any more."""


def forked(
    work: Callable[[Send], None], limit_s: float | None = None, caller: int | None = None
) -> Iterator[str]:
    """What `work` sends from a process of its own, message by message.

    The process and all that it starts are gone afterwards.

    Args:
        work: gets the function that sends a message.
        limit_s: seconds in which it must have finished; None: no limit.
        caller: descriptor that becomes readable when the caller ends; None: the caller is not watched.

    Raises:
        Ended: The process was killed, exited early or exceeded the limit.
        CallerEnded: The caller has ended.
    """
    fork = get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_run, args=(work, sender, os.getpid()))
    process.start()
    sender.close()
    end = None if limit_s is None else time.monotonic() + limit_s
    try:
        while True:
            watched: list[Connection | int] = [receiver] if caller is None else [receiver, caller]
            ready = wait(watched, None if end is None else max(0.0, end - time.monotonic()))
            if not ready:
                raise Ended(f"did not finish within {limit_s:g} s")
            if receiver not in ready:
                raise CallerEnded
            try:
                message: str | None = receiver.recv()
            except EOFError:
                process.join(EXIT_S)
                code = process.exitcode or 0
                how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
                raise Ended(how) from None
            if message is None:
                process.join(EXIT_S)
                return
            yield message
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(cast("int", process.pid), signal.SIGKILL)  # what it has started
        process.kill()
        process.join()
        receiver.close()


def _run(work: Callable[[Send], None], sender: Connection, parent: int) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    if os.getppid() == parent:
        work(sender.send)
        sender.send(None)
