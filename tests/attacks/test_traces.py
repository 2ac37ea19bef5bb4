"""Attacks with traces and calibration data, from a rank or in a results directory.

The promise: invalid data from a node fails only the run in which the node sends it, and names the field. If
a file was damaged after its run, that run has no cluster time, with the cause, and all others are reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.commands import replay
from orchestrator.replay.run import ClusterTime, NoClusterTime
from orchestrator.report.model.comparison import Comparison, read_comparison
from orchestrator.report.model.timelines import with_timelines
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, untraced_ranks
from tests.support.traced_sweep import traced_sweep, traces_of, with_record, write_trace
from trainer.core.trace import Kind, Trace, encode_trace, read_trace
from trainer.spec.output_limits import OutputLimits
from trainer.time_model.cluster import Link

OPTIONS = replay.Options(Link(latency_s=1e-3, bytes_per_s=1e8))
Sweep = tuple[SweepPaths, list[RunResult]]
Damage = Callable[[Path], object]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return traced_sweep(tmp_path)


def compared(paths: SweepPaths) -> Comparison:
    """What a report computes."""
    return with_timelines(paths, read_comparison(paths))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def replaced(old: str, new: str) -> Damage:
    return lambda path: path.write_text(path.read_text().replace(old, new))


def record(at: int, **changed: float) -> Damage:
    return lambda path: path.write_bytes(encode_trace(with_record(read_trace(path), at, **changed)))


def header(**changed: Any) -> Damage:
    def write(path: Path) -> None:
        trace = read_trace(path)
        path.write_bytes(encode_trace(Trace(trace.header.model_copy(update=changed), trace.records)))

    return write


# Why there is no time, the file, and what is done to it.
DAMAGED: list[tuple[str, str, Damage]] = [
    ("record 1: cpu_s is ", "trace-1.bin", record(1, cpu_s=np.inf)),
    ("record 13: left_s is ", "trace-1.bin", record(13, left_s=-1.0)),
    ("record 2: bytes is ", "trace-1.bin", record(2, bytes=2.0**63)),
    ("record 0: peer is ", "trace-1.bin", record(0, peer=2**31 - 1)),
    ("started_s", "trace-1.bin", header(started_s=1e300)),
    ("group", "trace-1.bin", header(groups=[[0, 1, 70_000]])),
    ("run", "trace-1.bin", header(run="another" * 1000)),
    ("number of ranks", "trace-1.bin", header(size=3)),
    ("before the end", "trace-1.bin", header(complete=False)),
    ("trace-0.bin", "trace-0.bin", pipe),
    ("trace-0.bin", "trace-0.bin", link),
    ("trace-0.bin", "trace-0.bin", cut),
    ("links.0.bytes_per_s", "result.json", replaced('"bytes_per_s":1000000000.0', '"bytes_per_s":0.0')),
    ("links.0.latency_s", "result.json", replaced('"latency_s":0.0001', '"latency_s":-1.0')),
]


def test_what_no_rank_writes_is_the_cause_of_its_run_alone(tmp_path: Path) -> None:
    """In a report and in a replay."""
    for number, (named, name, damage) in enumerate(DAMAGED):
        paths, (first, damaged, last) = traced_sweep(tmp_path / str(number))
        damage(paths.run(damaged.key).directory / name)
        found = compared(paths)
        replayed = {row.key: row.time for row in replay.rows(paths, OPTIONS, timelines=True)}
        for times in ({**found.unusable, **found.clusters}, replayed):
            in_time = {key for key, time in times.items() if isinstance(time, ClusterTime)}
            assert in_time == {first.key, last.key}, named
            cause = getattr(times[damaged.key], "reason", times[damaged.key])
            assert named in cause
            assert len(cause) < 1000


def test_traces_with_fewer_epochs_than_the_result_give_its_report_no_time(sweep: Sweep) -> None:
    paths, (first, damaged, last) = sweep
    for trace in traces_of(damaged):
        kept = trace.records[trace.records["kind"] != Kind.EPOCH]
        head = trace.header.model_copy(update={"count": len(kept)})
        write_trace(paths.run(damaged.key).directory, Trace(head, kept))
    times = compared(paths).clusters
    assert {key for key, time in times.items() if isinstance(time, ClusterTime)} == {first.key, last.key}
    assert "0 epochs" in getattr(times[damaged.key], "reason", "")


def test_the_largest_values_that_pass_deny_no_report(sweep: Sweep) -> None:
    """They may cost the other runs accuracy, as other load on the machine does, but not their time."""
    paths, (_, damaged, _) = sweep
    limits = OutputLimits.of(damaged.run).trace
    for trace in traces_of(damaged):
        records = trace.records.copy()
        records["cpu_s"] = records["left_s"] = limits.seconds
        records["entered_s"] = -limits.seconds
        records["bytes"] = limits.bytes
        write_trace(paths.run(damaged.key).directory, Trace(trace.header, records))
    assert untraced_ranks(paths.run(damaged.key), damaged.run) == {}
    assert all(isinstance(time, ClusterTime) for time in compared(paths).clusters.values())
    assert all(isinstance(row.time, ClusterTime) for row in replay.rows(paths, OPTIONS, timelines=True))


def test_a_cluster_of_any_speed_ends_with_a_time_or_a_cause(sweep: Sweep) -> None:
    paths, results = sweep
    slowest = replay.Options(Link(latency_s=1e6, bytes_per_s=1e-300), speeds=(1e-300,))
    rows = {row.key: type(row.time) for row in replay.rows(paths, slowest, timelines=True)}
    assert rows == dict.fromkeys([each.key for each in results], NoClusterTime)
