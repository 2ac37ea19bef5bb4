"""Mistakes in the cluster time of a run: epochs, shares of ranks, foreign traces, and the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.commands import replay as command
from orchestrator.errors import InputError
from orchestrator.replay.run import ClusterTime, NoClusterTime, replay_run
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, write_atomic
from tests.support.timelines import assert_trace_event_format
from tests.support.traces import TraceBuilder, builders
from tests.unit.report_support import a_record, a_run
from trainer.core.trace import Kind, encode_trace, trace_path
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Choice, Cluster, DirectedLink, Link, SoftwareCost

LINK = Link(latency_s=0.001, bytes_per_s=1e6)
FREE = Link(latency_s=0.0, bytes_per_s=1e15)


def spec_of(strategy: Any = "all_reduce", nodes: int = 2, **fields: Any) -> RunSpec:
    return RunSpec.model_validate(
        {"strategy": strategy, "transport": "gloo", "nodes": nodes, "epochs": 2, **fields}
    )


RUN = spec_of()
CLUSTER = Cluster(node_speed=[1.0, 1.0], link=LINK, overhead_s=0.0)


def recorded(run: RunSpec = RUN) -> list[TraceBuilder]:
    """Two epochs of one step; rank r computes for r + 1 s, and a rank alone for 3 s."""
    ranks = builders(run.world_size, run.transport, run=run.key)
    for rank, trace in enumerate(ranks):
        for epoch in (1, 2):
            trace.add(Kind.EPOCH, peer=epoch).work(rank + 1.0 if len(ranks) > 1 else 3.0 + run.seed / 100)
            trace.add(Kind.ALL_REDUCE, 1000).add(Kind.STEP)
    return ranks


def save(directory: Path, ranks: list[TraceBuilder], **header: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for rank, trace in enumerate(ranks):
        trace_path(directory, rank).write_bytes(encode_trace(trace.trace(**header)))


def time_of(directory: Path, ranks: list[TraceBuilder], run: RunSpec = RUN, **fields: Any) -> ClusterTime:
    save(directory, ranks)
    time = replay_run(directory, run, CLUSTER.model_copy(update=fields))
    assert isinstance(time, ClusterTime)
    return time


def test_algorithms_are_known_and_cover_every_size_and_nodes_are_those_of_the_run(tmp_path: Path) -> None:
    save(tmp_path, recorded())
    wrong, small = Choice(algorithm="rings"), Choice(algorithm="ring", below_bytes=10)
    for changes, message in (
        ({"algorithms": {"all_reduce": [wrong]}}, r"all_reduce.*'rings'.*did you mean 'ring'.*known: "),
        ({"algorithms": {"all_reduce": [small]}}, "below_bytes 10"),
        ({"node_speed": [1.0] * 3}, r"3 nodes with 1 ranks each; .* needs 2 with 1"),
    ):
        with pytest.raises(InputError, match=message):
            replay_run(tmp_path, RUN, CLUSTER.model_copy(update=changes))


def test_a_run_is_replayed_from_its_directory(tmp_path: Path) -> None:
    time = time_of(tmp_path, recorded())
    ring = 2 * (0.002 + 0.0005)
    assert time.cluster_s == pytest.approx(2 * (2 + ring))
    assert time.epoch_ends_s == pytest.approx([2 + ring, 2 * (2 + ring)])
    # Rank 0 leaves the first all-reduce a latency before rank 1, whose last message is on its way.
    assert time.ranks[0].wait_s_by_rank == pytest.approx([0.0, 2.001])
    assert (time.mean("work"), time.mean("wait")) == (pytest.approx(3.0), pytest.approx(2.001 / 2))
    assert (time.run, time.bubble, time.records) == (RUN.key, None, 16)
    assert [rank.idle_s for rank in time.ranks] == pytest.approx([0.001, 0.0])
    for rank in time.ranks:
        parts = sum(rank.work_s.values()) + rank.communicate_s + rank.wait_s + rank.idle_s
        assert parts == pytest.approx(time.cluster_s)


def test_a_pipeline_has_a_bubble(tmp_path: Path) -> None:
    run = spec_of({"name": "pipeline", "micro_batches": 2})
    first, second = ranks = builders(2, "gloo", run=run.key)
    for _ in range(2):
        first.work(1.0).add(Kind.SEND, 4, 1)
        second.add(Kind.RECEIVE, 4, 0).work(1.0)
    # Rank 1 waits for a second, and rank 0 is idle for one.
    assert time_of(tmp_path, ranks, run, link=FREE).bubble == pytest.approx(1 / 3)


def reason_of(directory: Path, run: RunSpec = RUN) -> str:
    found = replay_run(directory, run, CLUSTER)
    assert isinstance(found, NoClusterTime)
    return found.reason


def test_a_trace_that_does_not_belong_to_the_run_is_named(tmp_path: Path) -> None:
    for header, message in (
        ({"run": "another"}, "has run another, not "),
        ({"rank": 1}, "has rank 1, not 0"),
        ({"size": 3}, "has number of ranks 3, not 2"),
        ({"transport": "mpi"}, "has transport mpi, not gloo"),
        ({"complete": False}, "ends before the end of training, after 8 records"),
    ):
        save(tmp_path, recorded(), **header)
        assert reason_of(tmp_path).startswith(f"{trace_path(tmp_path, 0)}: {message}")


def test_runs_without_traces_and_traces_that_are_damaged_or_do_not_fit_say_why(tmp_path: Path) -> None:
    assert reason_of(tmp_path) == "the run recorded no traces"
    for run, message in (
        (spec_of("hogwild", transport="memory"), "share memory"),
        (spec_of(threads=2), "several threads"),
        (spec_of("ddp", transport="nccl"), "GPU"),
        (spec_of(trace="none"), "trace is none"),
    ):
        assert message in reason_of(tmp_path, run)
    ranks = recorded()
    ranks[1].add(Kind.BARRIER)
    save(tmp_path, ranks)
    assert "rank 1, record 8 (barrier)" in reason_of(tmp_path)
    trace_path(tmp_path, 0).write_bytes(b"no trace")
    assert "trace-0.bin" in reason_of(tmp_path)
    trace_path(tmp_path, 0).unlink()
    assert "trace-0.bin" in reason_of(tmp_path)


def replay(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["replay", *map(str, arguments)])


TRACED, UNTRACED = a_run("all_reduce", nodes=2, transport="gloo"), a_run("serial")


def results_directory(directory: Path, *traced: RunResult, others: Sequence[RunResult] = ()) -> SweepPaths:
    paths = SweepPaths(directory)
    for result in (*traced, *others):
        write_atomic(paths.run(result.key).result, result.model_dump_json())
    for result in traced:
        save(paths.run(result.key).directory, recorded(result.run))
    write_atomic(paths.record, a_record((*traced, *others)).model_dump_json())
    return paths


def test_the_command_prints_a_table_or_json_and_writes_timelines(tmp_path: Path) -> None:
    paths = results_directory(tmp_path, TRACED, others=[UNTRACED])
    *lines, last = replay(tmp_path, "--timeline").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    [line] = [line for line in lines if line.startswith("all_reduce-gloo")]
    # Wall time, cluster time, then shares: work of 2 and 4 s, waiting of one rank for 2 s.
    assert line.split()[1:] == ["8.00", "s", "4.00", "s", "75.0%", "0.0%", "25.0%", "–"]
    assert last == f"{UNTRACED.key}: no cluster time: the run recorded no traces"
    assert_trace_event_format(json.loads(paths.run(TRACED.key).timeline.read_text()))
    done = replay(tmp_path, "--json", "--link", "1gbit/0us", "--node-speed", "1,0.5")
    replayed, missing = json.loads(done.stdout)
    assert replayed["cluster"]["node_speed"] == [1.0, 0.5]
    assert replayed["cluster"]["link"] == {"latency_s": 0.0, "bytes_per_s": 1.25e8}
    assert 8 < replayed["cluster_s"] < 8.01
    assert missing["reason"] == "the run recorded no traces"


def test_bad_input_is_an_error_that_names_it(tmp_path: Path) -> None:
    results_directory(tmp_path, TRACED)
    wrong = {"--link": ("fast", "0mbit/1ms", "1.2.3mbit/1ms"), "--node-speed": ("1,0", "nan", "")}
    for option, value in [(option, value) for option, values in wrong.items() for value in values]:
        error = replay(tmp_path, option, value).exception
        assert isinstance(error, InputError)
        assert str(error).startswith(f"{option} {value}: ")
    assert "no run has more than 2 nodes" in str(replay(tmp_path, "--node-speed", "1,1,1").exception)
    assert "no sweep.json" in str(replay(tmp_path / "empty").exception)


def test_the_command_changes_links_and_keeps_the_costs_of_the_report() -> None:
    faster = DirectedLink(source=0, target=1, latency_s=0.0, bytes_per_s=1e9)
    costs = {"software": {"barrier": [SoftwareCost(bytes=0, seconds=0.5)]}, "overhead_s": 0.25}
    own = CLUSTER.model_copy(update={"links": [faster], **costs})
    for bytes_per_s, expected in ((LINK.bytes_per_s / 2,) * 2, (1e15, LINK.bytes_per_s)):
        given = Link(latency_s=0.5, bytes_per_s=bytes_per_s)
        changed = {"link": given.model_copy(update={"bytes_per_s": expected}), **costs}
        assert command.Options(given).cluster(own, RUN) == CLUSTER.model_copy(update=changed)


def test_the_command_ends_with_what_to_choose_on_the_cluster(tmp_path: Path) -> None:
    """One rank works for 6 s, two for 2 and 4 s with two exchanges of 1 kB."""
    own = {"serial": {}, "all_reduce": {"nodes": 2, "transport": "gloo"}}
    runs = [a_run(name, seed=seed, **fields) for seed in range(5) for name, fields in own.items()]
    results_directory(tmp_path, *runs)
    for link, choice in (("1gbit/0.1ms", "choose all_reduce on 2"), ("1bit/1s", "stay with serial")):
        lines = replay(tmp_path, "--link", link).stdout.splitlines()
        [conclusion] = [line for line in lines if line.startswith(f"With links of {link}: ")]
        assert choice in conclusion.lower()
