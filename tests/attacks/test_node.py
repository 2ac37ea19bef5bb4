"""Hostile ranks of local nodes write anything to their run's directory.

The promise of docs/security.md: invalid data from a node fails only the run in which the node sends it. The
row names the node and the field, and the sweep goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths
from orchestrator.runtimes.launch_plan import LaunchPlan, Process
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.sweeps.load import load_sweep
from tests.support.runs import RecordingDisplay
from tests.unit.conftest import event, rank_fields
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec

BASE: dict[str, Any] = {"strategy": "fault_injection", "transport": "gloo", "nodes": 2, "timeout_s": 20}
LIMITS = OutputLimits.of(RunSpec.model_validate(BASE))
EPOCH = {"epochs": 2, "train_s": 1.0, "loss": 0.5, "accuracy": 0.5, "test_loss": 0.5}
PARTITION = {"epoch": 1, "samples": 1, "labels": [1], "js_divergence": 0.0, "js_divergence_so_far": 0.0}
SLEEPS = "sleep 15"  # a run must end before


def honest_lines(rank: int, **changed: Any) -> list[str]:
    """What a rank that does not train writes."""
    result, now = rank_fields(samples=0, accuracy=None, **changed), time.time()
    kinds: dict[str, dict[str, Any]] = {"start": {"pid": 1}, "train_start": {"parameters": 0}}
    kinds |= {"train_end": {}, "result": result, "done": {}}
    return [event(kind, rank, now, **fields).to_line() for kind, fields in kinds.items()]


def raw(kind: str, rank: int = 1, /, **fields: Any) -> str:
    """A line that `Event` would not write."""
    head = {"version": 1, "time": 2e9, "run": "key", "rank": rank, "host": "h", "kind": kind}
    return json.dumps(head | fields)


class CopyingRuntime(LocalRuntime):
    """A local runtime with a single process, which copies files to where ranks write, and does more."""

    def __init__(self, files: Path, then: Sequence[str]) -> None:
        super().__init__(cold=True)
        self._files, self._then = files, then

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        script = f'cp -r "$0"/. "$1"; {self._then[spec.seed]}'
        argv = ["sh", "-c", script, str(self._files / str(spec.seed)), str(paths.directory / "live")]
        return LaunchPlan(spec, paths, data_dir, processes=[Process("nodes", argv, {}, "node-0")])


class Attack:
    """A sweep of hostile runs and then an honest one, each on two nodes."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.paths = directory, SweepPaths(directory / "out")

    def results(self, *attacks: tuple[dict[str, Sequence[str]], str]) -> list[RunResult]:
        """The rows of hostile runs, each with files in place of honest ones, and what is done then."""
        sweep_file, files, runs = self.directory / "s.yml", self.directory / "files", [*attacks, ({}, "")]
        blocks = [{"base": {**BASE, "seed": seed}} for seed in range(len(runs))]
        sweep_file.write_text(json.dumps({"name": "s", "blocks": blocks}))
        honest = {f"rank-{rank}.jsonl": honest_lines(rank) for rank in (0, 1)}
        for seed, (changed, _) in enumerate(runs):
            (files / str(seed)).mkdir(parents=True)
            for name, lines in {**honest, **changed}.items():
                (files / str(seed) / name).write_text("".join(f"{line}\n" for line in lines))
        clusters = Clusters(CopyingRuntime(files, [then for _, then in runs]))
        runner = SweepRunner(clusters, "local", self.paths, self.directory, RecordingDisplay())
        code = SimpleNamespace(code=True, copy_to=lambda directory, runs: directory.mkdir())
        sweep = replace(load_sweep(sweep_file), imports=code)  # type: ignore[arg-type]
        self.paths.directory.mkdir()
        runner.prepare(sweep)
        *hostile, last = runner.results(sweep)
        assert (last.status, last.cause) == ("ok", None)
        return hostile


@pytest.fixture
def attack(tmp_path: Path) -> Attack:
    return Attack(tmp_path)


def test_directories_of_runs_and_of_copied_code_are_private(attack: Attack) -> None:
    attack.results()
    directories = [path for path in attack.paths.directory.iterdir() if path.is_dir()]
    assert len(directories) == 2
    assert {path.stat().st_mode & 0o777 for path in directories} == {0o700}


