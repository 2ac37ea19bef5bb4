"""Attacks with traces and calibration data, from a rank or in a results directory.

The promise: invalid data from a node fails only the run in which the node sends it, and names the field. If
a file was damaged after its run, that run has no cluster time, with the cause, and all others are reported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from orchestrator.commands import replay
from orchestrator.replay.run import ClusterTime, NoClusterTime
from orchestrator.report.model.comparison import Comparison, read_comparison
from orchestrator.report.model.timelines import with_timelines
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths, untraced_ranks
from tests.support.traced_sweep import traced_sweep, traces_of, with_record, write_trace
from trainer.core.trace import Kind, Trace, encode_trace
from trainer.spec.output_limits import OutputLimits
from trainer.time_model.cluster import Link

OPTIONS = replay.Options(Link(latency_s=1e-3, bytes_per_s=1e8))
WORK, ALL_REDUCE, BARRIER = 1, 2, 13  # numbers of records of `traces_of`


def compared(paths: SweepPaths) -> Comparison:
    """What a report computes."""
    return with_timelines(paths, read_comparison(paths))


def reason(paths: SweepPaths, key: str) -> str:
    """Why one run has no cluster time, in a report and in a replay; all others have one."""
    found = compared(paths).clusters
    replayed = {row.key: row.time for row in replay.rows(paths, OPTIONS, timelines=True)}
    assert found.keys() == replayed.keys()
    for times in (found, replayed):
        assert {name for name, time in times.items() if isinstance(time, NoClusterTime)} == {key}
    time, again = found[key], replayed[key]
    assert isinstance(time, NoClusterTime)
    assert isinstance(again, NoClusterTime)
    assert time.reason == again.reason
    return time.reason


@pytest.fixture
def sweep(tmp_path: Path) -> tuple[SweepPaths, list[RunResult]]:
    return traced_sweep(tmp_path)


def header(trace: Trace, **changed: object) -> Trace:
    return Trace(trace.header.model_copy(update=changed), trace.records)


VALUES: list[tuple[int, str, float]] = [
    *product([WORK, ALL_REDUCE], ["cpu_s"], [1e16, 1e300, float("inf"), float("nan"), -1.0]),
    *product([WORK, BARRIER], ["left_s"], [1e16, float("inf"), float("nan"), -1.0]),
    *product([WORK, BARRIER], ["entered_s"], [-1e16, 1e16, float("-inf"), float("nan")]),
    *product([ALL_REDUCE, BARRIER], ["bytes"], [2.0**53, 2.0**63]),
    *product([0], ["peer"], [0, -1, 2**31 - 1]),
    *product([WORK], ["kind", "group"], [0, 99, 255]),
]


@pytest.mark.parametrize(("at", "field", "value"), [each for each in VALUES if each[1:] != ("group", 0)])
def test_a_record_that_no_rank_writes_is_the_cause_of_its_run_alone(
    sweep: tuple[SweepPaths, list[RunResult]], at: int, field: str, value: float
) -> None:
    paths, (_, damaged, _) = sweep
    files = paths.run(damaged.key)
    write_trace(files.directory, with_record(traces_of(damaged)[1], at, **{field: value}))
    assert f"record {at}: {field} is " in untraced_ranks(files, damaged.run)[1]
    cause = reason(paths, damaged.key)
    assert "trace-1.bin" in cause
    assert f"record {at}: {field} is " in cause


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"started_s": float("inf")}, "started_s"),
        ({"started_s": 1e300}, "started_s"),
        ({"groups": []}, "group"),
        ({"groups": [[]]}, "group"),
        ({"groups": [[0, 1, 70_000]]}, "group"),
        ({"groups": [[*range(20_000)]]}, "group"),
        ({"run": "another" * 1000}, "run"),
        ({"rank": 0}, "rank"),
        ({"size": 3}, "number of ranks"),
        ({"complete": False}, "before the end"),
    ],
)
def test_a_header_that_no_rank_writes_is_the_cause_of_its_run_alone(
    sweep: tuple[SweepPaths, list[RunResult]], changed: dict[str, object], named: str
) -> None:
    paths, (_, damaged, _) = sweep
    trace = header(traces_of(damaged)[1], **changed)
    (paths.run(damaged.key).directory / "trace-1.bin").write_bytes(encode_trace(trace))
    cause = reason(paths, damaged.key)
    assert named in cause
    assert len(cause) < 1000


def without_epochs(trace: Trace) -> Trace:
    kept = trace.records[trace.records["kind"] != Kind.EPOCH]
    return header(Trace(trace.header, kept), count=len(kept))


def test_traces_with_fewer_epochs_than_the_result(sweep: tuple[SweepPaths, list[RunResult]]) -> None:
    paths, (_, damaged, _) = sweep
    for trace in traces_of(damaged):
        write_trace(paths.run(damaged.key).directory, without_epochs(trace))
    found = compared(paths).clusters
    assert [isinstance(found[key], ClusterTime) for key in sorted(found)].count(False) == 1
    time = found[damaged.key]
    assert isinstance(time, NoClusterTime)
    assert "0 epochs" in time.reason


def test_the_largest_values_that_pass_deny_no_report(sweep: tuple[SweepPaths, list[RunResult]]) -> None:
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
    found = compared(paths)
    assert all(isinstance(time, ClusterTime) for time in found.clusters.values())
    assert all(isinstance(row.time, ClusterTime) for row in replay.rows(paths, OPTIONS, timelines=True))


def test_a_cluster_of_any_speed_ends_with_a_time_or_a_cause(
    sweep: tuple[SweepPaths, list[RunResult]],
) -> None:
    paths, results = sweep
    slowest = replay.Options(Link(latency_s=1e6, bytes_per_s=1e-300), speeds=(1e-300,))
    rows = [*replay.rows(paths, slowest, timelines=True)]
    assert [row.key for row in rows] == [each.key for each in results]
    assert all(isinstance(row.time, NoClusterTime) for row in rows)


# Calibration data


@pytest.mark.parametrize(
    ("field", "value"),
    [("bytes_per_s", 0.0), ("bytes_per_s", 1e300), ("latency_s", 1e300), ("latency_s", -1.0)],
)
def test_a_measured_link_that_no_probe_finds_is_the_cause_of_its_run_alone(
    sweep: tuple[SweepPaths, list[RunResult]], field: str, value: float
) -> None:
    paths, (first, damaged, last) = sweep
    files = paths.run(damaged.key)
    content = json.loads(files.result.read_text())
    content["links"][0][field] = value
    files.result.write_text(json.dumps(content))
    found = compared(paths)
    assert f"links.0.{field}" in found.unusable[damaged.key]
    assert {key for key, time in found.clusters.items() if isinstance(time, ClusterTime)} == {
        first.key,
        last.key,
    }
    rows = {row.key: row.time for row in replay.rows(paths, OPTIONS)}
    assert [key for key, time in rows.items() if isinstance(time, NoClusterTime)] == [damaged.key]


# Files that were stored beside the traces


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def fewer_ranks(path: Path) -> None:
    content = json.loads(path.read_text())
    for part in (content, content.get("wall", {}), content.get("replayed", {})):
        if "ranks" in part:
            part["ranks"] = []
    path.write_text(json.dumps(content))


def no_epochs(path: Path) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **({"epoch_ends_s": []} if "epoch_ends_s" in content else {})}))


@pytest.mark.parametrize("damage", [pipe, link, cut, fewer_ranks, no_epochs])
@pytest.mark.parametrize("name", ["cluster.json", "timeline.window.json"])
def test_a_damaged_stored_time_is_computed_again(
    sweep: tuple[SweepPaths, list[RunResult]], name: str, damage: Callable[[Path], None]
) -> None:
    paths, _ = sweep
    before = compared(paths)
    files = next(each for each in paths.directory.glob(f"*/{name}"))
    damage(files)
    after = compared(paths)
    assert (after.clusters, after.windows) == (before.clusters, before.windows)
    assert files.is_file()


@pytest.mark.parametrize("damage", [pipe, link, cut])
def test_a_damaged_trace_file_is_the_cause_of_its_run_alone(
    sweep: tuple[SweepPaths, list[RunResult]], damage: Callable[[Path], None]
) -> None:
    paths, (_, damaged, _) = sweep
    files = RunPaths(paths.run(damaged.key).directory)
    damage(files.trace(0))
    assert "trace-0.bin" in reason(paths, damaged.key)
