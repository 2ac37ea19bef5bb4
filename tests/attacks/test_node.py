"""Hostile ranks of local nodes write anything to their run's directory.

The promise of docs/security.md: invalid data from a node fails only the run in which the node sends it. The
orchestrator checks each event against a schema and against limits that follow from the run's spec; the row
names the node and the field, and the sweep goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths
from orchestrator.runtimes.launch_plan import LaunchPlan, Process
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.sweeps.load import Sweep, load_sweep
from tests.support.runs import RecordingDisplay
from tests.unit.conftest import event, rank_fields
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec

HOSTILE, HONEST = 1, 2  # seeds of the runs
EPOCH = {"epochs": 2, "train_s": 1.0, "loss": 0.5, "accuracy": 0.5, "test_loss": 0.5}
PARTITION = {"epoch": 1, "samples": 1, "labels": [1], "js_divergence": 0.0, "js_divergence_so_far": 0.0}


def honest_lines(rank: int, **changed: Any) -> list[str]:
    """What a rank that does not train writes."""
    now, fields = time.time(), rank_fields(samples=0, accuracy=None, **changed)
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("start", {"pid": 1}),
        ("train_start", {"parameters": 0}),
        ("train_end", {}),
        ("result", fields),
        ("done", {}),
    ]
    return [event(kind, rank, now, **fields).to_line() for kind, fields in kinds]


def raw(kind: str, rank: int = 1, /, **fields: Any) -> str:
    """A line that `Event` would not write."""
    head = {"version": 1, "time": 2e9, "run": "key", "rank": rank, "host": "h", "kind": kind}
    return json.dumps(head | fields)


class CopyingRuntime(LocalRuntime):
    """A local runtime with a single process, which copies files to where ranks write."""

    def __init__(self, files: Path, then: str = "") -> None:
        super().__init__(cold=True)
        self._files, self._then = files, then

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        script = f'cp -r "$0"/. "$1"; {self._then if spec.seed == HOSTILE else ""}'
        argv = ["sh", "-c", script, str(self._files / str(spec.seed)), str(paths.directory / "live")]
        return LaunchPlan(spec, paths, data_dir, processes=[Process("nodes", argv, {}, "node-0")])


class Attack:
    """A sweep of a hostile run and an honest one, each on two nodes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        file = directory / "s.yml"
        base = {"strategy": "fault_injection", "transport": "gloo", "nodes": 2}
        blocks = [{"base": {**base, "timeout_s": 20, "seed": seed}} for seed in (HOSTILE, HONEST)]
        file.write_text(json.dumps({"name": "s", "blocks": blocks}))
        self.sweep: Sweep = load_sweep(file)
        self.paths = SweepPaths(directory / "out")
        for seed in (HOSTILE, HONEST):
            for rank in (0, 1):
                self.write(f"rank-{rank}.jsonl", *honest_lines(rank), seed=seed)

    def write(self, name: str, *lines: str, seed: int = HOSTILE) -> Path:
        path = self.directory / "files" / str(seed) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def result(self, then: str = "") -> RunResult:
        """The row of the hostile run, after the sweep."""
        runtime = CopyingRuntime(self.directory / "files", then)
        runner = SweepRunner(Clusters(runtime), "local", self.paths, self.directory, RecordingDisplay())
        hostile, honest = runner.results(self.sweep)
        assert (honest.status, honest.cause) == ("ok", None)
        return hostile


@pytest.fixture
def attack(tmp_path: Path) -> Attack:
    return Attack(tmp_path)


