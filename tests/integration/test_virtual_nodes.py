"""Mistakes of sweeps on virtual nodes: times in rows and report, more nodes than cores, failures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.replay.described import has_cores
from orchestrator.replay.run import ClusterTime
from orchestrator.report.metrics.estimates import clock_error
from orchestrator.report.model.comparison import read_comparison
from orchestrator.report.topics import find
from orchestrator.results.environment import cores
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.support.command_line import refused, run_ok
from tests.support.nightly import nightly
from tests.support.processes import node_processes, wait_until
from tests.support.runs import digests, execute_on, killing, lines_in, results_in, write_sweep
from trainer.virtual.options import VirtualOptions

DATASET = {"name": "synthetic", "samples": 320, "test_samples": 64}
BASE: dict[str, Any] = {"dataset": DATASET, "model": {"name": "mlp", "hidden": [16]}, "epochs": 2}
SWEEP = """
name: virtual
base:
  dataset: {name: synthetic, samples: 320, test_samples: 64, noise: 1.0}
  model: {name: mlp, hidden: [16]}
  epochs: 2
  link: {latency_ms: 2, bandwidth_mbit: 100}
virtual: {seconds_per_sample: 0.001}
blocks:
  - base: {strategy: serial}
  - base: {transport: gloo}
    axes: {strategy: [local_sgd, all_reduce], nodes: [4, 32]}
  - base: {strategy: async_parameter_server, transport: rpc, nodes: 5}
  - base: {strategy: local_sgd, transport: mpi, nodes: 4, node_speed: {-1: 0.25}}
