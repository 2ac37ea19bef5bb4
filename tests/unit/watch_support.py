"""A results directory that a test writes to as a sweep does."""

from __future__ import annotations

import io
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from orchestrator.results.store import RunPaths, SweepPaths, write_atomic
from orchestrator.watch.follower import Follower, View
from tests.unit.report_support import a_record, a_run
from trainer.core.events import EventWriter
from trainer.spec.run_spec import RunSpec

EVIL = "<script>alert(1)</script>\x1b[31m\u202e"
SHOWN = r"<script>alert(1)</script>\x1b[31m\u202e"


class SweepInProgress:
    """active: whether a sweep runs in the directory."""

    def __init__(self, directory: Path, runs: list[RunSpec], **record: Any) -> None:
        self.paths, self.runs, self.active = SweepPaths(directory), runs, True
        self._at = time.time() - 1000
        keys = [run.key for run in runs]
        self.record = a_record([], keys, **{"order": keys, **record})
        self.follower = Follower(self.paths, lambda: self.active)

    def begin(self) -> None:
        self.write(self.paths.lock, "")
        self.write(self.paths.record, self.record.model_dump_json())

    def write(self, path: Path, text: str) -> None:
        """Write a file a second after the one before."""
        write_atomic(path, text)
        self._at += 1
        os.utime(path, (self._at, self._at))

    def start(self, run: RunSpec) -> RunPaths:
        """Start a run as the sweep runner does."""
        paths = self.paths.run(run.key)
        paths.result.unlink(missing_ok=True)
        self.write(paths.spec, run.model_dump_json())
        paths.live.mkdir(exist_ok=True)
        return paths

    def report(
        self, run: RunSpec, kind: str, rank: int = 0, directory: Path | None = None, **fields: Any
    ) -> None:
        """Let a rank report an event."""
        live = directory or self.paths.run(run.key).live
        with closing(EventWriter(run.key, rank, live, io.StringIO())) as writer:
            writer.write(kind, **fields)

    def end(self, run: RunSpec, **fields: Any) -> None:
        """End a run that has the defaults of `a_run`."""
        paths = self.paths.run(run.key)
        for file in paths.live.glob("*"):
            file.unlink()
        if paths.live.exists():
            paths.live.rmdir()
        result = a_run().model_copy(
            update={"key": run.key, "spec": run.model_dump(mode="json"), "wall_s": 60.0, **fields}
        )
        self.write(paths.result, result.model_dump_json())

    def poll(self) -> View:
        return self.follower.poll()


def serial(count: int, **fields: Any) -> list[RunSpec]:
    return [
        RunSpec.model_validate({"strategy": "serial", "epochs": 3, "seed": seed, **fields})
        for seed in range(count)
    ]


def epoch(number: int, accuracy: float, loss: float | None = 0.5) -> dict[str, Any]:
    return {
        "epoch": number,
        "epochs": 3,
        "train_s": 1.0,
        "loss": loss,
        "accuracy": accuracy,
        "test_loss": 0.2,
    }