def test_honest_run_is_ok(attack: Attack) -> None:
    assert attack.result().status == "ok"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (raw("start"), "event start: pid"),
        (raw("epoch", epoch=1, epochs=1), "event epoch: train_s"),
        (raw("result", steps=1), "event result: samples"),
        (raw("result", **rank_fields(dropped_choices=1)), "event result: dropped_choices"),
        (raw("start", pid=1, more=2), "event start: more"),
        (raw("start", pid=1, attempt=1), "event start: attempt"),
        (raw("done", 7), "event done: rank"),
        (raw("done", True), "event: rank"),
        (raw("step", loss=float("nan")), "NaN"),
        ("[" * 8000, "event: n"),
        ("[" * 500_000, "one line"),
        (raw("odd\x1b[2J"), "event: kind"),
        ("\x1b[2Jnot JSON", "not JSON"),
    ],
)
def test_invalid_event_fails_its_run(attack: Attack, line: str, named: str) -> None:
    attack.write("rank-1.jsonl", *honest_lines(1), line)
    result = attack.result()
    assert (result.status, str(result.cause).startswith("node 1")) == ("failed", True)
    assert named in str(result.cause)
    assert "\x1b" not in str(result.cause)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([event("result", 1, **rank_fields()).to_line()], "result"),
        (honest_lines(1, bytes_to=[1, 2, 3])[3:], "bytes_to"),
        (honest_lines(1, wait_s_by_rank=[])[3:], "wait_s_by_rank"),
        ([raw("partition", **PARTITION, digest="0")], "labels"),
        ([raw("checkpoint_skipped", epoch=10**9, step=1, cause="x")], "epoch"),
        ([raw("epoch", epoch=2, **EPOCH)], "epoch"),
    ],
)
def test_event_that_contradicts_the_spec_fails_its_run(
    attack: Attack, lines: list[str], named: str
) -> None:
    repeats_result = named == "result"
    attack.write("rank-1.jsonl", *honest_lines(1)[: 5 if repeats_result or len(lines) == 1 else 3], *lines)
    result = attack.result()
    assert (result.status, str(result.cause).startswith("node 1")) == ("failed", True)
    assert named in str(result.cause)
    assert (result.ranks, result.epochs, result.certificate) == ([], [], None)


@pytest.mark.parametrize(
    "text", ["{}", "[" * 500_000, '{"name": "node-1", "ranks": [true]}', "\x00", "x" * 2**21]
)
def test_junk_usage_fails_its_run(attack: Attack, text: str) -> None:
    attack.write("usage.jsonl", text)
    result = attack.result()
    assert result.status == "failed"
    assert "usage.jsonl" in str(result.cause)


def test_too_many_events_end_the_run_at_once(attack: Attack) -> None:
    limit = OutputLimits.of(attack.sweep.runs[0]).event_bytes
    lines = [raw("ready")] * (limit // 50)
    attack.write("rank-1.jsonl", *lines)
    began = time.monotonic()
    result = attack.result("sleep 15")
    assert time.monotonic() - began < 12
    assert (result.status, str(result.cause).startswith("node 1")) == ("failed", True)
    assert f"{limit} bytes" in str(result.cause)
    assert attack.paths.run(result.key).events.stat().st_size < 2 * limit


def test_endless_line_ends_the_run_at_once(attack: Attack) -> None:
    attack.write("rank-1.jsonl").write_text("x" * 2**20)
    began = time.monotonic()
    result = attack.result("sleep 15")
    assert time.monotonic() - began < 12
    assert (result.status, str(result.cause).startswith("node 1")) == ("failed", True)


@pytest.mark.parametrize("then", ["", "sleep 15"], ids=["ends", "runs"])
def test_too_large_weights_are_not_kept(attack: Attack, then: str) -> None:
    run = attack.sweep.runs[0]
    most = OutputLimits.of(run).weight_bytes
    attack.write("rank-1.jsonl", *honest_lines(1)[: None if not then else 1])
    began = time.monotonic()
    result = attack.result(f'truncate -s {most + 1} "$1/weights.npy"; {then}')  # a sparse file
    assert time.monotonic() - began < 12
    assert (result.status, str(result.cause).startswith("node 0")) == ("failed", True)
    assert "weights" in str(result.cause)
    assert not attack.paths.run(result.key).weights.exists()


@pytest.mark.parametrize("then", ["", "sleep 15"], ids=["ends", "runs"])
def test_too_large_traces_are_not_kept(attack: Attack, then: str) -> None:
    run = attack.sweep.runs[0]
    most = OutputLimits.of(run).trace_bytes
    attack.write("rank-0.jsonl", *honest_lines(0)[: None if not then else 1])
    began = time.monotonic()
    result = attack.result(f'truncate -s {most + 1} "$1/trace-1.bin"; {then}')  # a sparse file
    assert time.monotonic() - began < 12
    assert (result.status, str(result.cause).startswith("node 1")) == ("failed", True)
    assert "trace" in str(result.cause)
    assert not attack.paths.run(result.key).trace(1).exists()


@pytest.mark.parametrize("then", ["rm $1/rank-1.jsonl", "mv $1/rank-1.jsonl $1/x", "rm -r $1/*"])
def test_events_that_are_removed_at_once_are_named(attack: Attack, then: str) -> None:
    """Before the orchestrator has read any of them."""
    result = attack.result(then)
    assert result.status == "failed"
    assert ".jsonl was removed" in str(result.cause)
    assert "start" not in str(result.cause)
