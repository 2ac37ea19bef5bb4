"""Kill a rank of a running local run at a chosen moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from tests.support.runs import RecordingDisplay
from trainer.core.events import Event

POLL_S = 0.01
Kill = Callable[[int], bool]  # kills a rank's process; False if there is none yet
When = Callable[[Sequence[Event]], bool]


def always(_: Sequence[Event]) -> bool:
    """The default condition: kill without waiting for an event."""
    return True


def reported(kind: str, ranks: int) -> When:
    """Condition: this many ranks have written an event of this kind."""
    return lambda events: len({event.rank for event in events if event.kind == kind}) >= ranks


class RankKiller(RecordingDisplay):
    """A display that kills a rank once, while its context is entered."""

    def __init__(self, kill: Kill, rank: int, after_s: float = 0.0, when: When = always) -> None:
        """Kill when the rank has a process, `after_s` seconds have passed and `when(events)` holds."""
        super().__init__()
        self._kill, self._rank, self._after_s, self._when = kill, rank, after_s, when
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.killed = False

    def __enter__(self) -> RankKiller:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        if self._over.wait(self._after_s):
            return
        while not self._over.wait(POLL_S) and not self.killed:
            self.killed = self._when(self.seen) and self._kill(self._rank)


def kill_process(directory: Path) -> Kill:
    """Kill a rank of the local run whose results are below `directory`."""

    def kill(rank: int) -> bool:
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                ours = environment.get("SHARDYARD_RUN", "").startswith(str(directory.resolve()))
                if ours and str(rank) in (environment.get("RANK"), environment.get("OMPI_COMM_WORLD_RANK")):
                    os.kill(process.pid, signal.SIGKILL)
                    return True
            except (psutil.Error, ProcessLookupError):
                continue
        return False

    return kill
