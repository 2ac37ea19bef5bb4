"""The command `predict`, from measured runs to a table and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.commands.calibrate import write_costs
from orchestrator.results.store import SweepPaths
from tests.support.command_line import run_cli

SWEEP = """
name: measured
base: {dataset: digits, model: mlp, epochs: 2}
blocks:
  - base: {strategy: serial}
  - base: {transport: gloo}
    axes: {strategy: [local_sgd, ddp], nodes: [2]}
  - base: {transport: gloo, strategy: pipeline, nodes: 2}
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
        *("predict", measured, "--nodes", "2,16", "--link", "10gbit/50us", "--price", "2.50/h", "--json"),
        *("--data-dir", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    local, pipeline = (
        [each for each in found["forecasts"] if name in each["configuration"]]
        for name in ("local_sgd", "pipeline")
    )
    assert [each["nodes"] for each in local] == [2, 16]
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
    assert refused.keys() == {(2, "ddp"), (16, "ddp"), (16, "pipeline")}
    assert "all_reduce" in refused[2, "ddp"]
    assert found["unused"] == []
    assert sorted(path.name for path in measured.iterdir()) == before


def test_the_table_fits_80_columns(measured: Path) -> None:
    done = run_cli("predict", measured, "--nodes", "2,16,1024", "--price", "2.50/h")
    assert done.returncode == 0, done.stderr
    assert "1,024" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith(" ")]
    assert len(rows) >= 2 * 2
    assert max(map(len, rows)) <= 80
    assert "…" not in done.stdout


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
