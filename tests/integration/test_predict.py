"""Mistakes of the command `predict`, from measured runs to a table and JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.calibrate import write_costs
from orchestrator.results.store import SweepPaths
from tests.support.command_line import refused, run_ok
from tests.support.runs import write_sweep

BASE = {"dataset": "digits", "model": "mlp", "epochs": 8, "transport": "gloo", "nodes": 2}
LOCAL_SGD = {"strategy": "local_sgd"}


def predicted(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_ok("predict", *arguments, "--json").stdout)
    return found


def kinds(directory: Path) -> set[str]:
    """The kinds of findings of a report."""
    return {each["kind"] for each in json.loads((directory / "findings.json").read_text())}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with two nodes and a serial run."""
    directory = tmp_path_factory.mktemp("measured")
    serial = {"strategy": "serial", "transport": "memory", "nodes": 1}
    others = [LOCAL_SGD, *({"strategy": each} for each in ("ddp", "fsdp", "pipeline"))]
    file = write_sweep(directory / "measured.yml", BASE, serial, *others)
    run_ok("sweep", file, "--runtime", "local", "--out", directory / "results")
    return directory / "results"


def test_times_bytes_and_cost_of_more_nodes_are_predicted(measured: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in measured.iterdir())
    found = predicted(
        *(measured, "--nodes", "2,8", "--link", "10gbit/50us", "--price", "2.50/h", "--data-dir", tmp_path)
    )
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
    assert refused.keys() == {(8, "pipeline")}
    for name in ("ddp", "fsdp"):  # torch's own code, which trains on virtual nodes
        own = [each for each in found["forecasts"] if name in each["configuration"]]
        assert [each["nodes"] for each in own] == [2, 8]
        assert all(0 < each["low_s"] < each["seconds"] < each["high_s"] for each in own)
    assert found["unused"] == []
    assert sorted(path.name for path in measured.iterdir()) == before


@pytest.mark.nightly
def test_a_report_has_the_predictions_until_a_run_is_repeated(measured: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(measured, copy)
    run_ok("predict", copy, "--nodes", "2,8", "--report")
    assert "predicted" in kinds(copy)
    assert (copy / "plots" / "predicted.svg").exists()
    assert "## Predictions" in (copy / "report.md").read_text()
    (repeated,) = copy.glob("local_sgd-*")
    shutil.rmtree(repeated)
    run_ok("report", copy)
    assert kinds(copy) & {"predicted", "predictions_unusable"} == {"predictions_unusable"}


@pytest.mark.nightly
def test_a_sweep_is_executed_and_the_time_to_a_target_is_that_of_virtual_nodes(tmp_path: Path) -> None:
    write_sweep(tmp_path / "few.yml", BASE, LOCAL_SGD)
    target = {"epochs": 20, "target_accuracy": 0.5, "nodes": 8}
    write_sweep(tmp_path / "learned.yml", BASE, LOCAL_SGD | target)
    run_ok("sweep", "learned.yml", "--runtime", "virtual", directory=tmp_path)
    run_ok("predict", "few.yml", "--runtime", "local", "--nodes", "8", directory=tmp_path)
    measured, learned = (tmp_path / "results" / name for name in ("few", "learned"))
    assert (measured / "report.html").exists()
    on_4, on_8 = predicted(measured, "--nodes", "4,8", "--learned", learned)["forecasts"]
    reached = on_8["to_target"]
    assert (reached["accuracy"], reached["seeds"]) == (0.5, 1)
    assert 0 < reached["low_s"] < reached["seconds"] < reached["high_s"]
    assert on_4["to_target"] is None
    assert "target_accuracy" in refused("predict", measured, "--learned", measured)


@pytest.mark.nightly
def test_costs_of_messages_can_be_those_of_a_file(measured: Path, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    (line,) = write_costs(SweepPaths(measured), file)
    assert line.startswith("gloo: ")
    costs = json.loads(file.read_text())
    assert costs["transports"]["gloo"]["exchanges"].keys() >= {"all_reduce", "send"}

    def seconds(file: Path) -> float:
        first: float = predicted(measured, "--nodes", "2", "--cluster", file)["forecasts"][0]["seconds"]
        return first

    costs["transports"]["gloo"]["message_s"] = 1.0  # of each message
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps(costs))
    assert seconds(slow) > 2 + seconds(file)


def test_what_is_no_cluster_and_has_no_measured_runs_is_refused(measured: Path, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"version": 1, "runtime": "local", "nodes": "", "transports": {"gloo": {}}}))
    said = refused("predict", measured, "--cluster", file)
    assert f"--cluster {file}: transports.gloo.message_s" in said
    assert str(tmp_path) in refused("predict", tmp_path)
