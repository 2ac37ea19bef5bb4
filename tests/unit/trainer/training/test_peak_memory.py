"""Mistakes in the memory of a rank: units, what was freed before, storages that count twice or never."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from trainer.training.memory import Activations, peak_memory_mb, reset_peak_memory


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the peak")
def test_peak_in_mebibytes_excludes_what_was_freed_before_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    reset_peak_memory()
    before = peak_memory_mb() or 0
    np.ones(2**24)  # 128 MiB
    freed = peak_memory_mb() or 0
    reset_peak_memory()
    assert before + 100 < freed < before + 150
    assert 0 < (peak_memory_mb() or 0) < before + 50
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "VmPeak:\t9 kB\nVmHWM:\t 3200 kB\n")
    assert peak_memory_mb() == 3.125


def test_each_storage_counts_once_until_it_is_released_and_weights_do_not_count() -> None:
    # Saved: the first layer's input, and the ReLU's output (once by the ReLU, once by the second layer).
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    batches = [torch.ones(n, 10) for n in (1, 3, 2)]
    for at_once, samples in ((False, 3), (True, 6)):
        with Activations() as activations:
            outputs = [model(batch) for batch in batches] if at_once else map(model, batches)
            for output in outputs:
                output.sum().backward()
        assert activations.peak_bytes == 4 * samples * (10 + 20)
