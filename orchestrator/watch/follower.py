"""What a page shows of a sweep, from the files of its results directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from orchestrator.errors import InputError
from orchestrator.execution.position import TimeLeft, share_done
from orchestrator.results.records import RunResult
from orchestrator.results.store import (
    SweepPaths,
    SweepRecord,
    UnusableFile,
    read_record,
    read_result,
    read_spec,
)
from orchestrator.watch.live_run import LiveRun, Point, points_of, slowest

SweepState = Literal["starting", "running", "ended", "stopped"]
RunState = Literal["waiting", "running", "ok", "failed", "timeout", "unusable", "interrupted", "not run"]
ENDED_BADLY = ("failed", "timeout", "unusable")


@dataclass(frozen=True)
class Run:
    """A run of the sweep; what is not known is None.

    Attributes:
        cause: why it is not ok. log: the file that may say more about it, without its ending.
        epoch: where its slowest rank is, as text. loss, accuracy: those of that rank, or at the end of the
            run.
        seconds: the time since its start, or from start to end.
    """

    key: str
    state: RunState
    cause: str = ""
    log: str = ""
    epoch: str = ""
    loss: str = ""
    accuracy: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class View:
    """The sweep at one moment.

    Attributes:
        doing: what the sweep is doing, if no run is in progress.
        runs: the runs by key, in the order of their execution.
        running: the key of the run in progress.
        done: share of the runs that have ended, 0 … 1, with the part of the one in progress.
        elapsed_s: the time since the sweep command started; of an ended sweep, that of all its runs.
        left: time left as text; empty if nothing is known.
        report_at: when the report was written, in seconds since 1970; None: there is none.
        damage: what cannot be used in the directory, as sentences that begin with the file.
    """

    name: str
    state: SweepState
    doing: str = ""
    runs: Mapping[str, Run] = field(default_factory=dict)
    running: str | None = None
    done: float = 0.0
    elapsed_s: float = 0.0
    left: str = ""
    report_at: float | None = None
    damage: Sequence[str] = ()


@dataclass(frozen=True)
class _Ended:
    """What is kept of a result."""

    changed_ns: int
    run: Run
    points: Sequence[Point]
    epochs: int


class Follower:
    """Follows a results directory; each result is read once, and of other files only what is new."""

    def __init__(self, paths: SweepPaths, is_active: Callable[[], bool], since_ns: int = 0) -> None:
        """
        Args:
            paths: the paths of the sweep.
            is_active: whether a sweep runs in the directory.
            since_ns: when it began, in ns since 1970; an older record is of another one. 0: not known.
        """
        self.paths = paths
        self._is_active, self._since_ns = is_active, since_ns
        self._record: SweepRecord | None = None
        self._recorded_ns = 0
        self._record_damage = ""
        self._ended: dict[str, _Ended] = {}  # by key
        self._specs: dict[str, tuple[int, str]] = {}  # by key: when it changed, and what is wrong with it
        self._live: LiveRun | None = None
        self._live_of: tuple[str, int] | None = None  # the key of the run in progress, and its start

    @property
    def keys(self) -> Sequence[str]:
        """The keys of the runs, in the order of their execution."""
        record = self._record
        if record is None:
            return ()
        ordered = record.order if sorted(record.order) == sorted(record.keys) else record.keys
        return [key for key in ordered if _is_name(key)]

    def poll(self) -> View:
        """Read what has changed. Raises InputError if the directory's sweep.json cannot be read."""
        active = self._is_active()
        self._read_record(active)
        if self._record is None or (active and self._recorded_ns < self._since_ns):
            damage = [self._record_damage] if self._record_damage else []
            return View(self.paths.directory.name, "starting", "preparing the sweep", damage=damage)
        keys = self.keys
        for key in keys:
            self._read_result(key)
        running = self._follow(keys if active else ())
        runs = {key: self._run(key, active, running) for key in keys}
        report_at = _changed_ns(self.paths.html) / 1e9 or None
        damage = [*self._damage(self._record, runs)]
        view = View(self._record.name, "running", runs=runs, report_at=report_at, damage=damage)
        return self._active_view(view, running) if active else _final(view)

    def points(self, key: str) -> Sequence[Point]:
        """The epochs of a run so far."""
        if live := self.live(key):
            return live.points
        return self._ended[key].points if key in self._ended else ()

    def epochs(self, key: str) -> int:
        """How many epochs a run trains for; 0 if that is not known."""
        if live := self.live(key):
            return live.spec.epochs
        return self._ended[key].epochs if key in self._ended else 0

    def live(self, key: str) -> LiveRun | None:
        """The run in progress, if it has this key."""
        return self._live if self._live_of and self._live_of[0] == key else None

    def _read_record(self, active: bool) -> None:
        changed_ns = _changed_ns(self.paths.record)
        if changed_ns == self._recorded_ns:
            return
        self._record_damage = ""
        try:
            self._record = read_record(self.paths)
        except InputError as error:
            if not active:
                raise
            if isinstance(error, UnusableFile):  # otherwise the sweep is about to write it
                self._record_damage = f"{self.paths.record.name} {error.reason}"
            return
        self._recorded_ns = changed_ns

    def _read_result(self, key: str) -> None:
        """Keep what the page shows of a run's result."""
        path = self.paths.run(key).result
        changed_ns = _changed_ns(path)
        if not changed_ns:
            self._ended.pop(key, None)
        elif key not in self._ended or self._ended[key].changed_ns != changed_ns:
            try:
                result = read_result(path)
            except UnusableFile as error:
                self._ended[key] = _Ended(changed_ns, Run(key, "unusable", error.reason), (), 0)
            else:
                if result:
                    self._ended[key] = _ended(changed_ns, key, result)

    def _damage(self, record: SweepRecord, runs: Mapping[str, Run]) -> Iterator[str]:
        """What of the directory cannot be used. Files of ended runs that the page does not read may be."""
        if self._record_damage:
            yield self._record_damage
        for key in record.keys:
            if not _is_name(key):
                yield f"{self.paths.record.name} has a run {key!r}, which cannot be the name of a directory"
        if record.order and sorted(record.order) != sorted(record.keys):
            yield f"{self.paths.record.name} has another list of runs in `order` than in `keys`"
        for key, run in runs.items():
            if run.state == "unusable":
                yield f"{key}/{self.paths.run(key).result.name} {run.cause}"
            elif run.state in ("running", "interrupted") and (trouble := self._spec_damage(key)):
                yield f"{key}/{self.paths.run(key).spec.name} {trouble}"

    def _spec_damage(self, key: str) -> str:
        """Why the spec of a run cannot be used; empty if it can. Read again when it changes."""
        paths = self.paths.run(key)
        changed_ns = _changed_ns(paths.spec)
        if self._specs.get(key, (0, ""))[0] != changed_ns:
            try:
                read_spec(paths)
            except UnusableFile as error:
                self._specs[key] = changed_ns, error.reason
            else:
                self._specs[key] = changed_ns, ""
        return self._specs.get(key, (0, ""))[1]

    def _follow(self, keys: Sequence[str]) -> str | None:
        """Follow the run in progress; returns its key. It is the last that this command has started."""
        started = {
            key: changed_ns
            for key in keys
            if key not in self._ended
            and (changed_ns := _changed_ns(self.paths.run(key).spec)) >= self._recorded_ns
        }
        if not started:
            self._live = self._live_of = None
            return None
        key = max(started, key=lambda each: started[each])
        if self._live_of != (key, started[key]):
            self._live = self._live_of = None
            with suppress(UnusableFile):  # which `_damage` names
                if spec := read_spec(self.paths.run(key)):
                    self._live = LiveRun(self.paths.run(key), spec)
                    self._live_of = key, started[key]
        if self._live:
            self._live.poll()
        return key

    def _run(self, key: str, active: bool, running: str | None) -> Run:
        if key == running:
            return self._in_progress(key)
        if ended := self._ended.get(key):
            repeated = active and ended.run.state != "ok" and ended.changed_ns < self._recorded_ns
            return Run(key, "waiting") if repeated else ended.run
        if active:
            return Run(key, "waiting")
        return Run(key, "interrupted" if self.paths.run(key).spec.exists() else "not run")

    def _in_progress(self, key: str) -> Run:
        if not self._live or not self._live_of:
            return Run(key, "running", epoch="starting")
        at = slowest(self._live.positions)
        seconds = max(0.0, time.time() - self._live_of[1] / 1e9)
        return Run(key, "running", epoch=at.epoch, loss=at.loss, accuracy=at.accuracy, seconds=seconds)

    def _active_view(self, view: View, running: str | None) -> View:
        """The view of a sweep in progress."""
        waiting = sum(run.state == "waiting" for run in view.runs.values())
        done = share_done(self._live.positions.values()) if running and self._live else 0.0
        took = [
            ended.run.seconds
            for ended in self._ended.values()
            if ended.run.seconds is not None and ended.changed_ns >= self._recorded_ns
        ]
        # Between two runs, the next one is about to start.
        later = waiting if running else max(0, waiting - 1)
        elapsed_s = (view.runs[running].seconds or 0.0) if running else 0.0
        return replace(
            view,
            doing="" if running else self._doing(waiting, bool(took)),
            running=running,
            done=(len(view.runs) - waiting - bool(running) + done) / max(1, len(view.runs)),
            elapsed_s=max(0.0, time.time() - self._recorded_ns / 1e9),
            left=TimeLeft(later, took).estimate(0, done, elapsed_s) if running or waiting else "",
        )

    def _doing(self, waiting: int, began: bool) -> str:
        if self.paths.warm_up_run.exists():
            return "a warm-up run, whose result is dropped"
        if not waiting:
            return "writing the report"
        return "between two runs" if began else "preparing the first run"


