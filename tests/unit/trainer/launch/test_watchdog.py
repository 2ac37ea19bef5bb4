"""Mistakes of the watchdog: whose timeout counts, which signal it obeys, what it reports on exit."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.launch import watchdog as module
from trainer.launch.watchdog import Watchdog
from trainer.training.stopping import REQUEST


class Exit(BaseException):
    """The process would exit."""


class Watched:
    """A watchdog of two ranks, whose loop runs in fake time until it would exit, or for 100 s.

    signals: those that the process has received.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *signals: int, **options: Any) -> None:
        self.now, self.written, self.signals = 0.0, list[Any](), bytes(signals)
        self.code: int | None = None
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        polling = SimpleNamespace(register=lambda *_: None, poll=self._poll)
        patch.setattr(module, "select", SimpleNamespace(poll=lambda: polling, POLLIN=select.POLLIN))
        patch.setattr(os, "_exit", self._exit)
        writers: Any = [SimpleNamespace(rank=rank, write_text=lambda _: None) for rank in range(2)]
        for each in writers:
            each.write = lambda kind, rank=each.rank, **fields: self.written.append((rank, kind, fields))
        self.watchdog = Watchdog(writers, **{"orchestrator": None, **options})

    def _exit(self, code: int) -> None:
        self.code = code
        raise Exit

    def _poll(self, milliseconds: float) -> list[int]:
        self.now += milliseconds / 1000
        if self.now > 100:
            raise Exit
        if sent := self.signals:
            os.write(self.watchdog._wakeup, sent)
            self.signals = b""
        return [1] if sent else []

    def run(self) -> int | None:
        """The exit code; None if it does not exit."""
        with pytest.raises(Exit):
            self.watchdog._run()
        return self.code


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watched]:
    return partial(Watched, monkeypatch)


def test_the_last_timeout_of_all_ranks_counts(watched: Callable[..., Watched]) -> None:
    for timeouts, closed, code in (({0: 5}, None, None), ({0: 5, 1: 20}, None, 0), ({0: 5, 1: 5}, 0, None)):
        one = watched()
        for rank, seconds in timeouts.items():
            one.watchdog.exit_within(rank, seconds)
        if closed is not None:
            one.watchdog.has_closed(closed)
        assert one.run() == code  # without both, a rank still works
        assert one.written == [(rank, "done", {"forced": True}) for rank in range(2) if code == 0]
        assert code is None or 20 < one.now <= 21


def test_it_ends_with_the_orchestrator(watched: Callable[..., Watched]) -> None:
    assert watched(orchestrator=os.getpid()).run() is None
    gone = subprocess.Popen(["true"])
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)  # leaves a zombie
    one = watched(orchestrator=gone.pid, loss="nobody is left")
    assert one.run() == 1
    assert one.written == [(rank, "terminated", {"cause": "nobody is left"}) for rank in range(2)]
    gone.wait()
    assert watched(orchestrator=gone.pid).run() == 1


def test_sigterm_stops_at_a_checkpoint_or_at_once(watched: Callable[..., Watched], tmp_path: Path) -> None:
    assert watched(signal.SIGTERM, stop_dir=tmp_path).run() is None
    assert (tmp_path / REQUEST).read_text() == "SIGTERM"
    assert watched(signal.SIGCHLD).run() is None
    preparing = watched(signal.SIGCHLD, signal.SIGTERM, stop_dir=tmp_path / "not yet")
    assert preparing.run() == 128 + signal.SIGTERM
    assert [each[:2] for each in preparing.written] == [(0, "terminated"), (1, "terminated")]


def test_it_acts_in_a_process_with_more_than_1024_files() -> None:
    script = """
import os, resource, signal, time
from trainer.launch.watchdog import Watchdog
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1100, hard))
files = [os.dup(1) for _ in range(1030)]
with Watchdog([], None):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == 128 + signal.SIGTERM
