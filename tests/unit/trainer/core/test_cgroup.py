"""Mistakes in limits of a container: a tolerance without its unit, one limit of several, a wrong version.

tests/unit/trainer/cluster/test_cluster_node.py has those in its usage.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from trainer.core import cgroup

MIB = 2**20


def written(directory: Path, files: dict[str, object]) -> Path:
    """A fake /sys/fs/cgroup. files: contents by path."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return directory


@pytest.mark.parametrize(
    ("quota", "fits"), [(25_000, True), (24_600, True), (24_400, False), (25_600, False)]
)
def test_a_quota_may_differ_by_two_percent(tmp_path: Path, quota: int, fits: bool) -> None:
    assert cgroup.wait_for_quota(0.25, 0.0, written(tmp_path, {"cpu.max": f"{quota} 100000"})) is fits


def test_the_smallest_limit_of_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=500 * MIB))
    assert cgroup.memory_left(tmp_path) == 500 * MIB
    written(tmp_path, {"memory.max": 700 * MIB, "memory.current": 100 * MIB})
    assert cgroup.memory_left(tmp_path) == 500 * MIB
    written(tmp_path, {"memory.current": 300 * MIB})
    assert cgroup.memory_left(tmp_path) == 400 * MIB
    old = {"limit_in_bytes": 350 * MIB, "usage_in_bytes": 100 * MIB}
    written(tmp_path, {"memory.max": "max", **{f"memory/memory.{name}": old[name] for name in old}})
    assert cgroup.memory_left(tmp_path) == 250 * MIB


@pytest.mark.parametrize(
    ("pids", "stat"), [("pids.current", "memory.stat"), ("pids/pids.current", "memory/memory.stat")]
)
def test_threads_and_shared_memory_of_both_versions(tmp_path: Path, pids: str, stat: str) -> None:
    assert (cgroup.threads(tmp_path), cgroup.shared_memory_mb(tmp_path)) == (None, None)
    written(tmp_path, {pids: 7, stat: f"anon 5\nshmem {3 * MIB}"})
    assert (cgroup.threads(tmp_path), cgroup.shared_memory_mb(tmp_path)) == (7, 3)
