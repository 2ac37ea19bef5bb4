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
def test_peak_excludes_memory_freed_before_restart() -> None:
    reset_peak_memory()
    peaks = [peak_memory_mb()]
    much = np.ones(2**24)  # 128 MiB
    peaks.append(peak_memory_mb())
    del much
    peaks.append(peak_memory_mb())
    reset_peak_memory()
    before, filled, freed, restarted = (peak or 0 for peak in [*peaks, peak_memory_mb()])
    assert min(filled, freed) > before + 100
    assert 0 < restarted < before + 50


def test_peak_is_that_of_the_process_in_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak of getrusage would include the process that started this one."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "VmPeak:\t 9 kB\nVmHWM:\t  3072 kB\n")
    assert peak_memory_mb() == 3.0

    def absent(path: Path, **_: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", absent)
    assert peak_memory_mb() is None


def test_each_storage_counts_once_and_weights_do_not_count() -> None:
    # Saved: the first layer's input, and the ReLU's output (once by the ReLU, once by the second layer).
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    model(torch.ones(4, 10)).sum().backward()
    plain = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with Activations() as activations:
        output = model(torch.ones(4, 10))
    output.sum().backward()
    assert activations.peak_bytes == 4 * (4 * 10 + 4 * 20)
    for parameter, expected in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=0)


def test_peak_excludes_released_activations() -> None:
    model = nn.Linear(10, 10)
    inputs = [torch.ones(n, 10) for n in (1, 3, 2)]
    with Activations() as one_by_one:
        for x in inputs:
            model(x).sum().backward()
    assert one_by_one.peak_bytes == 4 * 30
    with Activations() as at_once:
        for output in [model(x) for x in inputs]:
            output.sum().backward()
    assert at_once.peak_bytes == 4 * 60
