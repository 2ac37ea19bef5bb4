"""Memory that was given back does not count any more."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from trainer.training.memory import peak_memory_mb, reset_peak_memory


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts anew")
def test_the_peak_is_that_since_the_last_restart() -> None:
    reset_peak_memory()
    before = peak_memory_mb()
    much = np.ones(2**24)  # 128 MiB
    assert peak_memory_mb() > before + 100
    del much
    assert peak_memory_mb() > before + 100
    reset_peak_memory()
    assert peak_memory_mb() < before + 50
