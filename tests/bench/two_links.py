"""Change the link of a run's nodes halfway through, and assign its epochs to the links."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from orchestrator.results.records import RunResult
from orchestrator.runtimes.docker.engine import Engine
from tests.bench import link
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec

FREE, SHAPED = "unshaped", f"{link.RATE_MBIT} Mbit/s"


@dataclass(frozen=True)
class Change:
    """A change of the nodes' link to `to`. begun, done: seconds since 1970."""

    begun: float
    done: float
    to: str


@dataclass
class TwoLinks:
    """A display that follows one run and changes its nodes' link after half of the epochs.

    links: the links of the run in order, at most two.
    trouble: why the quota period could not be shortened, or None.
    """

    engine: Engine
    run: RunSpec
    links: Sequence[str]
    trouble: str | None = None
    _nodes: list[int] = field(default_factory=list)
    _changes: list[Change] = field(default_factory=list)
    # When each rank finished an epoch, and its training time so far: by epoch and rank.
    _over: dict[int, dict[int, tuple[float, float]]] = field(default_factory=dict)
    _shapers: tuple[float, int] = (0.0, 0)  # when they were last read, and their total bytes

    def begin(self, number: int, total: int, run: RunSpec) -> None:
        """Print nothing: there is only one run."""

    def note(self, text: str) -> None:
        """Print nothing."""

    def end(self, number: int, total: int, result: RunResult, skipped: bool) -> None:
        """Print nothing."""

    def events(self, events: Sequence[Event]) -> None:
        if events and not self._changes:  # ranks are starting, so all containers run
            self._nodes = link.processes(self.engine)
            refused = [link.shorten_period(node, self.run.cpus) for node in self._nodes]
            self.trouble = next((reason for reason in refused if reason), None)
            self._change(self.links[0])
        for event in events:
            if event.kind == "epoch":
                at = event.time, float(event.fields["train_s"])
                self._over.setdefault(event.fields["epoch"], {})[event.rank] = at
        half_done = len(self._over.get(self.run.epochs // 2, {})) == self.run.world_size
        if half_done and len(self._changes) < len(self.links):
            self._change(self.links[1])
        elif any(event.kind == "epoch" for event in events):
            self._read()

    def _change(self, to: str) -> None:
        self._read()
        begun = time.time()
        if to == SHAPED:
            for node in self._nodes:
                link.shape(node)
        elif self._changes:
            for node in self._nodes:
                link.unshape(node)
        self._changes.append(Change(begun, time.time(), to))

    def _read(self) -> None:
        if self._changes and self._changes[-1].to == SHAPED:
            with suppress(link.LinkError):  # a container may have exited; keep the last value
                self._shapers = time.time(), sum(map(link.shaped_bytes, self._nodes))

    def epochs(self) -> dict[str, list[int]]:
        """The epochs that count for each link: set from the first rank's start to the last rank's end.

        The first epoch does not count, since caches are cold.
        """
        never = Change(float("inf"), float("inf"), "")
        return {
            now.to: [
                epoch
                for epoch in range(2, self.run.epochs + 1)
                if now.done <= min(at for at, _ in self._over[epoch - 1].values())
                and max(at for at, _ in self._over[epoch].values()) <= then.begun
            ]
            for now, then in pairwise([*self._changes, never])
        }

    def epoch_s(self, epoch: int) -> float:
        """Training time of the slowest rank, in seconds."""
        now, before = self._over[epoch], self._over[epoch - 1]
        return max(now[rank][1] - before[rank][1] for rank in now)

    def shaped_share(self, result: RunResult) -> float | None:
        """Bytes through the shapers divided by the payload of the epochs completed on that link, if any."""
        at, seen = self._shapers
        whole = [e for e in self.epochs()[SHAPED] if max(end for end, _ in self._over[e].values()) <= at]
        payload = sum(rank.bytes_sent for rank in result.ranks) * len(whole) / self.run.epochs
        return seen / payload if payload else None
