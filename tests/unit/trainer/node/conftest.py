"""For the tests of this folder: a coordinator on loopback, and how files appear that others look for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit import loopback_cluster
from tests.unit.loopback_cluster import LoopbackCluster

ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoopbackCluster:
    return LoopbackCluster(monkeypatch, tmp_path)


@pytest.fixture(autouse=True)
def _polled_files_appear_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process reads them as soon as they are there, so they are written under other names."""
    polled, write = {"membership.json", "rank.json"}, Path.write_text

    def write_text(path: Path, *text: str, **options: Any) -> int:
        assert path.name not in polled
        return write(path, *text, **options)

    monkeypatch.setattr(Path, "write_text", write_text)
