"""The command `predict`, from measured runs to a table and JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.commands.calibrate import write_costs
from orchestrator.results.store import SweepPaths
from tests.support.command_line import run_cli

SWEEP = """
name: measured
base: {dataset: digits, model: mlp, epochs: 8}
blocks:
  - base: {strategy: serial}
  - base: {transport: gloo}
    axes: {strategy: [local_sgd, ddp], nodes: [2]}
  - base: {transport: gloo, strategy: pipeline, nodes: 2}
"""
FEW = """
name: few
base: {dataset: digits, model: mlp, epochs: 8}
blocks:
  - base: {strategy: local_sgd, transport: gloo, nodes: 2}
"""
LEARNED = """
name: learned
base: {dataset: digits, model: mlp, epochs: 20, target_accuracy: 0.5}
blocks:
  - base: {strategy: local_sgd, transport: gloo, nodes: 8}
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with two nodes and a serial run."""
    directory = tmp_path_factory.mktemp("measured")
    (directory / "sweep.yml").write_text(SWEEP)
    done = run_cli("sweep", directory / "sweep.yml", "--runtime", "local", "--out", directory / "results")
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "results"


def test_times_bytes_and_cost_of_more_nodes_are_predicted(measured: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in measured.iterdir())
    done = run_cli(
        *("predict", measured, "--nodes", "2,8", "--link", "10gbit/50us", "--price", "2.50/h", "--json"),
        *("--data-dir", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    local, pipeline = (
        [each for each in found["forecasts"] if name in each["configuration"]]
        for name in ("local_sgd", "pipeline")
    )
    assert [each["nodes"] for each in local] == [2, 8]
    assert {each["nodes"] for each in pipeline} == {2}
    for each in local:
        assert 0 < each["low_s"] < each["seconds"] < each["high_s"]
        assert each["efficiency"] == each["speedup"] / each["nodes"]
        assert each["cost"] == pytest.approx(each["nodes"] * each["seconds"] * 2.5 / 3600)
        assert each["bytes_sent"] > 0
        assert each["state_bytes"] > 0
    few, many = local
    assert many["high_s"] / many["low_s"] > few["high_s"] / few["low_s"]
    refused = {
        (each["nodes"], each["configuration"].split()[0]): each["reason"] for each in found["refused"]
    }
    assert refused.keys() == {(2, "ddp"), (8, "ddp"), (8, "pipeline")}
    assert "all_reduce" in refused[2, "ddp"]
    assert found["unused"] == []
    assert sorted(path.name for path in measured.iterdir()) == before


def test_a_report_has_the_predictions_until_a_run_is_repeated(measured: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(measured, copy)
    done = run_cli("predict", copy, "--nodes", "2,8", "--report")
    assert done.returncode == 0, done.stderr
    kinds = {each["kind"] for each in json.loads((copy / "findings.json").read_text())}
    assert "predicted" in kinds
    assert (copy / "plots" / "predicted.svg").exists()
    assert "## Predictions" in (copy / "report.md").read_text()
    (repeated,) = copy.glob("local_sgd-*")
    shutil.rmtree(repeated)
    done = run_cli("report", copy)
    assert done.returncode == 0, done.stderr
    kinds = {each["kind"] for each in json.loads((copy / "findings.json").read_text())}
    assert "predictions_unusable" in kinds
    assert "predicted" not in kinds


@pytest.mark.nightly
def test_a_sweep_is_executed_and_the_time_to_a_target_is_that_of_virtual_nodes(tmp_path: Path) -> None:
    (tmp_path / "measured.yml").write_text(FEW)
    (tmp_path / "learned.yml").write_text(LEARNED)
    learned = tmp_path / "results" / "learned"
    assert run_cli("sweep", "learned.yml", "--runtime", "virtual", directory=tmp_path).returncode == 0
    done = run_cli("predict", "measured.yml", "--runtime", "local", "--nodes", "8", directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = tmp_path / "results" / "few"
    assert (measured / "report.html").exists()
    done = run_cli("predict", measured, "--nodes", "4,8", "--learned", learned, "--json")
    on_4, on_8 = json.loads(done.stdout)["forecasts"]
    target = on_8["to_target"]
    assert (target["accuracy"], target["seeds"]) == (0.5, 1)
    assert 0 < target["low_s"] < target["seconds"] < target["high_s"]
    assert on_4["to_target"] is None
    refused = run_cli("predict", measured, "--learned", measured)
    assert refused.returncode == 2
    assert "target_accuracy" in refused.stderr


@pytest.mark.nightly
def test_the_table_fits_80_columns(measured: Path) -> None:
    done = run_cli("predict", measured, "--nodes", "2,16,1024", "--price", "2.50/h")
    assert done.returncode == 0, done.stderr
    assert "1,024" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith(" ")]
    assert len(rows) >= 2 * 2
    assert max(map(len, rows)) <= 80
    assert "…" not in done.stdout


@pytest.mark.nightly
def test_costs_of_messages_can_be_those_of_a_file(measured: Path, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    (line,) = write_costs(SweepPaths(measured), file)
    assert line.startswith("gloo: ")
    costs = json.loads(file.read_text())
    assert costs["transports"]["gloo"]["exchanges"].keys() >= {"all_reduce", "send"}

    def seconds(*options: str | Path) -> float:
        done = run_cli("predict", measured, "--nodes", "2", "--json", *options)
        assert done.returncode == 0, done.stderr
        first: float = json.loads(done.stdout)["forecasts"][0]["seconds"]
        return first

    costs["transports"]["gloo"]["message_s"] = 1.0  # of each message
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps(costs))
    assert seconds("--cluster", slow) > 2 + seconds("--cluster", file)


def test_a_file_that_is_no_cluster_is_refused(measured: Path, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"version": 1, "runtime": "local", "nodes": "", "transports": {"gloo": {}}}))
    done = run_cli("predict", measured, "--cluster", file)
    assert done.returncode == 2
    assert f"--cluster {file}: transports.gloo.message_s" in done.stderr


def test_a_directory_without_measured_runs_is_refused(tmp_path: Path) -> None:
    done = run_cli("predict", tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
