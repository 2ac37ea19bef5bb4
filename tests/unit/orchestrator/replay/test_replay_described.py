"""Mistakes in the cluster of a run: units of links, quotas, which probes and runs count, stored times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.replay import Options, rows
from orchestrator.errors import InputError
from orchestrator.replay import described
from orchestrator.replay.described import UNKNOWN, Software, has_cores, software_of, work_of_step
from orchestrator.replay.real_nodes import Calibrated, calibrated
from orchestrator.results.real_nodes import RealRuns, calibrate_virtual_nodes, read_real_runs
from orchestrator.results.records import LinkResult, RunResult
from orchestrator.results.store import SweepPaths, UnusableFile
from tests.support.traces import builders
from tests.unit.orchestrator.replay.test_replay_run import FREE, TRACED, results_directory
from tests.unit.report_support import a_run
from trainer.core.trace import Kind, encode_trace, trace_path
from trainer.time_model.cluster import Cluster, Link

GLOO = Software(message_s=100e-6, bytes_per_s=2e9)


def cluster(nodes: int = 3, runtime: str = "local", strategy: str = "ddp", **fields: Any) -> Cluster:
    """Of a run over gloo; serial has the transport memory."""
    result = a_run(strategy, nodes=nodes, runtime=runtime, **fields)
    return described.described(result, {("local", "gloo"): GLOO, ("docker", "gloo"): GLOO})


def test_links_are_those_of_the_run_and_a_message_costs_its_software() -> None:
    alone: dict[str, Any] = {"nodes": 1, "strategy": "serial", "link": {"latency_ms": 5}}
    for fields, nodes, latency_s, software, bytes_per_s in (
        ({}, 3, 0.0, GLOO, GLOO.bytes_per_s),
        (alone, 1, 0.0, UNKNOWN, UNKNOWN.bytes_per_s),
        ({"link": {"bandwidth_mbit": 80, "latency_ms": 5}}, 3, 0.005, GLOO, 10e6),
        ({"link": {"latency_ms": 5}, "processes_per_node": 2}, 3, 0.005, GLOO, GLOO.bytes_per_s),
    ):
        half_s = software.message_s / 2  # at the sender and at the receiver
        own = {"node_speed": [1.0] * nodes, "processes_per_node": fields.get("processes_per_node", 1)}
        link = Link(latency_s=latency_s, bytes_per_s=bytes_per_s)
        assert cluster(**fields) == Cluster(**own, link=link, overhead_s=half_s)
    differing = cluster(link={"default": {"bandwidth_mbit": 80}, "pairs": {"1>0": {"latency_ms": 9}}})
    between = differing.links_of(range(3)).between
    assert len(differing.links) == 6
    assert [between(1, 0).latency_s, between(0, 1).latency_s] == [0.009, 0.0]
    assert {between(*pair).bytes_per_s for pair in permutations(range(3), 2)} == {10e6}


def test_quotas_slow_nodes_down_where_they_are_enforced() -> None:
    for fields, speeds in (
        ({"cpus": 0.5, "runtime": "local"}, [1.0] * 3),
        ({"cpus": 0.5}, [0.5] * 3),
        ({"cpus": 4}, [1.0] * 3),
        ({"cpus": 0.5, "node_speed": [1, 1, 0.5]}, [0.5, 0.5, 0.25]),
        ({"cpus": 1, "processes_per_node": 2}, [0.5] * 3),
    ):
        assert cluster(**{"runtime": "docker", **fields}).node_speed == speeds


def test_the_fastest_probe_counts_unless_links_were_shaped() -> None:
    """Other load makes probes slower, and never faster."""

    def probed(*links: tuple[float, float], **fields: Any) -> RunResult:
        measured = [LinkResult(source=0, to=1, latency_s=each[0], bytes_per_s=each[1]) for each in links]
        return a_run("ddp", nodes=2, **fields).model_copy(update={"links": measured})

    found = software_of([probed((3e-4, 1e9), (1e-4, 5e8)), probed((9e-4, 2e9), seed=1)])
    assert found == {("local", "gloo"): Software(1e-4, 2e9)}
    link = {"bandwidth_mbit": 10}
    assert software_of([probed((0.1, 1e6), runtime="docker", link=link)]) == {}
    # Local nodes have no shaped links.
    assert software_of([probed((1e-4, 1e9), link=link)]) == {("local", "gloo"): Software(1e-4, 1e9)}


def traced(paths: SweepPaths, barrier_s: float = 0.0, step_s: float = 0.0, **fields: Any) -> RunResult:
    """A run over gloo whose traces are stored, with 8 steps, and a barrier that took so long."""
    result = a_run("all_reduce", transport="gloo", **{"nodes": 2, **fields})
    directory = paths.run(result.key).directory
    directory.mkdir(parents=True)
    for number, rank in enumerate(builders(result.run.world_size, run=result.key)):
        for epoch in (1, 2):
            rank.add(Kind.EPOCH, peer=epoch)
            for _ in range(4):
                rank.work(step_s).add(Kind.STEP)
        rank.timed(Kind.BARRIER, 0.0, barrier_s)
        trace_path(directory, number).write_bytes(encode_trace(rank.trace()))
    return result


def beside_load(result: RunResult) -> RunResult:
    """The run with a second in which its last rank had no core."""
    *others, last = result.ranks
    loaded = last.model_copy(update={"seconds": last.seconds | {"cpu_contention": 1.0}})
    return result.model_copy(update={"ranks": [*others, loaded]})


def cluster_times(paths: SweepPaths, *results: RunResult) -> list[Any]:
    return [*described.cluster_times(paths, [(each.key, each) for each in results]).values()]


def taken(paths: SweepPaths, *results: RunResult) -> list[float]:
    return [time.cluster_s for time in cluster_times(paths, *results)]


def test_runs_with_a_core_for_each_rank_calibrate_all_others(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    results = [traced(paths, 1.0 + 2 * seed, seed=seed) for seed in range(3)]
    results += [traced(paths, 7.0, nodes=4, cores=2), traced(paths, 9.0, cores=1, lr=0.5)]
    assert [has_cores(each) for each in results] == [True, True, True, False, False]
    # The fastest of the others' barriers; a run's own does not count.
    assert taken(paths, *results) == pytest.approx([3.0, 1.0, 1.0, 1.0, 1.0], abs=0.01)
    # A link that was not made is no part of what a run took.
    linked = traced(paths, 0.2, seed=9, link={"latency_ms": 500})
    assert taken(paths, linked, results[0]) == pytest.approx([0.5 + 1.0, 0.2], abs=0.01)
    # Beside other load ranks calibrate where there are no others.
    loaded = [beside_load(traced(paths, 0.1, seed=seed)) for seed in (10, 11)]
    assert taken(paths, *loaded) == pytest.approx([0.1, 0.1], abs=0.01)
    assert taken(paths, *loaded, *results[:2]) == pytest.approx([1.0, 1.0, 3.0, 1.0], abs=0.01)


def test_calibrating_runs_have_full_speed_and_the_cores_that_they_need() -> None:
    fields: dict[str, Any] = {"nodes": 2, "cores": 2}
    whole = a_run("all_reduce", **fields)
    assert has_cores(whole)
    assert has_cores(beside_load(a_run("all_reduce", train_s=50.0, **fields)))  # 2 % of its time
    for other in (
        a_run("serial", cores=2),
        on_virtual_nodes(whole),  # says nothing about real exchanges
        a_run("all_reduce", node_speed=[1, 0.5], **fields),
        a_run("all_reduce", cpus=0.5, runtime="docker", **fields),
        beside_load(a_run("all_reduce", train_s=8.0, **fields)),
    ):
        assert not has_cores(other)


def test_a_stored_time_is_read_unless_it_is_of_another_cluster_or_run(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    first, second = runs = traced(paths, 1.0), traced(paths, 2.0, seed=1)
    before, stored = taken(paths, *runs)[0], paths.run(first.key).cluster_time
    changed = re.sub(r'"cluster_s": [0-9.]+', '"cluster_s": 77', stored.read_text())
    for text, expected in (
        (changed, 77.0),
        (changed.replace('"processes_per_node": 1', '"processes_per_node": 2'), before),
        (changed.replace(first.key, second.key), before),
        (changed.replace('"version": ', '"version": 9'), before),
        (changed[:-20], before),
    ):
        stored.write_text(text)
        assert taken(paths, *runs)[0] == pytest.approx(expected)


def test_cluster_time_has_the_work_of_a_core_for_each_rank(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path)
    shared: dict[str, Any] = {"step_s": 0.15, "nodes": 4, "cores": 2}
    runs = [traced(paths, step_s=0.1), traced(paths, step_s=0.1, seed=1)]
    times = cluster_times(paths, *runs, traced(paths, **shared), traced(paths, **shared, batch_size=7))
    assert [time.cluster.cpu_inflation for time in times] == [[], [], [1.5] * 4, [1.5] * 4]
    assert [sum(time.ranks[0].work_s.values()) for time in times] == pytest.approx([0.8] * 4)


def test_steps_compute_the_same_on_any_number_of_nodes_with_a_whole_model_each() -> None:
    def work(strategy: str = "all_reduce", nodes: int = 2, **fields: Any) -> str:
        return work_of_step(a_run(strategy, nodes=nodes, **fields))

    assert work() == work(nodes=4, seed=3, epochs=9, lr=0.7) == work(nodes=3)
    assert work() not in (work(batch_size=7), work(runtime="docker"))
    assert work(batch_size=64, batch_per="run") == work(nodes=4, batch_size=128, batch_per="run")
    for strategy in ("zero1", "fsdp", "pipeline", "parameter_server"):
        assert work(strategy) != work(strategy, nodes=3), strategy


def test_the_fewest_whole_batches_of_all_epochs_count() -> None:
    result = a_run("all_reduce", nodes=3, batch_size=10)
    part = result.certificate.parts[0]
    parts = [
        part.model_copy(update={"rank": rank, "epoch": epoch, "samples": samples})
        for rank, epoch, samples in ((0, 1, 39), (0, 2, 20), (1, 1, 9), (1, 2, 50))
    ]
    certificate = result.certificate.model_copy(update={"parts": parts})
    changed = result.model_copy(update={"certificate": certificate})
    assert described.whole_batches(changed) == [2, 0, None]


def on_virtual_nodes(result: RunResult, **environment: float) -> RunResult:
    info = replace(result.runtime_info, simulates_time=True)
    changes = {"runtime": "virtual", "runtime_info": info, "environment": environment}
    return result.model_copy(update=changes)


def virtual_run(path: Path, **fields: Any) -> RunResult:
    """A run whose barrier takes what the model says."""
    return on_virtual_nodes(traced(SweepPaths(path / "virtual"), **fields))


def compared(path: Path, real: Sequence[RunResult], *results: RunResult) -> Calibrated:
    runs = RealRuns("../real", [(SweepPaths(path / "real").run(each.key), each) for each in real])
    return calibrated(SweepPaths(path / "virtual"), [(each.key, each) for each in results], runs)


def test_a_run_is_compared_with_the_costs_of_others_and_reported_with_all(tmp_path: Path) -> None:
    real = [traced(SweepPaths(tmp_path / "real"), 1.0 + 2 * seed, seed=seed) for seed in (0, 1)]
    ours = [virtual_run(tmp_path, seed=seed) for seed in (0, 1, 2)]
    found = compared(tmp_path, real, *ours)
    assert [*found.times] == [each.key for each in ours[:2]]
    assert [each.predicted_s for each in found.times.values()] == pytest.approx([3.0, 1.0], abs=0.01)
    assert [each.seconds for each in found.times.values()] == [each.train_s for each in real]
    clusters = [found.cluster(each) for each in ours]
    assert clusters == 3 * [clusters[0]] != 3 * [None]
    mpi = on_virtual_nodes(a_run("all_reduce", transport="mpi", nodes=2))
    assert (found.showing("gloo"), found.showing("mpi"), found.cluster(mpi)) == (2, 0, None)


def test_wall_times_of_the_described_cluster_are_compared_or_cluster_times(tmp_path: Path) -> None:
    fields: list[dict[str, Any]] = [{}, {"link": {"latency_ms": 500}}, {"lr": 0.5}]
    real = [traced(SweepPaths(tmp_path / "real"), 1.0, **each) for each in fields]
    real[2] = beside_load(real[2])
    times = compared(tmp_path, real, *(virtual_run(tmp_path, **each) for each in fields)).times
    assert [each.clock for each in times.values()] == ["wall", "cluster", "cluster"]
    assert [*times.values()][1].seconds == pytest.approx(1.5, abs=0.01)  # local nodes have no shaped links


def test_runs_that_should_not_take_as_long_are_not_compared(tmp_path: Path) -> None:
    fields: list[dict[str, Any]] = [{}, {"seed": 1}, {"seed": 2, "cpus": 0.5, "runtime": "docker"}]
    real = [traced(SweepPaths(tmp_path / "real"), 1.0, **each) for each in fields]
    ours, priced, quota = (virtual_run(tmp_path, **each) for each in fields)
    priced = on_virtual_nodes(priced, seconds_per_sample=0.01)
    assert [*compared(tmp_path, real, ours, priced, quota).times] == [ours.key]
    early = ours.model_copy(update={"epochs": [each for each in ours.epochs if each.epoch == 1]})
    assert compared(tmp_path, real, early).times == {}


def test_a_replay_replaces_the_links_of_calibrated_virtual_nodes(tmp_path: Path) -> None:
    fields = {"nodes": 2, "transport": "gloo", "link": {"bandwidth_mbit": 8}}
    ours = results_directory(tmp_path / "ours", on_virtual_nodes(a_run("all_reduce", **fields)))
    calibrate_virtual_nodes(ours, results_directory(tmp_path / "real", TRACED).directory)
    (row,) = rows(ours, Options(FREE))
    assert row.time.cluster.software["all_reduce"]
    assert row.time.cluster.link.bytes_per_s == UNKNOWN.bytes_per_s


def test_directories_that_calibrate_nothing_are_refused(tmp_path: Path) -> None:
    run = a_run("ddp", nodes=2)
    ours = results_directory(tmp_path / "ours", others=[on_virtual_nodes(run)])
    local = results_directory(tmp_path / "local", others=[run])
    mixed = results_directory(tmp_path / "mixed", others=[run, a_run("ddp", nodes=3, runtime="docker")])
    for virtual, real, reason in (
        (ours, ours, r"--real .*ours has no finished runs on real nodes"),
        (ours, mixed, r"--real .*mixed has runs on several runtimes: local, docker; allowed: one"),
        (local, local, r"--real .*: .*local has no finished runs on virtual nodes"),
    ):
        with pytest.raises(InputError, match=reason):
            calibrate_virtual_nodes(virtual, real.directory)
    assert read_real_runs(ours) is None
    calibrate_virtual_nodes(ours, local.directory)
    found = read_real_runs(ours)
    assert (found.directory, found.runtime, len(found.runs)) == ("../local", "local", 1)
    local.record.unlink()
    with pytest.raises(UnusableFile, match=r"real_nodes\.json: names \.\./local, which cannot be used"):
        read_real_runs(ours)
    with pytest.raises(InputError, match=r"^--real .*local: .*no sweep\.json"):
        calibrate_virtual_nodes(ours, local.directory)
