"""One case in progress: its directory, its command, and what it has reported so far."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import psutil

from orchestrator.identity import identity
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, read_result
from orchestrator.sweeps.load import load_sweep
from tests.faults.case import DOCKER, SWARM, Case, Moment
from tests.support.command_line import PROJECT, environment, heed_signals, orchestrator
from tests.support.places import MPIRUN, PLACES, DockerPlace, Place, inside
from tests.support.runs import event_files
from trainer.spec.run_spec import RunSpec

POLL_S = 0.02
MOMENT_S = 120.0  # within which a moment comes
END_S = 120.0  # for the healthy run and the report, after the disturbed run has its row
HEALTHY: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": 120, "test_samples": 32},
    "model": {"name": "mlp", "hidden": [8]},
    "epochs": 1,
    "seed": 1,
    "timeout_s": 120,
}


class SceneError(Exception):
    """The case could not be played as declared. The message says why."""


class Scene:
    """A sweep of the disturbed run and a healthy one, as a user would run it."""

    def __init__(self, case: Case, runtime: str, draws: Random, directory: Path) -> None:
        self.case, self.runtime, self.draws, self.directory = case, runtime, draws, directory
        self.out, self.data, self.temporary = directory / "out", directory / "data", directory / "tmp"
        for each in (self.data, self.temporary):
            each.mkdir()
            each.chmod(0o755)
        self.file = directory / "sweep.yml"
        self.file.write_text(self.document(case))
        self.runs: list[RunSpec] = load_sweep(self.file).runs
        self.run = self.runs[0]
        self.victims = sorted(draws.sample(case.victims or range(self.run.world_size), case.count))
        self.paths = SweepPaths(self.out)
        self.command: subprocess.Popen[bytes] | None = None
        self.output = self.said = ""
        self.started_at = self.struck_at = self.ended_at = 0.0
        self._places: list[Place] = []
        self._pids: set[int] = set()

    @staticmethod
    def document(case: Case) -> str:
        """The sweep file of a case."""
        same = {name: case.run[name] for name in ("strategy", "transport", "nodes")}
        if isinstance(same["strategy"], dict):  # without the parameters that make it fail
            same["strategy"] = same["strategy"]["name"]
        blocks = [{"base": dict(case.run)}, {"base": {**same, **HEALTHY, **case.next_run}}]
        return json.dumps({"name": "faults", **case.sweep, "blocks": blocks})

    @property
    def checkpoints(self) -> Path:
        return self.paths.run(self.run.key).checkpoints

    # The command

    def start(self) -> None:
        """Start the command."""
        with open(self._console, "wb") as console:
            self.command = subprocess.Popen(
                orchestrator(
                    *("sweep", self.file, "--out", self.out, "--data-dir", self.data),
                    *("--runtime", self.runtime, *self.case.options),
                ),
                cwd=PROJECT,
                env={**environment(), **self._environment()},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                preexec_fn=heed_signals,
            )
        self.started_at = time.time()
        process = psutil.Process(self.command.pid)
        self._places.append(PLACES[self.runtime](process, identity(self.command.pid), self.out))

    def _environment(self) -> dict[str, str]:
        """Temporary files lie in the case; torch's cache, which programs share, lies beside them."""
        cache = str(self.directory / "cache")
        return {"TMPDIR": str(self.temporary), "TORCHINDUCTOR_CACHE_DIR": cache, **self.case.environment}

    def wait(self, seconds: float) -> int:
        """Wait for the command to end; returns its exit code. Raises SceneError."""
        assert self.command
        try:
            code = self.command.wait(seconds)
        except subprocess.TimeoutExpired:
            raise SceneError(f"the command did not end within {seconds:.0f} s") from None
        self.output = self._console.read_text(errors="replace")
        return code

    def end(self) -> None:
        """End the command if it still runs, as Ctrl-C does and then by force."""
        if self.command and self.command.poll() is None:
            for number in (signal.SIGINT, signal.SIGKILL):
                self.command.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self.command.wait(30)
                    break

    def strike(self) -> None:
        """Let the fault happen."""
        self.struck_at = time.time()
        self.case.fault.strike(self)

    @property
    def running(self) -> bool:
        return self.command is not None and self.command.poll() is None

    @property
    def orchestrator(self) -> psutil.Process:
        return self.place.orchestrator

    @property
    def place(self) -> Place:
        return self._places[-1]

    @property
    def containers(self) -> DockerPlace:
        assert isinstance(self.place, DockerPlace), "the case is for containers only"
        return self.place

    def running_containers(self, role: str) -> list[dict[str, Any]]:
        """Those of a service; of `node`, the victims'. An engine does not kill one that is only created."""
        if role != "node":
            found = self.containers.containers(role)
        else:
            found = [each for rank in self.victims if (each := self.containers.node(self.run, rank))]
        return [each for each in found if inside(each)]

    @property
    def in_containers(self) -> bool:
        return self.runtime in (DOCKER, SWARM)

    @property
    def _console(self) -> Path:
        return self.directory / "console.txt"

    # What is reported

    def events(self) -> Iterator[dict[str, Any]]:
        """Events of the disturbed run so far; of a finished run, from its record."""
        run = self.paths.run(self.run.key)
        for path in [*event_files(self.out), run.events]:
            with suppress(OSError):
                for line in path.read_text(errors="replace").splitlines():
                    with suppress(ValueError):
                        event = json.loads(line)
                        if event.get("run") == self.run.key:
                            self._pids.add(event.get("pid", 0))
                            yield event

    def row(self, key: str | None = None) -> RunResult | None:
        """The row of the disturbed run, or of another one."""
        return read_result(self.paths.run(key or self.run.key).result)

    def position(self, rank: int) -> psutil.Process | None:
        """The process of a rank that has reported its start."""
        pids = [e["pid"] for e in self.events() if e["kind"] == "start" and e["rank"] == rank]
        return self.place.rank(self.run, rank, pids[-1]) if pids else None

    def rank(self, rank: int) -> psutil.Process:
        """As `position`, but waits for it. Raises SceneError."""
        found: psutil.Process = self.until(lambda: self.position(rank), f"rank {rank} has no process")
        return found

    # Moments

    def reach(self, moment: Moment) -> None:
        """Wait for the moment, and a random time in it. Raises SceneError if it does not come."""
        if moment is Moment.PENDING:
            self.until(self.place.waits, "no run waits for room")
        elif moment is Moment.START:
            self.until(self._starting, "no process of the run has started")
            time.sleep(self.draws.uniform(0, 0.2))
        elif moment is Moment.CONNECTING:
            self.until(lambda: self._reported("start"), "no rank has started")
        elif moment is Moment.FIRST_STEP:
            self.until(lambda: self._reported("train_start", all_ranks=True), "no rank trains")
        elif moment in (Moment.EPOCH, Moment.EVALUATION, Moment.RESTART):
            kind = "epoch" if self.run.strategy.trains else "train_start"
            self.until(lambda: self._reported(kind), "no epoch has ended")
            time.sleep(self.draws.uniform(0, 0.5))
        elif moment is Moment.CHECKPOINT:
            self.until(lambda: self._reported("checkpoint"), "there is no checkpoint")
            time.sleep(self.draws.uniform(0, 0.2))
        elif moment is Moment.TEARDOWN:
            self.until(lambda: self._reported("train_end"), "training has not ended")

    def _starting(self) -> bool:
        spec = self.paths.run(self.run.key).spec
        if not spec.exists():  # the sweep warms the machine up
            return False
        cold = "--cold" in self.case.options or self.runtime == SWARM
        if self.in_containers and cold:  # those of that run may still be there
            self.containers.since = datetime.fromtimestamp(spec.stat().st_mtime, UTC).isoformat()
        return bool(self.place.starting(self.run, 0)) or any(self.place.commands(*MPIRUN))

    def _reported(self, kind: str, all_ranks: bool = False) -> bool:
        ranks = {event["rank"] for event in self.events() if event["kind"] == kind}
        return len(ranks) == self.run.world_size if all_ranks else bool(ranks)

    def until(self, condition: Callable[[], Any], otherwise: str, seconds: float = MOMENT_S) -> Any:
        """Poll until the condition holds; returns its value. Raises SceneError if the command ends."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if not self.running or time.monotonic() > deadline:
                raise SceneError(otherwise + f": {self._console.read_text(errors='replace')[-400:]}")
            time.sleep(POLL_S)
        return value

    # What is left

    def left(self) -> list[str]:
        """What the commands have left: processes, containers, networks, volumes and files."""
        found = [each for place in self._places for each in place.left()]
        found += [f"file {path.name}" for path in self.temporary.iterdir()]
        found += [f"directory {path.name}" for path in self.out.glob("*/live")]
        found += [f"directory {path.name}" for path in self.out.glob(".warm")]
        found += [f"file {path.name}" for path in self.out.rglob(".*.json.*")]
        if not self.in_containers:
            shared = Path("/dev/shm")
            found += [str(path) for pid in self._pids - {0} for path in shared.glob(f"torch_{pid}_*")]
        return found


def clean(runtime: str) -> subprocess.CompletedProcess[str]:
    """Run the command that removes what killed orchestrators have left."""
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", "clean"],
        cwd=PROJECT,
        env={**os.environ, "SHARDYARD_RUNTIME": runtime},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