INVALID = {
    raw("start"): "event start: pid",
    raw("start", pid=1, attempt=1): "event start: attempt",
    raw("done", 7): "event done: rank",
    raw("step", loss=float("nan")): "NaN",
    "[" * 8000: "event: n",
    "[" * 500_000: "one line",
    raw("odd\x1b[2J"): "event: kind",
}
FIELDS = ("bytes_to", "wait_s_by_rank")  # of the only result of the rank, before its end
CONTRADICTING = {
    event("result", 1, **rank_fields()).to_line(): "result",
    raw("partition", **PARTITION, digest="0"): "labels",
    raw("checkpoint_skipped", epoch=10**9, step=1, cause="x"): "epoch",
    raw("epoch", epoch=2, **EPOCH): "epoch",
    "\n".join(honest_lines(1, bytes_to=[1, 2, 3])[3:]): "bytes_to",
    "\n".join(honest_lines(1, wait_s_by_rank=[])[3:]): "wait_s_by_rank",
}


def test_an_invalid_event_fails_its_run(attack: Attack) -> None:
    said = {**INVALID, **CONTRADICTING}
    files = [[*honest_lines(1)[: 3 if named in FIELDS else 5], line] for line, named in said.items()]
    found = attack.results(*(({"rank-1.jsonl": lines}, "") for lines in files))
    for (line, named), result in zip(said.items(), found, strict=True):
        assert (result.status, str(result.cause)[:6]) == ("failed", "node 1")
        assert named in str(result.cause)
        assert str(result.cause).isprintable()
        if line in CONTRADICTING:
            assert (result.ranks, result.epochs, result.certificate) == ([], [], None)


def test_junk_usage_fails_its_run(attack: Attack) -> None:
    junk = ["{}", "[" * 500_000, '{"name": "node-1", "ranks": [true]}', "\x00", "x" * 2**21]
    for result in attack.results(*(({"usage.jsonl": [text]}, "") for text in junk)):
        assert (result.status, "usage.jsonl" in str(result.cause)) == ("failed", True)


def test_too_much_output_ends_its_run_at_once_and_is_not_kept(attack: Attack) -> None:
    weights = f'truncate -s {LIMITS.weight_bytes + 1} "$1/weights.npy"'  # a sparse file
    trace = f'truncate -s {LIMITS.trace_bytes + 1} "$1/trace-1.bin"'
    starts = {f"rank-{rank}.jsonl": honest_lines(rank)[:1] for rank in (0, 1)}
    events = {"rank-1.jsonl": [raw("ready")] * (LIMITS.event_bytes // 50)}
    attacks: list[tuple[str, dict[str, Sequence[str]], str]] = [
        (f"node 1 {LIMITS.event_bytes} bytes", events, SLEEPS),
        ("node 1 one line", {"rank-1.jsonl": ["x" * 2**20]}, SLEEPS),
        ("node 0 weights", {}, weights),
        ("node 0 weights", starts, f"{weights}; {SLEEPS}"),
        ("node 1 trace", {}, trace),
        ("node 1 trace", starts, f"{trace}; {SLEEPS}"),
    ]
    began = time.monotonic()
    found = attack.results(*((files, then) for _, files, then in attacks))
    assert time.monotonic() - began < 4 * 12  # four sleep
    for (named, *_), result in zip(attacks, found, strict=True):
        paths = attack.paths.run(result.key)
        assert (result.status, str(result.cause)[:6]) == ("failed", named[:6])
        assert named[7:] in str(result.cause)
        assert not paths.weights.exists()
        assert not paths.trace(1).exists()
        assert paths.events.stat().st_size < 2 * LIMITS.event_bytes


def test_events_that_are_removed_at_once_are_named(attack: Attack) -> None:
    """Before the orchestrator has read any of them."""
    removals = ["rm $1/rank-1.jsonl", "mv $1/rank-1.jsonl $1/x", "rm -r $1/*"]
    for result in attack.results(*(({}, then) for then in removals)):
        assert (result.status, ".jsonl was removed" in str(result.cause)) == ("failed", True)
        assert "start" not in str(result.cause)
