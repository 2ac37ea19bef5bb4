"""The compose process of a run in containers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.runtimes.docker import project
from orchestrator.runtimes.docker.project import Project


def test_compose_is_ended_after_ctrl_c_has_interrupted_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt inside Popen.poll() can leave the lock taken under which a child is reaped."""
    monkeypatch.setattr(project, "TERMINATE_S", 0.2)
    process: Any = subprocess.Popen(["sleep", "300"])
    process._waitpid_lock.acquire()
    Project._end_compose(SimpleNamespace(up=process))  # type: ignore[arg-type]
    process._waitpid_lock.release()
    assert process.wait(10) < 0
    assert not Path(f"/proc/{process.pid}").exists()
