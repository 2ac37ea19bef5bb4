"""Every build of torchvision can be imported: operators it cannot load are declared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.unit.conftest import PROJECT
from trainer.data.augmentations import torchvision_import as vision


def refused(library: object) -> None:
    raise OSError("libcudart.so.13: cannot open shared object file")


def test_operators_load_if_the_library_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not vision.operators_load(tmp_path)  # no library
    (tmp_path / "_C.so").touch()
    loaded: list[Path] = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    assert vision.operators_load(tmp_path)
    assert loaded == [tmp_path / "_C.so"]
    monkeypatch.setattr(torch.ops, "load_library", refused)
    assert not vision.operators_load(tmp_path)


def test_loaded_operators_are_not_declared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "load_library", lambda _: None)
    assert vision.declared() is None


@pytest.mark.slow
def test_concurrent_import_by_threads() -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from importlib import import_module\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    made = list(pool.map(import_module, ['trainer.data.augmentations.torchvision_import'] * 4))\n"
        "assert made[0].torchvision.transforms.v2.functional.adjust_hue\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
