"""Signals that end a command, which cleans up as on Ctrl-C, whichever it is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt once on Ctrl-C, a closed terminal or SIGTERM; ignore repeats.

    A signal that is ignored stays ignored: `nohup` lets a sweep outlive its terminal.
    """

    def interrupt(*_: Any) -> NoReturn:
        ignore()  # a second Ctrl-C must not interrupt clean-up
        raise KeyboardInterrupt

    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore the signals from now on: the command is ending."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
