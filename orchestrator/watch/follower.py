"""What the page says of a sweep, from the files of its results directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.execution.position import TimeLeft
from orchestrator.results.limits import counted
from orchestrator.results.store import SweepPaths, SweepRecord, UnusableFile, read_record, read_result
from orchestrator.watch.live_run import LiveRun
from trainer.core.record import one_line

HEADS = {
    "starting": "Starting",
    "running": "Running",
    "ended": "The sweep has ended",
    "stopped": "The sweep has stopped before its end; the same command resumes it",
}


@dataclass(frozen=True)
class View:
    """The sweep at one moment.

    Attributes:
        state: one of HEADS.
        progress: the state, the runs that have ended, and time left, in one line.
        done: share of the runs that have ended, 0 … 1, with the part of the one in progress.
        now: the run in progress with its epoch and accuracy, or what else the sweep is doing.
        log_of: whose lines `log` has; empty if no run is in progress.
        report: changes when the report is newer; empty if there is none.
        written: when the report was written, as a sentence.
    """

    name: str
    state: str
    progress: str
    done: float = 0.0
    now: str = ""
    log_of: str = ""
    log: Sequence[str] = ()
    report: str = ""
    written: str = ""


@dataclass(frozen=True)
class _Ended:
    """What is kept of a result. at_ns: when it was written. seconds: 0 if it cannot be used."""

    at_ns: int
    ok: bool
    seconds: float


class Follower:
    """Follows a results directory; each result is read once, and of events only what is new."""

    def __init__(self, paths: SweepPaths, is_active: Callable[[], bool]) -> None:
        """is_active: whether a sweep runs in the directory."""
        self.paths, self._is_active = paths, is_active
        self._record: SweepRecord | None = None
        self._recorded_ns = 0
        self._ended: dict[str, _Ended] = {}  # by key
        self._live: LiveRun | None = None

    @property
    def keys(self) -> list[str]:
        """The keys of the runs. One that names no directory in that of the sweep is left out."""
        return [key for key in self._record.keys if _is_name(key)] if self._record else []

    def poll(self) -> View:
        """Read what has changed. Raises InputError if the directory's sweep.json cannot be used."""
        active = self._is_active()
        record = self._read_record(active)
        began_ns = _changed_ns(self.paths.lock)
        if record is None or (active and self._recorded_ns < began_ns):
            return View(one_line(self.paths.directory.name), "starting", HEADS["starting"])
        results = {key: self._result(key) for key in self.keys}
        live = None
        if active:
            live = self._follow([key for key, each in results.items() if not each], began_ns)
        # A sweep that is resumed repeats what was not ok.
        ended = [
            each for each in results.values() if each and (each.ok or each.at_ns >= began_ns or not active)
        ]
        waiting = len(results) - len(ended) - bool(live)
        share, elapsed_s = (live.done, live.elapsed_s) if live else (0.0, 0.0)
        left = ""
        if active and (live or waiting):
            took = [each.seconds for each in ended if each.seconds and each.at_ns >= began_ns]
            # Between two runs, the next one is about to start.
            later = TimeLeft(waiting - (not live), took, staged=record.stages is not None)
            left = later.estimate(0, share, elapsed_s)
        state = "running" if active else "stopped" if waiting else "ended"
        not_ok = sum(not each.ok for each in ended)
        counts = f"{len(ended)} of {counted(len(results), 'run')} ended"
        log_of, log = live.log() if live else ("", [])
        return View(
            one_line(record.name),
            state,
            " · ".join(filter(None, [HEADS[state], counts, f"{not_ok} not ok" if not_ok else "", left])),
            (len(ended) + share) / max(1, len(results)),
            live.text if live else self._doing(waiting) if active else "",
            log_of,
            log,
            *self._report(ended),
        )

    def _read_record(self, active: bool) -> SweepRecord | None:
        """The sweep of the directory; None if it is about to be written."""
        at_ns = _changed_ns(self.paths.record)
        if at_ns != self._recorded_ns or not at_ns:
            try:
                self._record = read_record(self.paths)
            except InputError as error:
                if not active or isinstance(error, UnusableFile):
                    raise
            self._recorded_ns = at_ns
        return self._record

    def _result(self, key: str) -> _Ended | None:
        """What the page needs of a run's result; None if there is none."""
        path = self.paths.run(key).result
        known, at_ns = self._ended.get(key), _changed_ns(path)
        if at_ns and (known is None or known.at_ns != at_ns):
            result = None
            with suppress(UnusableFile):  # which counts as not ok
                result = read_result(path)
            ok, seconds = (result.status == "ok", result.wall_s) if result else (False, 0.0)
            known = self._ended[key] = _Ended(at_ns, ok, seconds)
        return known if at_ns else None

    def _follow(self, keys: Iterable[str], began_ns: int) -> LiveRun | None:
        """The run in progress: of those without a result, the last that this command has started."""
        at_ns, key = max(((_changed_ns(self.paths.run(key).spec), key) for key in keys), default=(0, ""))
        if not at_ns or at_ns < began_ns:
            return None
        if not self._live or (self._live.started_ns, self._live.key) != (at_ns, key):
            self._live = LiveRun(self.paths.run(key), at_ns)
        self._live.poll()
        return self._live

    def _doing(self, waiting: int) -> str:
        if self.paths.warm_up_run.exists():
            return "A warm-up run, whose result is dropped"
        return "Before the next run" if waiting else "Evaluating the results"

    def _report(self, ended: Iterable[_Ended]) -> tuple[str, str]:
        """What changes with the report, and when it was written, as a sentence."""
        at_ns = _changed_ns(self.paths.html)
        if not at_ns:
            return "", "No report yet: a sweep writes it at its end, with --watch also between runs."
        since = sum(each.at_ns > at_ns for each in ended)
        more = f"; {counted(since, 'run')} ended since" if since else ""
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ns / 1e9))
        return str(at_ns), f"Report written at {written}{more}"


def _changed_ns(path: Path) -> int:
    """When a file was written, in nanoseconds since 1970; 0 if there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _is_name(key: str) -> bool:
    """Whether a key of sweep.json is the name of a directory in that of the sweep."""
    return Path(key).name == key and key not in ("", ".", "..") and key.isprintable()
