"""Attacks by local ranks, which write anything where their run does: other runs, limits, wrong names."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def honest(rank: int, **changed: Any) -> list[str]:
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


Files = dict[str, Sequence[str]]
Attack = tuple[str, Files, str]  # what the row names, files in place of honest ones, what is done then


def attacked(directory: Path, *attacks: Attack) -> tuple[SweepPaths, list[RunResult]]:
    """The rows of hostile runs, which an honest one follows, each on two nodes."""
    sweep_file, files, out = directory / "s.yml", directory / "files", SweepPaths(directory / "out")
    runs = [*attacks, ("", {}, "")]
    blocks = [{"base": {**BASE, "seed": seed}} for seed in range(len(runs))]
    sweep_file.write_text(json.dumps({"name": "s", "blocks": blocks}))
    for seed, (_, changed, _) in enumerate(runs):
        (files / str(seed)).mkdir(parents=True)
        for name, lines in {"rank-0.jsonl": honest(0), "rank-1.jsonl": honest(1), **changed}.items():
            (files / str(seed) / name).write_text("".join(f"{line}\n" for line in lines))
    clusters = Clusters(CopyingRuntime(files, [then for *_, then in runs]))
    runner = SweepRunner(clusters, "local", out, directory, RecordingDisplay())
    code = SimpleNamespace(code=True, copy_to=lambda directory, runs: directory.mkdir())
    sweep = replace(load_sweep(sweep_file), imports=code)  # type: ignore[arg-type]
    out.directory.mkdir()
    runner.prepare(sweep)
    *hostile, last = runner.results(sweep)
    assert (last.status, last.cause) == ("ok", None)
    return out, hostile


def added(named: str, line: str) -> Attack:
    return f"node 1|{named}", {"rank-1.jsonl": [*honest(1), line]}, ""


WEIGHTS = f'truncate -s {LIMITS.weight_bytes + 1} "$1/weights.npy"'  # a sparse file
TRACE = f'truncate -s {LIMITS.trace_bytes + 1} "$1/trace-1.bin"'
STARTS: Files = {f"rank-{rank}.jsonl": honest(rank)[:1] for rank in (0, 1)}
EVENTS: Files = {"rank-1.jsonl": [raw("ready")] * (LIMITS.event_bytes // 50)}
CONTRADICTING: list[Attack] = [
    added("result", event("result", 1, **rank_fields()).to_line()),
    added("labels", raw("partition", **PARTITION, digest="0")),
    added("epoch", raw("checkpoint_skipped", epoch=10**9, step=1, cause="x")),
    added("epoch", raw("epoch", epoch=2, **EPOCH)),
    ("node 1|bytes_to", {"rank-1.jsonl": honest(1, bytes_to=[1, 2, 3])}, ""),
    ("node 1|wait_s_by_rank", {"rank-1.jsonl": honest(1, wait_s_by_rank=[])}, ""),
]
ATTACKS: list[Attack] = [
    *CONTRADICTING,
    added("event start: pid", raw("start")),
    added("event start: attempt", raw("start", pid=1, attempt=1)),
    added("event done: rank", raw("done", 7)),
    added("NaN", raw("step", loss=float("nan"))),
    added("event: n", "[" * 8000),
    added("one line", "[" * 500_000),
    added("event: kind", raw("odd\x1b[2J")),
    *(("|usage.jsonl", {"usage.jsonl": [text]}, "") for text in ("{}", "[" * 500_000, "\0", "x" * 2**21)),
    (f"node 1|{LIMITS.event_bytes} bytes", EVENTS, SLEEPS),
    ("node 1|one line", {"rank-1.jsonl": ["x" * 2**20]}, SLEEPS),
    ("node 0|weights", {}, WEIGHTS),
    ("node 0|weights", STARTS, f"{WEIGHTS}; {SLEEPS}"),
    ("node 1|trace", {}, TRACE),
    ("node 1|trace", STARTS, f"{TRACE}; {SLEEPS}"),
    # Before the orchestrator has read any event.
    ("|.jsonl was removed", {}, "rm $1/rank-1.jsonl"),
    ("|.jsonl was removed", {}, "mv $1/rank-1.jsonl $1/x"),
    ("|.jsonl was removed", {}, "rm -r $1/*"),
]


def test_a_hostile_node_fails_its_run_at_once_and_no_other(tmp_path: Path) -> None:
    began = time.monotonic()
    out, found = attacked(tmp_path, *ATTACKS)
    assert time.monotonic() - began < 4 * 12  # four sleep
    for attack, result in zip(ATTACKS, found, strict=True):
        node, _, named = attack[0].partition("|")
        cause, files = str(result.cause), out.run(result.key)
        assert (result.status, cause[: len(node)], cause.isprintable()) == ("failed", node, True)
        assert named in cause
        assert attack not in CONTRADICTING or (result.ranks, result.epochs) == ([], [])
        assert result.certificate is None
        assert not files.weights.exists()
        assert not files.trace(1).exists()
        assert files.events.stat().st_size < 2 * LIMITS.event_bytes


def test_directories_of_runs_and_of_copied_code_are_private(tmp_path: Path) -> None:
    out, _ = attacked(tmp_path)
    directories = [path for path in out.directory.iterdir() if path.is_dir()]
    assert len(directories) == 2
    assert {path.stat().st_mode & 0o777 for path in directories} == {0o700}
