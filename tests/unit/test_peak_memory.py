"""Peak memory since the last restart of the measurement excludes freed memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from trainer.training.memory import peak_memory_mb, reset_peak_memory


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the peak")
def test_peak_excludes_memory_freed_before_restart() -> None:
    reset_peak_memory()
    before = peak_memory_mb()
    much = np.ones(2**24)  # 128 MiB
    assert peak_memory_mb() > before + 100
    del much
    assert peak_memory_mb() > before + 100
    reset_peak_memory()
    assert peak_memory_mb() < before + 50
