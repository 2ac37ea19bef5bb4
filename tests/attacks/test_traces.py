"""Attacks with traces and measured links: a run without a cause, and other runs without a time."""

from __future__ import annotations

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
from trainer.core.trace import Trace
from trainer.spec.output_limits import OutputLimits
from trainer.time_model.cluster import Link

OPTIONS = replay.Options(Link(latency_s=1e-3, bytes_per_s=1e8))
Sweep = tuple[SweepPaths, list[RunResult]]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return traced_sweep(tmp_path)


def compared(paths: SweepPaths) -> Comparison:
    """What a report computes."""
    return with_timelines(paths, read_comparison(paths))


def record(at: int, **changed: float) -> Callable[[Trace], Trace]:
    return lambda trace: with_record(trace, at, **changed)


def header(**changed: Any) -> Callable[[Trace], Trace]:
    return lambda trace: Trace(trace.header.model_copy(update=changed), trace.records)


# Why there is no time, and what is done to the trace of rank 1.
DAMAGED = {
    "record 1: cpu_s is ": record(1, cpu_s=np.inf),
    "record 13: left_s is ": record(13, left_s=-1.0),
    "record 2: bytes is ": record(2, bytes=2.0**63),
    "record 0: peer is ": record(0, peer=2**31 - 1),
    "started_s": header(started_s=1e300),
    "group": header(groups=[[0, 1, 70_000]]),
    "run": header(run="another" * 1000),
    "number of ranks": header(size=3),
    "before the end": header(complete=False),
}


def test_what_no_rank_writes_is_the_cause_of_its_run_alone(tmp_path: Path) -> None:
    """In a report and in a replay: a trace, and last a link that no probe finds."""
    for named in (*DAMAGED, "links.0.bytes_per_s"):
        paths, (first, damaged, last) = traced_sweep(tmp_path / named.partition(":")[0])
        files = paths.run(damaged.key)
        if named in DAMAGED:
            write_trace(files.directory, DAMAGED[named](traces_of(damaged)[1]))
        else:
            content = files.result.read_text().replace('"bytes_per_s":1000000000.0', '"bytes_per_s":0.0')
            files.result.write_text(content)
        found = compared(paths)
        replayed = {row.key: row.time for row in replay.rows(paths, OPTIONS, timelines=True)}
        for times in ({**found.unusable, **found.clusters}, replayed):
            in_time = {key for key, time in times.items() if isinstance(time, ClusterTime)}
            assert in_time == {first.key, last.key}, named
            cause = getattr(times[damaged.key], "reason", times[damaged.key])
            assert named in cause
            assert len(cause) < 1000


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
