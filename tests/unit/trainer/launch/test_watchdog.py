"""The watchdog of a process with many ranks, and of ranks that wait for others after their teardown."""

from __future__ import annotations

import signal
import subprocess
import sys

BEGIN = """
import os, resource, signal, sys, time
from types import SimpleNamespace
from trainer.launch.watchdog import Watchdog
"""


def exit_code(script: str) -> int:
    return subprocess.run([sys.executable, "-c", BEGIN + script], check=False).returncode


def test_it_also_acts_in_a_process_with_more_than_1024_files() -> None:
    script = """
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1100, hard))
files = [os.dup(1) for _ in range(1030)]
with Watchdog([], None):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
"""
    assert exit_code(script) == 128 + signal.SIGTERM


def test_a_rank_that_has_closed_may_wait_for_others() -> None:
    script = """
with Watchdog([SimpleNamespace(write=lambda *_, **__: None)], None) as watchdog:
    watchdog.exit_within(0, 0)
    watchdog.has_closed(0)
    time.sleep(1.2)
    os._exit(7)
"""
    assert exit_code(script) == 7
