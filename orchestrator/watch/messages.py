"""What a page gets: JSON objects with what has changed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from orchestrator.results.times import duration
from orchestrator.runtimes.launch_plan import rank_name
from orchestrator.watch.files import LogPart, LogTail, log_names
from orchestrator.watch.follower import ENDED_BADLY, Follower, Run, View
from orchestrator.watch.live_run import LiveRun
from trainer.core.record import one_line, printable

EVENTS = "events"  # shown in place of the nodes' logs that runtime docker saves when a run has ended
MOST_RANKS = 16  # that are listed
MOST_DAMAGE = 8  # files that are listed


class EventTail:
    """The readable lines of a run's events, with the interface of `LogTail`."""

    def __init__(self, live: LiveRun) -> None:
        self._live, self._count = live, 0

    def new(self, complete: bool = False) -> LogPart:
        restarted = not self._count
        lines, self._count = self._live.lines(self._count)
        return LogPart([printable(line) for line in lines], restarted and bool(lines))


class Updates:
    """The messages to one page."""

    def __init__(self, follower: Follower, chosen: str = "", log: str = "") -> None:
        """
        Args:
            follower: the follower of the sweep.
            chosen: the key of the run to show in detail; others: the one in progress, or the last one.
            log: the name of the log to show; others: the first node's.
        """
        self._follower, self._chosen, self._log = follower, chosen, log
        self._sent: dict[str, Any] = {}
        self._runs: dict[str, Run] = {}
        self._shown = ""  # the key of the run in detail
        self._tail: tuple[str, str, LogTail | EventTail] | None = None  # of which run and log

    def message(self, view: View) -> str:
        """What has changed since the last message, as JSON; empty if nothing has."""
        changed = self._changed(head=_head(view, self._follower.paths.html), order=[*view.runs])
        if rows := [_row(run) for key, run in view.runs.items() if self._runs.get(key) != run]:
            changed["runs"] = rows
        self._runs = {**view.runs}
        self._shown = self._key(view)
        if run := view.runs.get(self._shown):
            changed |= self._changed(detail=self._detail(run), curves=self._curves(run))
            changed |= self._new_in_log(run)
        return json.dumps(changed, allow_nan=False) if changed else ""

    def _changed(self, **parts: Any) -> dict[str, Any]:
        """Those of the parts that differ from what was sent."""
        found = {name: value for name, value in parts.items() if self._sent.get(name) != value}
        self._sent |= found
        return found

    def _key(self, view: View) -> str:
        """The run to show: the chosen one; else the one in progress, the last shown, or the last ended."""
        ended = [key for key, run in view.runs.items() if run.state not in ("waiting", "not run")]
        candidates = [self._chosen, view.running, self._shown, *ended[-1:], *view.runs]
        return next((key for key in candidates if key in view.runs), "") or ""

    def _detail(self, run: Run) -> dict[str, Any]:
        live = self._follower.live(run.key)
        positions = sorted(live.positions.items()) if live else []
        return {
            **_row(run),
            "ranks": [
                [
                    rank_name(rank, live.spec.processes_per_node),
                    at.epoch,
                    at.loss,
                    at.accuracy,
                    at.throughput,
                ]
                for rank, at in positions[:MOST_RANKS]
                if live
            ],
            "more": max(0, len(positions) - MOST_RANKS),
            "follows": self._chosen != run.key,
        }

    def _curves(self, run: Run) -> dict[str, Any]:
        points = [[at.epoch, at.loss, at.accuracy] for at in self._follower.points(run.key)]
        return {"run": run.key, "epochs": self._follower.epochs(run.key), "points": points}

    def _new_in_log(self, run: Run) -> dict[str, Any]:
        directory = self._follower.paths.run(run.key).directory
        names = log_names(directory)
        live = self._follower.live(run.key)
        if live and not any(name.startswith("node-") for name in names):
            names = [EVENTS, *names]
        name = self._log if self._log in names else _first_log(names, run)
        part = LogPart([], restarted=False)
        if name:
            part = self._tail_of(run.key, name, directory, live).new(complete=run.state != "running")
        found: dict[str, Any] = self._changed(logs={"names": names, "name": name, "run": run.key})
        if found or part.lines or part.restarted:
            found["lines"] = {"new": part.lines, "restarted": part.restarted or "logs" in found}
        return found

    def _tail_of(self, key: str, name: str, directory: Path, live: LiveRun | None) -> LogTail | EventTail:
        if self._tail is None or self._tail[:2] != (key, name):
            reads_events = live and name == EVENTS
            tail = (
                EventTail(live) if reads_events and live else LogTail(directory.parent, f"{key}/{name}.log")
            )
            self._tail = key, name, tail
        return self._tail[2]


def _first_log(names: list[str], run: Run) -> str:
    """The log to show if none is chosen: the one that says more about a failure, or the first node's."""
    wanted = [run.log, EVENTS, *(name for name in names if name.startswith("node-")), *names]
    return next((name for name in wanted if name in names), "")


def _head(view: View, report: Path) -> dict[str, Any]:
    states = [run.state for run in view.runs.values()]
    failed = sum(state in ENDED_BADLY for state in states)
    total, ok = len(states), states.count("ok")
    counts = [f"{ok + failed} of {total} run{'' if total == 1 else 's'} ended"] if total else []
    counts += [f"{ok} ok"] if ok else []
    counts += [f"{failed} failed"] if failed else []
    worst = next((key for key, run in view.runs.items() if run.state in ENDED_BADLY), "")
    return {
        "name": one_line(view.name),
        "state": view.state,
        "doing": view.doing,
        "running": view.running,
        "counts": counts,
        "failed": worst,
        "done": round(view.done, 4),
        "elapsed": duration(view.elapsed_s),
        "left": view.left,
        "report": time.strftime("%H:%M:%S", time.localtime(view.report_at)) if view.report_at else "",
        "file": one_line(str(report)),
        "damage": [one_line(each) for each in view.damage[:MOST_DAMAGE]],
        "more_damage": max(0, len(view.damage) - MOST_DAMAGE),
    }


def _row(run: Run) -> dict[str, str]:
    return {
        "key": run.key,
        "state": run.state,
        "cause": one_line(run.cause),
        "epoch": run.epoch,
        "loss": run.loss,
        "accuracy": run.accuracy,
        "time": "" if run.seconds is None else duration(run.seconds),
    }
