"""What a row of the table declares, and a row in progress: its directory, its command and its events."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, Literal

import psutil

from orchestrator.identity import identity
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, read_result
from orchestrator.sweeps.load import load_sweep
from tests.support.command_line import PROJECT, environment, heed_signals, orchestrator
from tests.support.places import MPIRUN, PLACES, inside
from tests.support.runs import SMALL, event_files

VICTIM = "the victim"  # in a verdict: the first node that is named must be a victim's
MOMENT_S = 120.0  # within which a moment comes
HEALTHY = {**SMALL, "dataset": {"name": "synthetic", "samples": 120, "test_samples": 32}, "epochs": 1}
Strike = Callable[["Scene"], object]


class Moment(Enum):
    """When the fault strikes: the event that a rank has written. The seed varies the moment after it."""

    BEFORE = "before the sweep"
    ANY = "any"
    PENDING = "waiting for room"
    START = "before the first event"
    CONNECTING = "start"
    FIRST_STEP = "train_start"
    EPOCH = "epoch"
    CHECKPOINT = "checkpoint"
    TEARDOWN = "train_end"


LATER_S = {Moment.ANY: 6.0, Moment.START: 0.2, Moment.EPOCH: 0.5, Moment.CHECKPOINT: 0.2}  # at most


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at the moment of the case."""

    strike: Strike = lambda scene: None
    arrange: Strike = lambda scene: None  # prepares it before the command starts
    repair: Strike = lambda scene: None  # undoes it before the command runs again
    needs_root: bool = False
    needs_data: bool = False  # of MNIST
    alone: bool = False  # it disturbs other users of the engine
    leaves: bool = False  # the next command removes what it leaves


@dataclass(frozen=True)
class Verdict:
    """What must follow."""

    status: tuple[str, ...]  # of the run's row, any of these; empty: the sweep stops, and there is no row
    said: tuple[str, ...]  # patterns of what the row says, or the command where the sweep stops
    within_s: float  # from the fault to the row, or to the end of the command where the sweep stops
    exit_code: int
    silent: tuple[str, ...] = ()  # statuses that need not say it: the fault may come too late
    of_next: bool = False  # the row of the next run says it


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    fault: Fault
    verdict: Verdict
    run: Mapping[str, Any]  # fields of the run that is disturbed; a healthy run follows it in the sweep
    moment: Moment = Moment.EPOCH
    runtimes: tuple[str, ...] = ("local", "docker")
    victims: tuple[int, ...] = ()  # the ranks of which the seed chooses `count`; default: all
    count: int = 1
    options: tuple[str, ...] = ()  # of the command
    earlier: Literal["killed", "finished"] | None = None  # how the same command has ended before
    again: bool = False  # the same command is run again, and must end as if nothing had happened
    next_run: Mapping[str, Any] = field(default_factory=dict)  # fields of the healthy run that differ
    sweep: Mapping[str, Any] = field(default_factory=dict)  # further keys of the sweep file
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> str:
        """Its sweep file."""
        same = {name: self.run[name] for name in ("strategy", "transport", "nodes")}
        blocks = [{"base": dict(self.run)}, {"base": {**same, **HEALTHY, **self.next_run}}]
        return json.dumps({"name": "faults", **self.sweep, "blocks": blocks})


