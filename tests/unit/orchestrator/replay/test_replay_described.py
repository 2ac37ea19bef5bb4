"""The cluster that a run stands for: its nodes, its links, and the software that the probes measured."""

from __future__ import annotations

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
from trainer.time_model.cluster import Cluster

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


def test_without_links_a_message_costs_its_software() -> None:
    found = cluster()
    assert (found.link.latency_s, found.link.bytes_per_s) == (0.0, GLOO.bytes_per_s)
    assert found.overhead_s == pytest.approx(GLOO.message_s / 2)  # at the sender and at the receiver
    unknown = cluster(nodes=1, strategy="serial", link={"latency_ms": 5})
    assert (unknown.link.latency_s, unknown.link.bytes_per_s) == (0.0, UNKNOWN.bytes_per_s)


def test_equal_links() -> None:
    found = cluster(link={"bandwidth_mbit": 80, "latency_ms": 5})
    assert found.links == []
    assert (found.link.bytes_per_s, found.link.latency_s) == (10e6, 0.005)
    assert cluster(link={"latency_ms": 5}).link.bytes_per_s == GLOO.bytes_per_s


def test_links_that_differ() -> None:
    found = cluster(link={"default": {"bandwidth_mbit": 80}, "pairs": {"1>0": {"latency_ms": 9}}})
    assert len(found.links) == 6
    link = found.links_of(range(3)).between
    assert link(1, 0).latency_s == 0.009
    assert link(0, 1).latency_s == 0.0
    assert {link(*pair).bytes_per_s for pair in permutations(range(3), 2)} == {10e6}


def test_quotas_slow_nodes_down_where_they_are_enforced() -> None:
    assert cluster(cpus=0.5, runtime="docker").node_speed == [0.5] * 3
    assert cluster(cpus=0.5, runtime="local").node_speed == [1.0] * 3
    assert cluster(cpus=4, runtime="docker").node_speed == [1.0] * 3
    slower = cluster(cpus=0.5, runtime="docker", node_speed=[1, 1, 0.5])
    assert slower.node_speed == [0.5, 0.5, 0.25]
    assert cluster(cpus=1, runtime="docker", processes_per_node=2).node_speed == [0.5] * 3


def test_the_fastest_probe_of_a_transport_counts() -> None:
    """Other load makes probes slower, and never faster."""
    found = software_of([probed((3e-4, 1e9), (1e-4, 5e8)), probed((9e-4, 2e9), seed=1)])
    assert found == {("local", "gloo"): Software(1e-4, 2e9)}


def test_shaped_links_say_nothing_about_the_software() -> None:
    link = {"bandwidth_mbit": 10}
    assert software_of([probed((0.1, 1e6), runtime="docker", link=link)]) == {}
    # Local nodes have no shaped links.
    assert software_of([probed((1e-4, 1e9), link=link)]) == {("local", "gloo"): Software(1e-4, 1e9)}


def exchanging(paths: SweepPaths, seconds: float, **fields: Any) -> RunResult:
    """A run over gloo whose traces are stored, with a barrier that took so long."""
    result = a_run("all_reduce", transport="gloo", **fields)
    run = result.run
    directory = paths.run(run.key).directory
    directory.mkdir(parents=True)
    for rank in builders(run.world_size, run=run.key):
        for epoch in range(1, run.epochs + 1):
            rank.add(Kind.EPOCH, peer=epoch)
        trace = rank.timed(Kind.BARRIER, 0.0, seconds).trace()
        trace_path(directory, trace.header.rank).write_bytes(encode_trace(trace))
    return result


def test_runs_with_a_core_for_each_rank_calibrate_all_others(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    seconds = {0: 1.0, 1: 3.0, 2: 5.0}
    results = [exchanging(paths, each, nodes=2, seed=seed) for seed, each in seconds.items()]
    results += [exchanging(paths, 7.0, nodes=4, cores=2), exchanging(paths, 9.0, nodes=2, cores=1, lr=0.5)]
    assert [has_cores(each) for each in results] == [True, True, True, False, False]
    times = cluster_times(paths, [(each.key, each) for each in results])
    took = [time.cluster_s for time in times.values() if isinstance(time, ClusterTime)]
    # The fastest of the others' barriers; a run's own does not count.
    assert took == pytest.approx([3.0, 1.0, 1.0, 1.0, 1.0], abs=0.01)


def test_links_that_were_not_made_are_no_part_of_what_a_calibrating_run_took(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    linked = exchanging(paths, 3.0, nodes=2, link={"latency_ms": 500})
    plain = exchanging(paths, 1.0, nodes=2)
    times = cluster_times(paths, [(each.key, each) for each in (linked, plain)])
    took = [time.cluster_s for time in times.values() if isinstance(time, ClusterTime)]
    assert took == pytest.approx([0.5 + 1.0, 3.0], abs=0.01)


def test_calibrating_runs_have_full_speed_and_the_cores_that_they_need() -> None:
    fields: dict[str, Any] = {"nodes": 2, "cores": 2}
    assert has_cores(a_run("all_reduce", **fields))
    assert not has_cores(a_run("serial", cores=2))
    simulated = a_run("all_reduce", **fields)
    info = replace(simulated.runtime_info, simulates_time=True)  # says nothing about real exchanges
    assert not has_cores(simulated.model_copy(update={"runtime_info": info}))
    assert not has_cores(a_run("all_reduce", node_speed=[1, 0.5], **fields))
    assert not has_cores(a_run("all_reduce", cpus=0.5, runtime="docker", **fields))
    assert not has_cores(beside_load(a_run("all_reduce", train_s=8.0, **fields)))


def beside_load(result: RunResult) -> RunResult:
    """The run with a second in which each rank had no core."""
    ranks = [
        rank.model_copy(update={"seconds": rank.seconds | {"cpu_contention": 1.0}}) for rank in result.ranks
    ]
    return result.model_copy(update={"ranks": ranks})


def test_loaded_runs_calibrate_where_there_are_no_others(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    loaded = [beside_load(exchanging(paths, 2.0, nodes=2, seed=seed)) for seed in (0, 1)]
    times = cluster_times(paths, [(each.key, each) for each in loaded])
    took = [time.cluster_s for time in times.values() if isinstance(time, ClusterTime)]
    assert took == pytest.approx([2.0, 2.0], abs=0.01)
    quiet = [exchanging(paths, 1.0, nodes=2, seed=seed) for seed in (2, 3)]
    times = cluster_times(paths, [(each.key, each) for each in (*loaded, *quiet)])
    took = [time.cluster_s for time in times.values() if isinstance(time, ClusterTime)]
    assert took == pytest.approx(4 * [1.0], abs=0.01)
