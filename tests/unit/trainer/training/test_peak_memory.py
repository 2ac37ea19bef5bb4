"""Peak memory since the last restart of the measurement excludes freed memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainer.training.memory import peak_memory_mb, reset_peak_memory


def measured() -> float:
    peak = peak_memory_mb()
    assert peak is not None
    return peak


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the peak")
def test_peak_excludes_memory_freed_before_restart() -> None:
    reset_peak_memory()
    before = measured()
    much = np.ones(2**24)  # 128 MiB
    assert measured() > before + 100
    del much
    assert measured() > before + 100
    reset_peak_memory()
    assert measured() < before + 50


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_peak_of_a_new_process_excludes_the_process_that_started_it() -> None:
    much = np.ones(2**27)  # 1 GiB
    code = "from trainer.training.memory import peak_memory_mb; print(peak_memory_mb())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(child.stdout) < much.nbytes / 2**20


def test_peak_is_unknown_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: Path, **_: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", absent)
    assert peak_memory_mb() is None
