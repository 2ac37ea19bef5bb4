"""A coordinator on loopback for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit import loopback_cluster
from tests.unit.loopback_cluster import LoopbackCluster

ignore_sigterm = pytest.fixture(autouse=True)(loopback_cluster.ignore_sigterm)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoopbackCluster:
    return LoopbackCluster(monkeypatch, tmp_path)