class Scene:
    """A sweep of the disturbed run and a healthy one, as a user would run it."""

    def __init__(self, case: Case, runtime: str, draws: Random, directory: Path) -> None:
        self.case, self.runtime, self.draws, self.directory = case, runtime, draws, directory
        self.out, self.data, self.temporary = directory / "out", directory / "data", directory / "tmp"
        for each in (directory, self.data, self.temporary):
            each.mkdir(exist_ok=True)
            each.chmod(0o755)  # containers read them
        (directory / "sweep.yml").write_text(case.document)
        self.runs = load_sweep(directory / "sweep.yml").runs
        self.run = self.runs[0]
        self.victims = sorted(draws.sample(case.victims or range(self.run.world_size), case.count))
        self.paths = SweepPaths(self.out)
        self.files = self.paths.run(self.run.key)
        self.in_containers = runtime == "docker"
        self.output = ""
        self.started_at = self.struck_at = 0.0
        self.command: Any = None
        self.place: Any = None  # of the nodes of the last command
        self._places: list[Any] = []
        self._pids: set[int] = set()

    # The command

    def start(self) -> None:
        """Start the command. Its temporary files lie in the scene, and torch's cache beside them."""
        own = {"TMPDIR": str(self.temporary), "TORCHINDUCTOR_CACHE_DIR": str(self.directory / "cache")}
        options = ["--data-dir", self.data, "--runtime", self.runtime, *self.case.options]
        with open(self.directory / "console.txt", "wb") as console:
            self.command = subprocess.Popen(
                orchestrator("sweep", self.directory / "sweep.yml", "--out", self.out, *options),
                cwd=PROJECT,
                env={**environment(), **own, **self.case.environment},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                preexec_fn=heed_signals,
            )
        self.started_at = time.time()
        process = psutil.Process(self.command.pid)
        self.place = PLACES[self.runtime](process, identity(process.pid), self.out)
        self._places.append(self.place)

    def wait(self, seconds: float) -> int:
        """Wait for the command to end; returns its exit code."""
        code: int = self.command.wait(seconds)
        self.output = (self.directory / "console.txt").read_text(errors="replace")
        assert "Traceback" not in self.output, self.output[-3000:]
        return code

    def end(self) -> None:
        """End the command if it still runs, as Ctrl-C does and then by force."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if self.running:
                self.command.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self.command.wait(30)

    @property
    def running(self) -> bool:
        return self.command is not None and self.command.poll() is None

    def strike(self) -> None:
        """Let the fault happen."""
        self.struck_at = time.time()
        self.case.fault.strike(self)

    def containers(self, role: str) -> list[dict[str, Any]]:
        """Those of a service; of `node`, the victims'. An engine does not kill one that is only created."""
        found = self.place.containers(role)
        if role == "node":
            found = [self.place.node(self.run, rank) for rank in self.victims]
        return [each for each in found if each and inside(each)]

    # What is reported

    def events(self) -> Iterator[dict[str, Any]]:
        """Events of the disturbed run so far; of a finished run, from its record."""
        for path in [*event_files(self.out), self.files.events]:
            with suppress(OSError):
                for line in path.read_text(errors="replace").splitlines():
                    with suppress(ValueError):
                        event = json.loads(line)
                        if event.get("run") == self.run.key:
                            self._pids.add(event.get("pid", 0))
                            yield event

    def row(self, number: int = 0) -> RunResult | None:
        """The row of the disturbed run, or of the healthy one."""
        return read_result(self.paths.run(self.runs[number].key).result)

    def position(self, rank: int) -> psutil.Process | None:
        """The process of a rank that has reported its start."""
        pids = [e["pid"] for e in self.events() if e["kind"] == "start" and e["rank"] == rank]
        return self.place.rank(self.run, rank, pids[-1]) if pids else None

    # Moments

    def reach(self, moment: Moment) -> None:
        """Wait for the moment, and a random time after it."""
        reached = {Moment.ANY: lambda: True, Moment.PENDING: self.place.waits, Moment.START: self._starting}
        self.until(reached.get(moment, lambda: self._reported(moment)), moment.value)
        time.sleep(self.draws.uniform(0, LATER_S.get(moment, 0.0)))

    def _starting(self) -> bool:
        if not self.files.spec.exists():  # the sweep warms the machine up
            return False
        if self.in_containers and "--cold" in self.case.options:
            began = self.files.spec.stat().st_mtime  # those of an earlier run may still be there
            self.place.since = datetime.fromtimestamp(began, UTC).isoformat()
        return bool(self.place.starting(self.run, 0)) or any(self.place.commands(*MPIRUN))

    def _reported(self, moment: Moment) -> bool:
        ranks = {event["rank"] for event in self.events() if event["kind"] == moment.value}
        return len(ranks) >= (self.run.world_size if moment is Moment.FIRST_STEP else 1)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Poll until there is something; returns it. Fails if the command ends before."""
        deadline = time.monotonic() + MOMENT_S
        while not (value := condition()):
            assert self.running, f"the command has ended before there was {what}"
            assert time.monotonic() < deadline, f"there is no {what}"
            time.sleep(0.02)
        return value

    def left(self) -> list[str]:
        """What the commands have left: processes, containers, networks, volumes and files."""
        files = [*self.temporary.iterdir(), *self.out.glob("*/live"), *self.out.glob(".warm")]
        files += self.out.rglob(".*.json.*")
        if not self.in_containers:
            files += [path for pid in self._pids - {0} for path in Path("/dev/shm").glob(f"torch_{pid}_*")]
        found = [each for place in self._places for each in place.left()]
        return found + [f"file {path}" for path in files]
