"""Resource usage of a container, from the kernel's control groups.

The engine's statistics come from the same counters, but it samples them once a second and drops them when a
container ends. So each container reads its own counters when its work is done.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

import psutil

from trainer.core.record import Amount, Count, Rank, Record, Text
from trainer.core.routes import LINK_INTERFACE

CGROUP = Path("/sys/fs/cgroup")
NETWORK = Path("/proc/net/dev")
TOLERANCE = 0.02  # an engine writes a quota in whole microseconds
Number = TypeVar("Number", int, float)


class Usage(Record):
    """Usage of one container so far; None where the kernel does not report it.

    cpu_s: CPU seconds, user and system. throttled_s: seconds in which the CPU quota throttled it, summed
    over cores. memory_peak_mb: peak memory in MiB, page cache included. sent_bytes, received_bytes: the
    traffic of its network interfaces, with protocol headers and the cluster's own messages. out_of_memory:
    number of processes that the kernel killed for exceeding memory_mb. cpus: CPU quota in cores at the time
    of reading; None also if there is none.
    """

    cpu_s: Amount | None = None
    throttled_s: Amount | None = None
    memory_peak_mb: Amount | None = None
    sent_bytes: Count | None = None
    received_bytes: Count | None = None
    out_of_memory: Count = 0
    cpus: Amount | None = None

    def since(self, before: Usage) -> Usage:
        """Usage from `before` to this one, by the same container.

        The kernel's peak is that of the container's whole life, so it is known only if it has risen since.
        """
        return Usage(
            cpu_s=_difference(self.cpu_s, before.cpu_s),
            throttled_s=_difference(self.throttled_s, before.throttled_s),
            memory_peak_mb=None if self.memory_peak_mb == before.memory_peak_mb else self.memory_peak_mb,
            sent_bytes=_difference(self.sent_bytes, before.sent_bytes),
            received_bytes=_difference(self.received_bytes, before.received_bytes),
            out_of_memory=max(0, self.out_of_memory - before.out_of_memory),  # 0 if it is unreadable
            cpus=self.cpus,
        )


class NodeUsage(Usage):
    """Usage of one container, a line of usage.jsonl. For local processes: the node with a CPU quota.

    name: node-1 (numbered as compose does), launcher, master.
    """

    name: Text
    ranks: list[Rank]


def measure(
    cgroup: Path = CGROUP, network: Path = NETWORK, interfaces: Collection[str] = ("eth0", LINK_INTERFACE)
) -> Usage:
    """This container's usage, from control groups of version 2 or 1. interfaces: whose traffic counts."""
    received, sent = _traffic(network, interfaces)
    if (cgroup / "cpu.stat").exists():
        cpu = _table(cgroup / "cpu.stat")
        return Usage(
            cpu_s=_scaled(cpu.get("usage_usec"), 1e6),
            throttled_s=_scaled(cpu.get("throttled_usec"), 1e6),
            memory_peak_mb=_scaled(_number(cgroup / "memory.peak"), 2**20),
            sent_bytes=sent,
            received_bytes=received,
            out_of_memory=_table(cgroup / "memory.events").get("oom_kill", 0),
            cpus=quota(cgroup),
        )
    return Usage(
        cpu_s=_scaled(_number(cgroup / "cpuacct" / "cpuacct.usage"), 1e9),
        throttled_s=_scaled(_table(cgroup / "cpu" / "cpu.stat").get("throttled_time"), 1e9),
        memory_peak_mb=_scaled(_number(cgroup / "memory" / "memory.max_usage_in_bytes"), 2**20),
        sent_bytes=sent,
        received_bytes=received,
        out_of_memory=_table(cgroup / "memory" / "memory.oom_control").get("oom_kill", 0),
        cpus=quota(cgroup),
    )


def quota(cgroup: Path = CGROUP) -> float | None:
    """CPU quota of this container in cores; None if there is none, or the kernel does not report it."""
    try:
        values = (cgroup / "cpu.max").read_text().split()
    except OSError:
        values = [str(_number(cgroup / "cpu" / f"cpu.cfs_{name}_us")) for name in ("quota", "period")]
    # "max 100000" and "-1 100000" mean: no quota.
    known = len(values) == 2 and all(number.isdigit() for number in values)
    return int(values[0]) / int(values[1]) if known else None


def wait_for_quota(cpus: float, timeout_s: float, cgroup: Path = CGROUP) -> bool:
    """Wait until this container's CPU quota is `cpus`. Returns False if it is not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (current := quota(cgroup)) is None or abs(current - cpus) > TOLERANCE * cpus:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def threads(cgroup: Path = CGROUP) -> int | None:
    """Number of threads in this container; None if the kernel does not report it."""
    both = (_number(cgroup / "pids.current"), _number(cgroup / "pids" / "pids.current"))
    return next((count for count in both if count is not None), None)


def shared_memory_mb(cgroup: Path = CGROUP) -> float | None:
    """Memory in MiB of this container's files in memory and its shared memory, or None."""
    both = (_table(cgroup / "memory.stat"), _table(cgroup / "memory" / "memory.stat"))
    return _scaled(next((table["shmem"] for table in both if "shmem" in table), None), 2**20)


def memory_left(cgroup: Path = CGROUP) -> float:
    """Bytes of memory that processes of this container can still take."""
    left = [float(psutil.virtual_memory().available)]
    for limit, used in (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (cgroup / "memory" / "memory.limit_in_bytes", cgroup / "memory" / "memory.usage_in_bytes"),
    ):
        most, taken = _number(limit), _number(used)
        if most is not None and taken is not None:
            left.append(most - taken)
    return min(left)


def throttle_mark(directory: Path, rank: int) -> Path:
    """The file that the throttle of local processes creates once it limits a rank."""
    return directory / f"throttled-{rank}"


def wait_for_throttle(mark: Path, timeout_s: float) -> bool:
    """Wait until a rank is throttled. Returns False if it is not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not mark.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _difference(now: Number | None, before: Number | None) -> Number | None:
    return None if now is None or before is None else now - before


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


def _traffic(path: Path, names: Collection[str]) -> tuple[int | None, int | None]:
    """Bytes received and sent on those of the network interfaces that exist; None if none does."""
    try:
        lines = [line.partition(":") for line in path.read_text().splitlines()]
        found = [numbers.split() for name, colon, numbers in lines if colon and name.strip() in names]
        if found:
            return sum(int(fields[0]) for fields in found), sum(int(fields[8]) for fields in found)
    except (OSError, ValueError, IndexError):
        pass
    return None, None
