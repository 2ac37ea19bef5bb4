"""Runs users' code in a process forked from this one, so that neither its crash nor its state matters."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import cast

from trainer.core.events import signal_name
from trainer.core.processes import end_with_parent

EXIT_S = 5.0  # in which a process that has closed its connection must have ended


class Ended(Exception):
    """The process did not answer. The message says how it ended."""


class CallerEnded(Exception):
    """No process wants the answer any more."""


class Child:
    """A forked process that answers requests. It and all that it starts are gone after `close`.

    Args:
        answer: gives the answer to a request, in the process.
    """

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        fork = get_context("fork")
        self._connection, theirs = fork.Pipe()
        self._process = fork.Process(target=_serve, args=(answer, theirs, self._connection, os.getpid()))
        self._process.start()
        theirs.close()

    def ask(self, request: bytes, limit_s: float | None = None, caller: int | None = None) -> bytes:
        """The answer to a request.

        Args:
            request: what the process gets.
            limit_s: seconds in which it must have answered; None: no limit.
            caller: descriptor that becomes readable when the caller ends; None: the caller is not watched.

        Raises:
            Ended: The process was killed, exited early or exceeded the limit. It is gone.
            CallerEnded: The caller has ended.
        """
        watched: list[Connection | int] = [self._connection, *([] if caller is None else [caller])]
        try:
            self._connection.send_bytes(request)
            ready = wait(watched, limit_s)
            if self._connection in ready:
                return self._connection.recv_bytes()
        except (EOFError, OSError):
            self._process.join(EXIT_S)
            code = self._process.exitcode or 0
            self.close()
            how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
            raise Ended(how) from None
        self.close()
        if ready:
            raise CallerEnded
        raise Ended(f"did not finish within {limit_s:g} s")

    def close(self) -> None:
        """Kill the process and all that it has started. Idempotent."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(cast("int", self._process.pid), signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(answer: Callable[[bytes], bytes], theirs: Connection, ours: Connection, parent: int) -> None:
    os.setpgid(0, 0)
    ours.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    with suppress(EOFError):
        while os.getppid() == parent:
            theirs.send_bytes(answer(theirs.recv_bytes()))
