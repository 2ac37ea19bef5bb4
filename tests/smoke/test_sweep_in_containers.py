"""`orchestrator sweep --runtime docker`: real training in every topology, and what may go wrong."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.results.records import RunResult
from orchestrator.results.store import read_result
from tests.support.command_line import run_cli, start_sweep
from tests.support.containers import leftovers
from tests.support.datasets import real_mnist_dir
from tests.support.processes import wait_until
from tests.support.runs import HANGING_SWEEP

TOPOLOGIES = """
name: topologies
base: {dataset: digits, epochs: 8, cpus: 0.5, memory_mb: 1024}
blocks:
  - base: {strategy: serial}
  - base: {strategy: all_reduce, nodes: 2}
    axes: {transport: [gloo, mpi, rpc]}
  - base: {strategy: ddp, nodes: 2}
  - base: {strategy: hogwild, nodes: 2}
  - base: {strategy: rpc_split, nodes: 3}
"""
OWNER = "shardyard.orchestrator"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Whatever a test does: no container and no network of an orchestrator is left by its end."""
    before = leftovers(OWNER)
    yield
    wait_until(lambda: set(leftovers(OWNER)) <= set(before), timeout_s=30)


def sweep(file: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_cli("sweep", file, "--out", out, "--runtime", "docker", *options, timeout_s=280)


def rows(out: Path) -> dict[str, RunResult]:
    """The results by `strategy transport`."""
    found = [read_result(path) for path in out.glob("*/result.json")]
    return {f"{row.spec['strategy']['name']} {row.spec['transport']}": row for row in found if row}


def one_run(tmp_path: Path, **fields: Any) -> RunResult:
    """A sweep of one run."""
    file, out = tmp_path / "one.yml", tmp_path / "out"
    file.write_text(json.dumps({"name": "one", "base": fields, "blocks": [{}]}))
    sweep(file, out)
    (row,) = rows(out).values()
    return row


def test_every_topology(tmp_path: Path) -> None:
    file, out = tmp_path / "topologies.yml", tmp_path / "out"
    file.write_text(TOPOLOGIES)
    done = sweep(file, out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodes are containers of Docker" in done.stdout
    assert "7 of 7 runs ok" in done.stdout
    results = rows(out)
    assert {row.topology for row in results.values()} == {"single", "ddp", "mpi", "rpc"}
    for name, row in results.items():
        assert (row.runtime, row.status) == ("docker", "ok")
        assert (row.accuracy or 0) > 0.7, name
        assert row.certificate is not None
        assert row.certificate.verified
        assert row.replicas_equal
        members = [usage for usage in row.usage if usage.ranks]
        assert len(members) == (1 if row.topology == "single" else row.spec["nodes"])
        assert all((usage.cpu_s or 0) > 0.2 for usage in members), name
        assert all((usage.memory_peak_mb or 0) > 50 for usage in members), name
        if row.topology != "single":
            assert all((usage.sent_bytes or 0) > 1000 for usage in members), name
    same = {results[f"all_reduce {transport}"].ranks[0].weights_digest for transport in ("gloo", "mpi")}
    assert len(same) == 1
    assert (out / "report.html").exists()
    logs = {path.name for path in (out / results["all_reduce mpi"].key).glob("*.log")}
    assert logs == {"compose.log", "coordinator.log", "launcher.log", "node-0.log", "node-1.log"}


def test_mnist(tmp_path: Path) -> None:
    """The real 60,000 images, mounted read-only."""
    data = real_mnist_dir()
    file, out = tmp_path / "mnist.yml", tmp_path / "out"
    spec = {"strategy": "ddp", "nodes": 2, "dataset": "mnist", "epochs": 1}
    file.write_text(json.dumps({"name": "mnist", "base": spec, "blocks": [{}]}))
    done = sweep(file, out, "--data-dir", str(data))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = rows(out).values()
    assert (row.accuracy or 0) > 0.9


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_a_node_without_enough_memory_is_named(tmp_path: Path, transport: str) -> None:
    dataset = {"name": "synthetic", "samples": 200_000}
    row = one_run(
        tmp_path, strategy="all_reduce", transport=transport, nodes=2, dataset=dataset, memory_mb=256
    )
    assert row.status == "failed"
    assert re.search(r"node [01] .*needed more than 256 MiB of memory", str(row.cause)), row.cause


def test_a_container_that_is_killed_is_named(tmp_path: Path) -> None:
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = stalled(file, out)
    subprocess.run(["docker", "kill", container(out, "node-2")], check=True, capture_output=True)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 1, output
    (bad,) = [row for row in map(read_result, out.glob("*/result.json")) if row and row.status != "ok"]
    assert str(bad.cause).startswith("node 1 ("), bad.cause
    assert "killed together with its container" in str(bad.cause)
    assert "2 of 3 runs ok, 1 not" in output


def test_a_node_that_is_stuck_is_named(tmp_path: Path) -> None:
    """Every process in it stopped: the engine's health check notices long before the timeout."""
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = stalled(file, out)
    stop = ["docker", "exec", container(out, "node-1"), "sh", "-c", "kill -STOP -1"]
    subprocess.run(stop, check=True, capture_output=True)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "node 0 is stuck: it does not answer any more" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_takes_all_down(tmp_path: Path, number: signal.Signals) -> None:
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = stalled(file, out)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "everything is stopped" in output
    assert containers(out) == []


def test_when_the_orchestrator_is_killed_its_reaper_takes_all_down(tmp_path: Path) -> None:
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = stalled(file, out)
    process.kill()
    process.communicate(timeout=30)
    wait_until(lambda: containers(out) == [], timeout_s=30)


def test_the_next_start_removes_what_was_left_and_goes_on(tmp_path: Path) -> None:
    """Orchestrator and reaper both killed."""
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = stalled(file, out)
    for reaper in psutil.Process(process.pid).children():
        if "orchestrator.runtimes.docker.reaper" in reaper.cmdline():
            reaper.kill()
    process.kill()
    process.communicate(timeout=30)
    assert containers(out)

    file.write_text(file.read_text().replace("work_s: 300", "work_s: 0"))
    again = sweep(file, out)
    assert again.returncode == 0, again.stdout + again.stderr
    assert re.search(r"removed \d+ thing\(s\) that an orchestrator had left behind", again.stdout)
    assert again.stdout.count("done before") == 1


def test_two_sweeps_at_once(tmp_path: Path) -> None:
    file = tmp_path / "short.yml"
    spec = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 1}
    file.write_text(json.dumps({"name": "short", "base": spec, "blocks": [{"axes": {"seed": [0, 1, 2]}}]}))
    both = [start_sweep(file, tmp_path / name, "--runtime", "docker") for name in ("a", "b")]
    for process in both:
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
        assert "3 of 3 runs ok" in output


def stalled(file: Path, out: Path) -> subprocess.Popen[str]:
    """A sweep that hangs in its second run, with both nodes up."""
    file.write_text(HANGING_SWEEP.replace("TRANSPORT", "gloo"))
    process = start_sweep(file, out, "--runtime", "docker")
    wait_until(lambda: len(list(out.glob("*/live/rank-*.jsonl"))) == 2, timeout_s=90)
    return process


def containers(out: Path) -> list[str]:
    """Names of the containers of the run in `out` that hangs."""
    (plan,) = [path for path in out.glob("*/plan.json") if not (path.parent / "result.json").exists()]
    argv = json.loads(plan.read_text())["processes"][0]["argv"]
    project = argv[argv.index("-p") + 1]
    listed = subprocess.run(
        ["docker", "ps", "-a", "--format", "{{.Names}}", "--filter", f"name=^{project}-"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


def container(out: Path, name: str) -> str:
    (found,) = [each for each in containers(out) if each.endswith(f"-{name}")]
    return found


def test_a_sweep_that_was_killed_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    """With the weights that it would have had: on three nodes the order of DDP's buckets matters."""
    run = {
        "strategy": "ddp",
        "nodes": 3,
        "cpus": 0.5,
        "dataset": {"name": "synthetic", "samples": 1500, "test_samples": 50, "noise": 1.0},
        "model": {"name": "lenet", "dropout": 0.3},
        "optimizer": "momentum",
        "lr": 0.01,
        "batch_size": 10,
        "checkpoint_steps": 20,
    }
    file, out = tmp_path / "one.yml", tmp_path / "out"
    file.write_text(json.dumps({"name": "one", "base": run, "blocks": [{}]}))
    killed = start_sweep(file, out, "--runtime", "docker")
    wait_until(lambda: list(out.glob("*/checkpoints/docker/*/epoch-00001-step-*/rank-2.pt")), timeout_s=120)
    killed.kill()
    killed.communicate()
    assert sweep(file, out).returncode == 0
    assert sweep(file, tmp_path / "whole").returncode == 0
    (went_on,), (whole,) = rows(out).values(), rows(tmp_path / "whole").values()
    assert [rank.weights_digest for rank in went_on.ranks] == [rank.weights_digest for rank in whole.ranks]
    assert went_on.certificate == whole.certificate
    assert "went on from a checkpoint once" in went_on.flags[-1]
    assert not list(tmp_path.glob("*/*/checkpoints"))
