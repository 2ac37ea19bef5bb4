"""Sweeps on virtual nodes: rows and report, more nodes than cores, failures."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.execution.clusters import Clusters
from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.replay.described import has_cores
from orchestrator.replay.run import ClusterTime
from orchestrator.report.findings.claims import Claims
from orchestrator.report.metrics.clock import clock_error
from orchestrator.report.model.comparison import read_comparison
from orchestrator.report.topics.clock import cluster_time
from orchestrator.results.environment import cores
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths, read_record, read_result
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.support.command_line import run_cli
from tests.support.nightly import nightly
from tests.support.processes import node_processes, wait_until
from tests.support.runs import SMALL, DuringTraining, data_directory, execute
from trainer.spec.run_spec import RunSpec
from trainer.virtual.options import VirtualOptions

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
    file = directory / "virtual.yml"
    file.write_text(text)
    out = directory / "results"
    done = run_cli("sweep", str(file), "--runtime", "virtual", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    results = [read_result(path) for path in sorted(out.glob("*/result.json"))]
    return {result.key: result for result in results if result}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, RunResult]]:
    directory = tmp_path_factory.mktemp("virtual")
    return directory / "results", swept(directory)


def of(results: dict[str, RunResult], strategy: str, nodes: int, **fields: Any) -> RunResult:
    (found,) = (
        result
        for result in results.values()
        if (result.run.name_of("strategy"), result.run.nodes) == (strategy, nodes)
        and all(getattr(result.run, name) == value for name, value in fields.items())
    )
    return found


def test_every_run_has_the_time_of_the_cluster(results: tuple[Path, dict[str, RunResult]]) -> None:
    out, found = results
    assert {result.status for result in found.values()} == {"ok"}
    assert len(found) == 7
    serial = of(found, "serial", 1)
    assert serial.train_s == pytest.approx(2 * 320 * 0.001, abs=1e-5)
    local = of(found, "local_sgd", 4, transport="gloo")
    assert local.certificate is not None
    assert local.certificate.verified
    # A quarter of the samples each, and messages of 2 ms.
    assert 2 * 80 * 0.001 < (local.train_s or 0) < 2 * 80 * 0.001 + 0.2
    slow = of(found, "local_sgd", 4, transport="mpi")
    assert 4 * 2 * 80 * 0.001 < (slow.train_s or 0) < 4 * 2 * 80 * 0.001 + 0.2
    # In each step 32 ranks pass a ring of 62 messages, of 2 ms with those that ask for them.
    assert (of(found, "all_reduce", 32).train_s or 0) > 2 * 62 * 0.002
    assert of(found, "async_parameter_server", 5).ranks[1].staleness_max is not None
    for result in found.values():
        time = json.loads((out / result.key / "cluster.json").read_text())
        assert time["cluster_s"] == pytest.approx(result.train_s, abs=0.02)


def test_the_report_says_what_the_times_are(results: tuple[Path, dict[str, RunResult]]) -> None:
    out, _ = results
    with open(out / "results.csv", encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert {(row["runtime"], row["clock"]) for row in rows} == {("virtual", "cluster")}
    assert all(not row.get("wall_s") for row in rows)
    findings = json.loads((out / "findings.json").read_text())
    texts = [each["text"] for each in findings if each["kind"] == "cluster_time_uncalibrated"]
    assert texts
    assert all(text.startswith("Nodes are virtual") for text in texts)


BOTH = """
name: both
base:
  dataset: {name: synthetic, samples: 320, test_samples: 64}
  model: {name: mlp, hidden: [16]}
  epochs: 2
blocks:
  - axes: {strategy: [local_sgd, all_reduce], nodes: NODES, seed: [0, 1]}
