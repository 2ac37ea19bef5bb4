"""What a container has used, by the kernel's own counters.

These are the counters that the engine's statistics come from. Read by the container itself, at its end,
they are whole: the engine samples once a second, and has nothing any more when a container has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
NETWORK = Path("/proc/net/dev")


@dataclass(frozen=True)
class Usage:
    """Of one container so far; None where the kernel does not tell.

    cpu_s: CPU seconds, user and system. throttled_s: time in which its quota held it back, summed over
    cores. memory_peak_mb: most memory it has held, page cache included, in MiB. sent_bytes,
    received_bytes: on its network interface, protocol headers and the cluster's own messages included.
    out_of_memory: how often the kernel killed one of its processes for passing memory_mb.
    """

    cpu_s: float | None
    throttled_s: float | None
    memory_peak_mb: float | None
    sent_bytes: int | None
    received_bytes: int | None
    out_of_memory: int


def measure(cgroup: Path = CGROUP, network: Path = NETWORK, interface: str = "eth0") -> Usage:
    """This container's usage, from control groups of version 2 or 1."""
    received, sent = _interface(network, interface)
    if (cgroup / "cpu.stat").exists():
        cpu = _table(cgroup / "cpu.stat")
        return Usage(
            cpu_s=_scaled(cpu.get("usage_usec"), 1e6),
            throttled_s=_scaled(cpu.get("throttled_usec"), 1e6),
            memory_peak_mb=_scaled(_number(cgroup / "memory.peak"), 2**20),
            sent_bytes=sent,
            received_bytes=received,
            out_of_memory=_table(cgroup / "memory.events").get("oom_kill", 0),
        )
    return Usage(
        cpu_s=_scaled(_number(cgroup / "cpuacct" / "cpuacct.usage"), 1e9),
        throttled_s=_scaled(_table(cgroup / "cpu" / "cpu.stat").get("throttled_time"), 1e9),
        memory_peak_mb=_scaled(_number(cgroup / "memory" / "memory.max_usage_in_bytes"), 2**20),
        sent_bytes=sent,
        received_bytes=received,
        out_of_memory=_table(cgroup / "memory" / "memory.oom_control").get("oom_kill", 0),
    )


def _scaled(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _table(path: Path) -> dict[str, int]:
    """A file of lines `name number`."""
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    except (OSError, ValueError):
        return {}


def _interface(path: Path, name: str) -> tuple[int | None, int | None]:
    """Bytes received and sent."""
    try:
        for line in path.read_text().splitlines():
            label, colon, numbers = line.partition(":")
            if colon and label.strip() == name:
                fields = numbers.split()
                return int(fields[0]), int(fields[8])
    except (OSError, ValueError, IndexError):
        pass
    return None, None