"""


def swept(directory: Path, text: str = SWEEP) -> dict[str, RunResult]:
    (file := directory / "virtual.yml").write_text(text)
    run_ok("sweep", file, "--runtime", "virtual", "--out", directory / "results")
    return {result.key: result for result in results_in(directory / "results")}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, RunResult]]:
    directory = tmp_path_factory.mktemp("virtual")
    return directory / "results", swept(directory)


def test_every_run_has_the_time_of_the_cluster(results: tuple[Path, dict[str, RunResult]]) -> None:
    out, found = results
    assert {result.status for result in found.values()} == {"ok"}
    named = {(r.run.name_of("strategy"), r.run.transport, r.run.nodes): r for r in found.values()}
    assert len(named) == len(found) == 7
    times = {name: result.train_s or 0.0 for name, result in named.items()}
    assert times["serial", "memory", 1] == pytest.approx(2 * 320 * 0.001, abs=1e-5)
    certificate = named["local_sgd", "gloo", 4].certificate
    assert certificate is not None
    assert certificate.verified
    # A quarter of the samples each, and messages of 2 ms; the last node over mpi is 4 times slower.
    assert 2 * 80 * 0.001 < times["local_sgd", "gloo", 4] < 2 * 80 * 0.001 + 0.2
    assert 4 * 2 * 80 * 0.001 < times["local_sgd", "mpi", 4] < 4 * 2 * 80 * 0.001 + 0.2
    # In each step 32 ranks pass a ring of 62 messages, of 2 ms with those that ask for them.
    assert times["all_reduce", "gloo", 32] > 2 * 62 * 0.002
    assert named["async_parameter_server", "rpc", 5].ranks[1].staleness_max is not None
    for result in found.values():
        time = json.loads((out / result.key / "cluster.json").read_text())
        assert time["cluster_s"] == pytest.approx(result.train_s, abs=0.02)
    # The report says what the times are.
    rows = lines_in(out)
    assert {(row["runtime"], row["clock"], row.get("wall_s", "")) for row in rows} == {
        ("virtual", "cluster", "")
    }
    findings = json.loads((out / "findings.json").read_text())
    texts = [each["text"] for each in findings if each["kind"] == "cluster_time_uncalibrated"]
    assert texts
    assert all(text.startswith("Nodes are virtual") for text in texts)


@pytest.mark.nightly
def test_runs_of_real_nodes_calibrate_times_and_show_their_error(tmp_path: Path) -> None:
    out, real = tmp_path / "virtual", tmp_path / "real"
    for directory, nodes in ((out, [2, 8]), (real, [2])):
        axes = {"strategy": ["local_sgd", "all_reduce"], "nodes": nodes, "seed": [0, 1]}
        file = write_sweep(tmp_path / "both.yml", BASE, {"axes": axes})
        run_ok("sweep", file, "--runtime", "local" if directory == real else "virtual", "--out", directory)
    before = read_comparison(SweepPaths(out))
    refused("report", out, "--real", out)
    refused("report", real, "--real", real)
    run_ok("report", out, "--real", real)
    after = read_comparison(SweepPaths(out))
    measured = {result.key: result for result in results_in(real)}
    assert {row.key for row in after.rows if row.real} == {*measured}
    error = clock_error(row for group in after.groups for row in group.ok_rows)
    assert error is not None
    assert {row.key for row in error.rows} == {*measured}
    (finding,) = (each for each in find(after) if each.kind.startswith("cluster_time"))
    assert (finding.data["checked"], finding.data["of"]) == (len(measured), len(after.rows))
    assert finding.kind == "cluster_time_uncalibrated"  # the runs on 8 nodes were not checked
    assert "on local processes, in ../real." in finding.text
    assert after.real is not None
    assert after.real.showing("mpi") == len(measured)
    for row in error.rows:
        found = measured[row.key]
        assert row.real is not None
        assert (row.real.clock == "wall") == has_cores(found)
        assert row.real.clock == "cluster" or row.real.seconds == found.train_s
    softwares = {
        time.cluster.overhead_s for time in after.clusters.values() if isinstance(time, ClusterTime)
    }
    assert len(softwares) == 1  # also of runs that real nodes did not execute
    for key, time in after.clusters.items():
        own = before.clusters[key]
        assert isinstance(time, ClusterTime)
        assert isinstance(own, ClusterTime)
        assert own.cluster.software == {} != time.cluster.software
        assert time.cluster.cpu_inflation == []
        assert time.cluster.overhead_s != own.cluster.overhead_s
    shutil.rmtree(real)
    assert "no sweep.json" in read_comparison(SweepPaths(out)).real_unusable


def test_a_sampled_sweep_has_the_same_times_and_is_repeated_with_training(
    results: tuple[Path, dict[str, RunResult]], tmp_path: Path
) -> None:
    _, trained = results
    few = SWEEP.replace("[4, 32]", "[4]")
    sampled = swept(tmp_path, few.replace("virtual: {", "virtual: {compute: sampled, "))
    assert len(sampled) == 5
    for key, result in sampled.items():
        assert result.status == "ok", result.cause
        assert (result.accuracy, result.certificate, result.epochs) == (None, None, [])
        assert [rank.train_s for rank in result.ranks] == [rank.train_s for rank in trained[key].ranks]
    rows = lines_in(tmp_path / "results")
    assert all("nothing was trained" in row["flags"] and not row["accuracy"] for row in rows)
    # The sweep with training repeats every run in the same directory, with the same bits and times.
    again = swept(tmp_path, few)
    assert again.keys() == sampled.keys()
    for key, result in again.items():
        assert (result.status, result.accuracy) == ("ok", trained[key].accuracy)
        assert digests(result) == digests(trained[key])
        assert [rank.train_s for rank in result.ranks] == [rank.train_s for rank in trained[key].ranks]


@pytest.mark.parametrize(
    ("workers", "rank"),
    [
        *nightly((1, 1), (2, 0)),
        pytest.param(
            2, 2, marks=pytest.mark.skipif(cores() < 2, reason="two worker processes need two cores")
        ),
    ],
)
def test_a_killed_process_is_the_cause_and_leaves_nothing(workers: int, rank: int, tmp_path: Path) -> None:
    run = {"strategy": "all_reduce", "nodes": 3, "epochs": 3000}
    with Clusters(VirtualRuntime()) as clusters:
        clusters.runtime.configure(VirtualOptions(workers=workers))
        result = execute_on(clusters, "virtual", tmp_path, killing(rank), run)
        assert (result.status, "SIGKILL" in str(result.cause)) == ("failed", True), result.cause
        wait_until(lambda: node_processes(tmp_path) == [])