"""


@pytest.mark.nightly
def test_runs_of_real_nodes_calibrate_times_and_show_their_error(tmp_path: Path) -> None:
    swept(tmp_path, BOTH.replace("NODES", "[2, 8]"))
    out, real = tmp_path / "results", tmp_path / "real"
    file = tmp_path / "real.yml"
    file.write_text(BOTH.replace("NODES", "[2]"))
    assert run_cli("sweep", str(file), "--runtime", "local", "--out", str(real)).returncode == 0
    before = read_comparison(SweepPaths(out))
    assert run_cli("report", str(out), "--real", str(out)).returncode == 2
    assert run_cli("report", str(real), "--real", str(real)).returncode == 2
    assert run_cli("report", str(out), "--real", str(real)).returncode == 0
    after = read_comparison(SweepPaths(out))
    paths = SweepPaths(real)
    measured = {key: read_result(paths.run(key).result) for key in read_record(paths).keys}
    assert {row.key for row in after.rows if row.real} == {*measured}
    (view,) = (after.view(workload) for workload in after.workloads)
    error = clock_error(row for group in view.groups for row in group.ok_rows)
    assert error is not None
    assert {row.key for row in error.rows} == {*measured}
    (finding,) = cluster_time(view, Claims({view.workload: 0.15}, after.tolerance))
    assert (finding.data["checked"], finding.data["of"]) == (len(measured), len(after.rows))
    assert finding.kind == "cluster_time_uncalibrated"  # the runs on 8 nodes were not checked
    assert "on local processes, in ../real." in finding.text
    assert after.real is not None
    assert after.real.showing("mpi") == len(measured)
    for row in error.rows:
        found = measured[row.key]
        assert row.real is not None
        assert found is not None
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
        assert own.cluster.software == {}
        assert time.cluster.software != {}
        assert time.cluster.cpu_inflation == []
        assert time.cluster.overhead_s != own.cluster.overhead_s
    shutil.rmtree(real)
    assert "no sweep.json" in read_comparison(SweepPaths(out)).real_unusable


def test_a_sampled_sweep_has_the_same_times_and_is_repeated_with_training(
    results: tuple[Path, dict[str, RunResult]], tmp_path: Path
) -> None:
    _, trained = results
    sampled = SWEEP.replace("virtual: {", "virtual: {compute: sampled, ")
    found = swept(tmp_path, sampled)
    for key, result in found.items():
        assert result.status == "ok", result.cause
        assert (result.accuracy, result.certificate, result.epochs) == (None, None, [])
        assert [rank.train_s for rank in result.ranks] == [rank.train_s for rank in trained[key].ranks]
    with open(tmp_path / "results" / "results.csv", encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert all("nothing was trained" in row["flags"] and not row["accuracy"] for row in rows)
    # The sweep with training repeats every run in the same directory, with the same bits and times.
    again = swept(tmp_path)
    assert again.keys() == trained.keys()
    for key, result in again.items():
        assert (result.status, result.accuracy) == ("ok", trained[key].accuracy)
        for mine, first in zip(result.ranks, trained[key].ranks, strict=True):
            assert (mine.weights_digest, mine.train_s) == (first.weights_digest, first.train_s)


@pytest.mark.nightly
def test_a_killed_process_is_the_cause_and_leaves_nothing(tmp_path: Path) -> None:
    run = RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "nodes": 3, "epochs": 3000})
    display = DuringTraining(lambda pid: os.kill(pid, signal.SIGKILL), rank=1)
    result = execute(run, tmp_path, "virtual", display)
    assert (result.status, "SIGKILL" in str(result.cause)) == ("failed", True), result.cause
    assert node_processes(tmp_path) == []


@pytest.mark.skipif(cores() < 2, reason="two worker processes need two cores")
@pytest.mark.parametrize("rank", [*nightly(0), 2])
def test_a_killed_worker_process_is_the_cause_and_leaves_nothing(rank: int, tmp_path: Path) -> None:
    run = RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "nodes": 3, "epochs": 3000})
    display = DuringTraining(lambda pid: os.kill(pid, signal.SIGKILL), rank)
    with Clusters(VirtualRuntime()) as clusters:
        clusters.runtime.configure(VirtualOptions(workers=2))
        result = SweepRunner(clusters, "virtual", SweepPaths(tmp_path), data_directory(), display).run(run)
        assert (result.status, "SIGKILL" in str(result.cause)) == ("failed", True), result.cause
        wait_until(lambda: node_processes(tmp_path) == [])


def test_a_run_that_diverges_is_the_cause(tmp_path: Path) -> None:
    fields = {**SMALL, "model": "lenet", "optimizer": "momentum", "lr": 100}
    run = RunSpec.model_validate({**fields, "strategy": "all_reduce", "nodes": 3})
    result = execute(run, tmp_path, "virtual")
    assert result.status == "failed"
    assert "loss is" in str(result.cause)
