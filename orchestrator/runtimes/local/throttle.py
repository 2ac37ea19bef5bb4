"""The throttle: enforces CPU quotas on the processes of slower nodes, as containers do.

    python -m orchestrator.runtimes.local.throttle USAGE_FILE QUOTA:NODE:RANKS...

In each period of 100 ms, as in the kernel, a node's processes may use QUOTA × period of CPU time. Then they
are stopped (SIGSTOP) until the period ends. Unused time is lost and overuse is deducted later, as in CFS
bandwidth control (Turner et al. 2010), which implements containers' quotas.

It is a separate process rather than a thread, so that no rank stays stopped if the orchestrator is killed.
It finds ranks that are ready to train by the events beside USAGE_FILE; they wait for its mark.
It ends with the run (SIGTERM) or with the orchestrator, and continues the processes first. If it is killed
itself, the run is stopped; stopping a run and cleaning up continue stopped processes, too.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from trainer.core.cgroup import NodeUsage, throttle_mark
from trainer.core.events import EventReader

PERIOD_S = 0.1
TICK_S = 0.004  # between measurements of CPU time
SEARCH_S = 0.02  # between searches for processes that have not started yet


class Throttled(Protocol):
    """A process under the CPU quota."""

    def cpu_s(self) -> float:
        """CPU seconds since it was added."""

    def signal(self, number: int) -> None: ...


@dataclass
class Process:
    """A process found by psutil. Once it has ended, CPU time stays constant and signals are ignored."""

    process: psutil.Process
    _first: float | None = None
    _last: float = 0.0

    def cpu_s(self) -> float:
        with suppress(psutil.Error):
            times = self.process.cpu_times()
            self._last = times.user + times.system
        if self._first is None:
            self._first = self._last
        return self._last - self._first

    def signal(self, number: int) -> None:
        with suppress(psutil.Error):
            self.process.send_signal(number)


class Throttle:
    """Limits processes to a common CPU quota in cores. Times in seconds.

    used_s: CPU time of all of them. stopped_s: time in which they were stopped.
    """

    def __init__(self, quota: float, now: float) -> None:
        self._quota = quota
        self._left = quota * PERIOD_S  # CPU seconds left in this period; negative after overuse
        self.period_ends = now + PERIOD_S
        self._processes: list[Throttled] = []
        self._stopped_at: float | None = None
        self.used_s = self.stopped_s = 0.0

    @property
    def stopped(self) -> bool:
        return self._stopped_at is not None

    def add(self, process: Throttled) -> None:
        process.cpu_s()
        self._processes.append(process)
        if self.stopped:
            process.signal(signal.SIGSTOP)

    def step(self, now: float) -> None:
        """Stop the processes when their time is spent, continue them when they have time again."""
        used = sum(process.cpu_s() for process in self._processes)
        self._left -= used - self.used_s
        self.used_s = used
        while now >= self.period_ends:
            self._left = min(self._left, 0.0) + self._quota * PERIOD_S
            self.period_ends += PERIOD_S
        if self._left <= 0 and not self.stopped:
            self._signal(signal.SIGSTOP)
            self._stopped_at = now
        elif self._left > 0:
            self.release(now)

    def release(self, now: float) -> None:
        """Continue all processes."""
        if self._stopped_at is not None:
            self.stopped_s += now - self._stopped_at
            self._stopped_at = None
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            process.signal(number)


class ReadyRanks:
    """Finds the processes of ranks that are ready to train, by their events."""

    def __init__(self, directory: Path, ranks: Collection[int]) -> None:
        self._reader, self._ranks = EventReader(directory), ranks
        self._pids: dict[int, int] = {}

    def new(self) -> Iterator[tuple[int, psutil.Process]]:
        """The ranks that have become ready since the last call, and their processes."""
        for event in self._reader.new():
            if event.kind == "start":
                self._pids[event.rank] = event.fields["pid"]
            if event.kind == "ready" and event.rank in self._ranks:
                with suppress(psutil.NoSuchProcess):
                    yield event.rank, psutil.Process(self._pids[event.rank])


@dataclass(frozen=True)
class NodeLimit:
    """The CPU quota of one node, in cores, and the ranks of the node. As text it is an argument."""

    quota: float
    node: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.quota:g}:{self.node}:{','.join(map(str, self.ranks))}"

    @classmethod
    def parse(cls, text: str) -> NodeLimit:
        """The inverse of `str`."""
        quota, node, ranks = text.split(":")
        return cls(float(quota), node, tuple(int(rank) for rank in ranks.split(",")))


def main(usage_file: Path, limits: Sequence[NodeLimit]) -> None:
    """Throttle the nodes until SIGTERM or until the orchestrator has ended, then write their usage."""
    orchestrator = int(os.environ["SHARDYARD_PARENT_PID"])
    nodes = {limit: Throttle(limit.quota, time.monotonic()) for limit in limits}
    throttles = {rank: throttle for limit, throttle in nodes.items() for rank in limit.ranks}
    ready = ReadyRanks(usage_file.parent, throttles)
    missing = set(throttles)
    search_at = 0.0
    try:
        while os.getppid() == orchestrator:
            now = time.monotonic()
            if missing and now > search_at:
                for rank, process in ready.new():
                    missing.discard(rank)
                    throttles[rank].add(Process(process))
                    throttle_mark(usage_file.parent, rank).touch()
                search_at = time.monotonic() + SEARCH_S
            for throttle in nodes.values():
                throttle.step(time.monotonic())
            time.sleep(max(_pause(nodes.values()), 0.0))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for throttle in nodes.values():
            throttle.release(time.monotonic())
        usage = [
            NodeUsage(
                name=limit.node,
                ranks=[*limit.ranks],
                cpus=limit.quota,
                cpu_s=throttle.used_s,
                throttled_s=throttle.stopped_s,
            )
            for limit, throttle in nodes.items()
        ]
        usage_file.write_text("".join(node.model_dump_json() + "\n" for node in usage))


def _pause(throttles: Collection[Throttle]) -> float:
    """Seconds until the next step: a tick, or the end of the first period if all nodes are stopped."""
    if not all(throttle.stopped for throttle in throttles):
        return TICK_S
    return min(throttle.period_ends for throttle in throttles) - time.monotonic()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main(Path(sys.argv[1]), [NodeLimit.parse(text) for text in sys.argv[2:]])
