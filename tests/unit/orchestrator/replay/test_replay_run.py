"""Mistakes in the cluster time of a run: epochs, shares of ranks, foreign traces, and the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator import cli
from orchestrator.commands import replay as command
from orchestrator.errors import InputError
from orchestrator.replay.run import (
    VERSION,
    ClusterTime,
    NoClusterTime,
    read_cluster_time,
    replay_run,
    write_cluster_time,
)
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths, UnusableFile, write_atomic
from tests.support.timelines import assert_trace_event_format
from tests.support.traces import TraceBuilder, builders
from tests.unit.report_support import a_run
from trainer.core.trace import Kind, encode_trace, trace_path
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Choice, Cluster, DirectedLink, Link, SoftwareCost

LINK = Link(latency_s=0.001, bytes_per_s=1e6)


def spec_of(strategy: Any = "all_reduce", nodes: int = 2, **fields: Any) -> RunSpec:
    return RunSpec.model_validate(
        {"strategy": strategy, "transport": "gloo", "nodes": nodes, "epochs": 2, **fields}
    )


def a_cluster(run: RunSpec, **fields: Any) -> Cluster:
    return Cluster(
        node_speed=run.node_speeds, processes_per_node=run.processes_per_node, link=LINK
    ).model_copy(update=fields)


def recorded(run: RunSpec) -> list[TraceBuilder]:
    """Two epochs of one step; rank r computes for r + 1 s."""
    ranks = builders(run.world_size, run.transport, run=run.key)
    for rank, trace in enumerate(ranks):
        for epoch in (1, 2):
            trace.add(Kind.EPOCH, peer=epoch).work(rank + 1.0).add(Kind.ALL_REDUCE, 1000).add(Kind.STEP)
    return ranks


def save(directory: Path, ranks: list[TraceBuilder], **header: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for rank, trace in enumerate(ranks):
        trace_path(directory, rank).write_bytes(encode_trace(trace.trace(**header)))


# Cluster descriptions


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"node_speed": []}, "node_speed"),
        ({"node_speed": [1.0, 0.0]}, "node_speed.1"),
        ({"node_speed": [float("nan")]}, "node_speed.0"),
        ({"node_speed": ["1"]}, "node_speed.0"),
        ({"link": {"latency_s": 0.0, "bytes_per_s": 0.0}}, "link.bytes_per_s"),
        ({"link": {"latency_s": -1.0, "bytes_per_s": 1.0}}, "link.latency_s"),
        ({"speed": 1.0}, "speed"),
        ({"links": [(0, 7)]}, "there is no node 7; nodes are 0 to 1"),
        ({"links": [(1, 1)]}, "node 1 has no link to itself"),
        ({"links": [(0, 1), (0, 1)]}, "two links from node 0 to node 1"),
        ({"algorithms": {"all_reduces": [{"algorithm": "ring"}]}}, "algorithms.all_reduces"),
    ],
)
def test_a_wrong_description_names_the_field(fields: dict[str, Any], message: str) -> None:
    pairs = fields.pop("links", [])
    links = [DirectedLink(source=a, target=b, latency_s=0.0, bytes_per_s=1.0) for a, b in pairs]
    with pytest.raises(ValidationError) as caught:
        Cluster.model_validate({"node_speed": [1.0, 1.0], "link": LINK, "links": links, **fields})
    error = caught.value.errors()[0]
    assert message in ".".join(map(str, error["loc"])) + error["msg"]


def test_algorithms_are_known_and_cover_every_size(tmp_path: Path) -> None:
    run = spec_of()
    save(tmp_path, recorded(run))
    for choice, message in (
        (Choice(algorithm="rings"), r"algorithms.all_reduce.*'rings'.*did you mean 'ring'.*known: "),
        (Choice(algorithm="ring", below_bytes=10), "below_bytes 10"),
    ):
        with pytest.raises(InputError, match=message):
            replay_run(tmp_path, run, a_cluster(run, algorithms={"all_reduce": [choice]}))
    with pytest.raises(InputError, match=r"3 nodes with 1 ranks each; .* needs 2 with 1"):
        replay_run(tmp_path, run, Cluster(node_speed=[1.0] * 3, link=LINK))


# Runs


def test_a_run_is_replayed_from_its_directory(tmp_path: Path) -> None:
    run = spec_of()
    save(tmp_path, recorded(run))
    time = replay_run(tmp_path, run, a_cluster(run, overhead_s=0.0))
    assert isinstance(time, ClusterTime)
    ring = 2 * (0.002 + 0.0005)
    assert time.cluster_s == pytest.approx(2 * (2 + ring))
    assert time.epoch_ends_s == pytest.approx([2 + ring, 2 * (2 + ring)])
    # Rank 0 leaves the first all-reduce a latency before rank 1, whose last message is on its way.
    assert time.ranks[0].wait_s_by_rank == pytest.approx([0.0, 2.001])
    assert time.mean("work") == pytest.approx(3.0)
    assert (time.run, time.bubble, time.records) == (run.key, None, 16)
    assert time.mean("wait") == pytest.approx(2.001 / 2)
    assert [rank.idle_s for rank in time.ranks] == pytest.approx([0.001, 0.0])
    for rank in time.ranks:
        parts = sum(rank.work_s.values()) + rank.communicate_s + rank.wait_s + rank.idle_s
        assert parts == pytest.approx(time.cluster_s)


def test_the_record_is_read_back(tmp_path: Path) -> None:
    run, paths = spec_of(), RunPaths(tmp_path)
    save(tmp_path, recorded(run))
    assert read_cluster_time(paths) is None
    time = replay_run(tmp_path, run, a_cluster(run))
    assert isinstance(time, ClusterTime)
    write_cluster_time(paths, time)
    assert read_cluster_time(paths) == time
    content = paths.cluster_time.read_text()
    paths.cluster_time.write_text(content.replace(f'"version": {VERSION}', '"version": 0'))
    assert read_cluster_time(paths) is None
    paths.cluster_time.write_text(content[:-20])
    with pytest.raises(UnusableFile):
        read_cluster_time(paths)


def test_a_pipeline_has_a_bubble(tmp_path: Path) -> None:
    run = spec_of({"name": "pipeline", "micro_batches": 2})
    ranks = builders(2, "gloo", run=run.key)
    for trace in ranks:
        trace.add(Kind.EPOCH, peer=1)
    for _ in range(2):
        ranks[0].work(1.0).add(Kind.SEND, 4, 1)
        ranks[1].add(Kind.RECEIVE, 4, 0).work(1.0)
    save(tmp_path, ranks)
    fast = Cluster(node_speed=[1.0] * 2, link=Link(latency_s=0.0, bytes_per_s=1e15), overhead_s=0.0)
    time = replay_run(tmp_path, run, fast)
    assert isinstance(time, ClusterTime)
    assert time.bubble == pytest.approx(1 / 3)  # rank 1 waits for a second, and rank 0 is idle for one


def reason_of(directory: Path, run: RunSpec) -> str:
    found = replay_run(directory, run, a_cluster(run))
    assert isinstance(found, NoClusterTime)
    return found.reason


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"run": "another"}, "has run another, not "),
        ({"rank": 1}, "has rank 1, not 0"),
        ({"size": 3}, "has number of ranks 3, not 2"),
        ({"transport": "mpi"}, "has transport mpi, not gloo"),
        ({"complete": False}, "ends before the end of training, after 8 records"),
    ],
)
def test_a_trace_that_does_not_belong_to_the_run_is_named(
    tmp_path: Path, header: dict[str, Any], message: str
) -> None:
    run = spec_of()
    save(tmp_path, recorded(run), **header)
    reason = reason_of(tmp_path, run)
    assert message in reason
    assert "trace-0.bin" in reason


def test_missing_and_damaged_traces_are_named_and_those_that_do_not_fit_together(tmp_path: Path) -> None:
    run = spec_of()
    assert reason_of(tmp_path, run) == "the run recorded no traces"
    ranks = recorded(run)
    ranks[1].add(Kind.BARRIER)
    save(tmp_path, ranks)
    assert "rank 1, record 8 (barrier)" in reason_of(tmp_path, run)
    trace_path(tmp_path, 0).write_bytes(b"no trace")
    assert "trace-0.bin" in reason_of(tmp_path, run)
    trace_path(tmp_path, 0).unlink()
    assert "trace-0.bin" in reason_of(tmp_path, run)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (spec_of("hogwild", transport="memory"), "share memory"),
        (spec_of(threads=2), "several threads"),
        (spec_of("ddp", transport="nccl"), "GPU"),
        (spec_of(trace="none"), "trace is none"),
    ],
)
def test_runs_whose_work_a_trace_cannot_show(tmp_path: Path, run: RunSpec, message: str) -> None:
    assert message in reason_of(tmp_path, run)


# The command


def results_directory(tmp_path: Path, *found: RunResult) -> SweepPaths:
    """Runs with traces; with none given, a run with traces and one without."""
    paths = SweepPaths(tmp_path)
    results = found or (a_run("all_reduce", nodes=2, transport="gloo"), a_run("serial"))
    for result in results:
        write_atomic(paths.run(result.key).result, result.model_dump_json())
        ranks = recorded(result.run)
        if result.run.world_size == 1:
            (rank,) = ranks = builders(1, result.run.transport, run=result.key)
            for epoch in (1, 2):
                rank.add(Kind.EPOCH, peer=epoch).work(3.0 + result.run.seed / 100).add(Kind.STEP)
        if found or len(ranks) > 1:
            save(paths.run(result.key).directory, ranks)
    record = {"name": "few", "description": "", "source": "", "overrides": [], "environment": {}}
    write_atomic(paths.record, json.dumps({**record, "keys": [result.key for result in results]}))
    return paths


def output_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["orchestrator", "replay", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def test_the_command_prints_a_table_of_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = results_directory(tmp_path)
    code, out, _ = output_of(monkeypatch, capsys, str(tmp_path), "--timeline")
    assert code == 0
    lines = out.splitlines()
    assert "cluster" in lines[0]
    assert max(len(line) for line in lines[:-1]) <= 80
    [line] = [line for line in lines if line.startswith("all_reduce-gloo")]
    # Wall time, cluster time, then shares: work of 2 and 4 s, waiting of one rank for 2 s.
    assert line.split()[1:] == ["8.00", "s", "4.00", "s", "75.0%", "0.0%", "25.0%", "–"]
    assert lines[-1].startswith("serial-")
    assert "recorded no traces" in lines[-1]
    [run] = [path for path in tmp_path.iterdir() if path.name.startswith("all_reduce")]
    assert_trace_event_format(json.loads(paths.run(run.name).timeline.read_text()))


def test_the_command_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results_directory(tmp_path)
    code, out, _ = output_of(
        monkeypatch, capsys, str(tmp_path), "--json", "--link", "1gbit/0us", "--node-speed", "1,0.5"
    )
    assert code == 0
    replayed, missing = json.loads(out)
    assert replayed["cluster"]["node_speed"] == [1.0, 0.5]
    assert replayed["cluster"]["link"] == {"latency_s": 0.0, "bytes_per_s": 1.25e8}
    assert 8 < replayed["cluster_s"] < 8.01
    assert missing["reason"] == "the run recorded no traces"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--link", "fast"], "--link fast"),
        (["--link", "0mbit/1ms"], "--link 0mbit/1ms"),
        (["--link", "1.2.3mbit/1ms"], "--link 1.2.3mbit/1ms"),
        (["--node-speed", "1,0"], "--node-speed 1,0"),
        (["--node-speed", "nan"], "--node-speed nan"),
        (["--node-speed", ""], "--node-speed"),
        (["--node-speed", "1,1,1"], "--node-speed"),  # more than the run needs
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    results_directory(tmp_path)
    code, _, err = output_of(monkeypatch, capsys, str(tmp_path), *arguments)
    assert code == 2
    assert err.startswith(f"error: {words}")
    assert err.count("\n") == 1


def test_the_command_changes_links_and_keeps_the_costs_of_the_report() -> None:
    run = spec_of()
    faster = DirectedLink(source=0, target=1, latency_s=0.0, bytes_per_s=1e9)
    software = {"barrier": [SoftwareCost(bytes=0, seconds=0.5)]}
    own = a_cluster(run, links=[faster], software=software, overhead_s=0.25)
    given = Link(latency_s=0.5, bytes_per_s=LINK.bytes_per_s / 2)
    found = command.Options(given).cluster(own, run)
    assert (found.link, found.links) == (given, [])
    assert (found.software, found.overhead_s) == (software, 0.25)
    without_limit = Link(latency_s=0.5, bytes_per_s=1e15)
    assert command.Options(without_limit).cluster(own, run).link.bytes_per_s == LINK.bytes_per_s


def test_a_directory_without_results_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = output_of(monkeypatch, capsys, str(tmp_path))
    assert code == 2
    assert "no sweep.json" in err


@pytest.mark.parametrize(
    ("link", "choice"), [("1gbit/0.1ms", "choose all_reduce on 2"), ("1bit/1s", "stay with serial")]
)
def test_the_command_ends_with_what_to_choose_on_the_cluster(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    link: str,
    choice: str,
) -> None:
    """One rank works for 6 s, two for 2 and 4 s with two exchanges of 1 kB."""
    runs = [
        run
        for seed in range(5)
        for run in (
            a_run("serial", seed=seed, accuracy=0.9),
            a_run("all_reduce", nodes=2, transport="gloo", seed=seed, accuracy=0.9),
        )
    ]
    results_directory(tmp_path, *runs)
    code, out, err = output_of(monkeypatch, capsys, str(tmp_path), "--link", link)
    assert code == 0, err
    [conclusion] = [line for line in out.splitlines() if line.startswith(f"With links of {link}: ")]
    assert choice in conclusion.lower()
