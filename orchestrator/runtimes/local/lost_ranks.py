"""The ranks of a local run that continues when one is lost: which are alive, and which return."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from orchestrator.runtimes.launch_plan import LaunchPlan, Process, rank_name
from orchestrator.runtimes.local.processes import MEMBERSHIP
from trainer.core.events import Event, EventWriter, signal_name
from trainer.core.membership import MembershipTracker


class LostRanks:
    """Follows the ranks' events, and keeps the file from which they learn who is alive.

    Attributes:
        lost: names of the processes that have died, and without which the run continues.
    """

    def __init__(self, plan: LaunchPlan, live: Path) -> None:
        """live: the directory to which ranks write."""
        self._spec, self._live = plan.spec, live
        ranks = range(plan.spec.world_size)
        names = [rank_name(rank, plan.spec.processes_per_node) for rank in ranks]
        self._rank_of = {name: rank for rank, name in enumerate(names)}
        ranked = [each for each in plan.processes if each.name in self._rank_of]  # not the throttle
        self._process_of = {self._rank_of[each.name]: each for each in ranked}
        required = range(plan.spec.strategy.servers)
        self._tracker = MembershipTracker(dict.fromkeys(ranks, ""), required, plan.spec.return_after)
        self._due: dict[int, float] = {}  # when ranks return, by rank
        self.lost: set[str] = set()
        self._tracker.current.write(live / MEMBERSHIP)

    def add(self, events: Iterable[Event]) -> None:
        """Add events that ranks have written."""
        for event in events:
            if self._tracker.add(event):
                self._tracker.current.write(self._live / MEMBERSHIP)
            if event.kind == "died" and (after_s := self._tracker.returns_after(event.rank)) is not None:
                self._due[event.rank] = time.monotonic() + after_s

    def record_exit(self, name: str, code: int) -> None:
        """Record that a process has ended; write the exit report of a rank that was killed."""
        rank = self._rank_of.get(name)
        if code and rank in self._tracker.absent:  # it was started again, and failed before it joined
            self.lost.add(name)
        if rank is None or code >= 0 or name in self.lost or not self._tracker.survives(rank):
            return
        self.lost.add(name)
        cause = signal_name(-code)
        with closing(EventWriter(self._spec.key, rank, self._live)) as writer:
            writer.write_quietly("died", cause=f"killed by {cause}", signal=cause)

    @property
    def superfluous(self) -> set[str]:
        """Names of the processes for which the run does not wait: all ranks that train have finished."""
        idle = self._tracker.without_work if self._tracker.over else set()
        return {name for name, rank in self._rank_of.items() if rank in idle} | self.lost

    def due(self) -> list[Process]:
        """The processes of ranks that return now."""
        now, returning = time.monotonic(), []
        for rank, at in [] if self._tracker.over else [*self._due.items()]:
            if now >= at:
                del self._due[rank]
                process = self._process_of[rank]
                self.lost.discard(process.name)
                again = {"SHARDYARD_INCARNATION": str(self._tracker.lost[rank])}
                returning.append(replace(process, environment={**process.environment, **again}))
        return returning