def _final(view: View) -> View:
    """The view of a sweep that does not run."""
    done = sum(run.state not in ("interrupted", "not run") for run in view.runs.values())
    return replace(
        view,
        state="ended" if done == len(view.runs) else "stopped",
        done=done / max(1, len(view.runs)),
        elapsed_s=sum(run.seconds or 0.0 for run in view.runs.values()),
    )


def _ended(changed_ns: int, key: str, result: RunResult) -> _Ended:
    points = points_of((point.epoch, point.loss, point.accuracy) for point in result.epochs)
    last = points[-1] if points else None
    accuracy = result.accuracy if result.accuracy is not None else last and last.accuracy
    unknown = "" if result.runtime_info.trains else "not trained"
    run = Run(
        key,
        result.status,
        cause=result.cause or "",
        log=(result.log or "").removesuffix(".log"),
        epoch=f"{last.epoch}/{result.run.epochs}" if last else "",
        loss=f"{last.loss:.3f}" if last and last.loss is not None else "",
        accuracy=unknown if accuracy is None else f"{accuracy:.1%}",
        seconds=result.wall_s,
    )
    return _Ended(changed_ns, run, points, result.run.epochs)


def _changed_ns(path: Path) -> int:
    """When a file was written, in nanoseconds since 1970; 0 if there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _is_name(key: str) -> bool:
    """Whether a key of sweep.json is the name of a directory in that of the sweep."""
    return Path(key).name == key and key not in ("", ".", "..") and key.isprintable()
