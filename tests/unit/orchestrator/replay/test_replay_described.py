"""Mistakes in the cluster of a run: units of links, quotas, which probes and runs count, stored times."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from orchestrator.replay.described import (
    UNKNOWN,
    Software,
    cluster_times,
    described,
    has_cores,
    software_of,
)
from orchestrator.replay.run import ClusterTime
from orchestrator.results.records import LinkResult, RunResult
from orchestrator.results.store import SweepPaths
from tests.support.traces import builders
from tests.unit.report_support import a_run
from trainer.core.trace import Kind, encode_trace, trace_path
from trainer.time_model.cluster import Cluster, Link

GLOO = Software(message_s=100e-6, bytes_per_s=2e9)


def cluster(nodes: int = 3, runtime: str = "local", strategy: str = "ddp", **fields: Any) -> Cluster:
    """Of a run over gloo; serial has the transport memory."""
    result = a_run(strategy, nodes=nodes, runtime=runtime, **fields)
    return described(result, {("local", "gloo"): GLOO, ("docker", "gloo"): GLOO})


def probed(*links: tuple[float, float], runtime: str = "local", **fields: Any) -> RunResult:
    """A run with the results of its probe: latencies and bandwidths."""
    measured = [
        LinkResult(source=0, to=1, latency_s=latency_s, bytes_per_s=bytes_per_s)
        for latency_s, bytes_per_s in links
    ]
    run = a_run("ddp", nodes=2, runtime=runtime, **fields)
    return run.model_copy(update={"links": measured})


def test_links_are_those_of_the_run_and_a_message_costs_its_software() -> None:
    plain = cluster()
    assert plain.link == Link(latency_s=0.0, bytes_per_s=GLOO.bytes_per_s)
    assert plain.overhead_s == pytest.approx(GLOO.message_s / 2)  # at the sender and at the receiver
    unknown = cluster(nodes=1, strategy="serial", link={"latency_ms": 5})
    assert unknown.link == Link(latency_s=0.0, bytes_per_s=UNKNOWN.bytes_per_s)
    equal = cluster(link={"bandwidth_mbit": 80, "latency_ms": 5})
    assert (equal.link, equal.links) == (Link(latency_s=0.005, bytes_per_s=10e6), [])
    assert cluster(link={"latency_ms": 5}).link.bytes_per_s == GLOO.bytes_per_s
    differing = cluster(link={"default": {"bandwidth_mbit": 80}, "pairs": {"1>0": {"latency_ms": 9}}})
    between = differing.links_of(range(3)).between
    assert len(differing.links) == 6
    assert [between(1, 0).latency_s, between(0, 1).latency_s] == [0.009, 0.0]
    assert {between(*pair).bytes_per_s for pair in permutations(range(3), 2)} == {10e6}


def test_quotas_slow_nodes_down_where_they_are_enforced() -> None:
    assert cluster(cpus=0.5, runtime="local").node_speed == [1.0] * 3
    for fields, speeds in (
        ({"cpus": 0.5}, [0.5] * 3),
        ({"cpus": 4}, [1.0] * 3),
        ({"cpus": 0.5, "node_speed": [1, 1, 0.5]}, [0.5, 0.5, 0.25]),
        ({"cpus": 1, "processes_per_node": 2}, [0.5] * 3),
    ):
        assert cluster(runtime="docker", **fields).node_speed == speeds


def test_the_fastest_probe_counts_unless_links_were_shaped() -> None:
    """Other load makes probes slower, and never faster."""
    link = {"bandwidth_mbit": 10}
    found = software_of([probed((3e-4, 1e9), (1e-4, 5e8)), probed((9e-4, 2e9), seed=1)])
    assert found == {("local", "gloo"): Software(1e-4, 2e9)}
    assert software_of([probed((0.1, 1e6), runtime="docker", link=link)]) == {}
    # Local nodes have no shaped links.
    assert software_of([probed((1e-4, 1e9), link=link)]) == {("local", "gloo"): Software(1e-4, 1e9)}


def exchanging(paths: SweepPaths, seconds: float, **fields: Any) -> RunResult:
    """A run over gloo whose traces are stored, with a barrier that took so long."""
    result = a_run("all_reduce", transport="gloo", **fields)
    directory = paths.run(result.key).directory
    directory.mkdir(parents=True)
    for number, rank in enumerate(builders(result.run.world_size, run=result.key)):
        rank.add(Kind.EPOCH, peer=1).add(Kind.EPOCH, peer=2).timed(Kind.BARRIER, 0.0, seconds)
        trace_path(directory, number).write_bytes(encode_trace(rank.trace()))
    return result


def beside_load(result: RunResult) -> RunResult:
    """The run with a second in which its last rank had no core."""
    *others, last = result.ranks
    loaded = last.model_copy(update={"seconds": last.seconds | {"cpu_contention": 1.0}})
    return result.model_copy(update={"ranks": [*others, loaded]})


def taken(paths: SweepPaths, *results: RunResult) -> list[float]:
    """The cluster time of each run."""
    times = cluster_times(paths, [(each.key, each) for each in results])
    return [time.cluster_s for time in times.values() if isinstance(time, ClusterTime)]


def test_runs_with_a_core_for_each_rank_calibrate_all_others(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    results = [exchanging(paths, 1.0 + 2 * seed, nodes=2, seed=seed) for seed in range(3)]
    results += [exchanging(paths, 7.0, nodes=4, cores=2), exchanging(paths, 9.0, nodes=2, cores=1, lr=0.5)]
    assert [has_cores(each) for each in results] == [True, True, True, False, False]
    # The fastest of the others' barriers; a run's own does not count.
    assert taken(paths, *results) == pytest.approx([3.0, 1.0, 1.0, 1.0, 1.0], abs=0.01)
    # A link that was not made is no part of what a run took.
    linked = exchanging(paths, 0.2, nodes=2, seed=9, link={"latency_ms": 500})
    assert taken(paths, linked, results[0]) == pytest.approx([0.5 + 1.0, 0.2], abs=0.01)


def test_a_stored_time_is_read_unless_it_is_of_another_cluster_or_run(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    first, second = (exchanging(paths, each, nodes=2, seed=seed) for seed, each in ((0, 1.0), (1, 2.0)))
    before = taken(paths, first, second)
    stored = paths.run(first.key).cluster_time
    content = stored.read_text()
    changed = re.sub(r'"cluster_s": [0-9.]+', '"cluster_s": 77', content)
    for text, expected in (
        (changed, 77.0),
        (changed.replace('"processes_per_node": 1', '"processes_per_node": 2'), before[0]),
        (changed.replace(first.key, second.key), before[0]),
        (changed[:-20], before[0]),
    ):
        stored.write_text(text)
        assert taken(paths, first, second)[0] == pytest.approx(expected)


def test_calibrating_runs_have_full_speed_and_the_cores_that_they_need() -> None:
    fields: dict[str, Any] = {"nodes": 2, "cores": 2}
    whole = a_run("all_reduce", **fields)
    assert has_cores(whole)
    info = replace(whole.runtime_info, simulates_time=True)  # says nothing about real exchanges
    for other in (
        a_run("serial", cores=2),
        whole.model_copy(update={"runtime_info": info}),
        a_run("all_reduce", node_speed=[1, 0.5], **fields),
        a_run("all_reduce", cpus=0.5, runtime="docker", **fields),
        beside_load(a_run("all_reduce", train_s=8.0, **fields)),
    ):
        assert not has_cores(other)
    assert has_cores(beside_load(a_run("all_reduce", train_s=50.0, **fields)))  # 2 % of its time


def test_loaded_runs_calibrate_where_there_are_no_others(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    loaded = [beside_load(exchanging(paths, 2.0, nodes=2, seed=seed)) for seed in (0, 1)]
    assert taken(paths, *loaded) == pytest.approx([2.0, 2.0], abs=0.01)
    quiet = [exchanging(paths, 1.0, nodes=2, seed=seed) for seed in (2, 3)]
    assert taken(paths, *loaded, *quiet) == pytest.approx(4 * [1.0], abs=0.01)
