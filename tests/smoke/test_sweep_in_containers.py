"""Mistakes of `orchestrator sweep --runtime docker`: limits, failures, what is left, two sweeps at once.

tests/faults has more: nodes that are cut off, warm containers that fail, runs that resume.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from tests.smoke.confinement import assert_coordinator_confined, assert_node_confined
from tests.support.command_line import Running, end, run_cli, start_sweep
from tests.support.containers import container, containers, docker
from tests.support.datasets import real_mnist_dir
from tests.support.nightly import nightly
from tests.support.processes import wait_until
from tests.support.runs import event_files, only_result, results_in, write_sweep


def one_run(tmp_path: Path, *options: str | Path, **fields: Any) -> RunResult:
    """The result of a sweep with one run."""
    file, out = write_sweep(tmp_path / "one.yml", fields), tmp_path / "out"
    run_cli("sweep", file, "--out", out, "--runtime", "docker", *options, timeout_s=280)
    return only_result(out)


def test_nodes_read_the_dataset_from_the_mounted_directory(tmp_path: Path) -> None:
    """And the row has what each container has used of its limits."""
    fields = {"strategy": "one_shot", "nodes": 2, "dataset": "mnist", "model": "mlp", "epochs": 1}
    row = one_run(tmp_path, "--data-dir", real_mnist_dir(), cpus=0.5, **fields)
    assert (row.status, row.cause) == ("ok", None)
    assert row.certificate is not None
    assert sum(part.samples for part in row.certificate.first_epoch()) == 60_000
    assert (row.accuracy or 0) > 0.8
    nodes = [usage for usage in row.usage if usage.ranks]  # not the coordinator
    assert sorted(usage.ranks for usage in nodes) == [[0], [1]]
    for usage in nodes:
        assert usage.cpus == 0.5
        assert (usage.cpu_s or 0) > 0.2
        assert (usage.memory_peak_mb or 0) > 50
        assert (usage.sent_bytes or 0) > 1000


# Nodes with 256 MiB are cold.
@pytest.mark.parametrize(("transport", "memory_mb"), [("gloo", 512), *nightly(("gloo", 256), ("mpi", 512))])
def test_out_of_memory(tmp_path: Path, transport: str, memory_mb: int) -> None:
    fields = {"strategy": "all_reduce", "transport": transport, "nodes": 2, "memory_mb": memory_mb}
    row = one_run(tmp_path, dataset={"name": "synthetic", "samples": 200_000}, **fields)
    assert (row.status, row.warm) == ("failed", memory_mb == 512)
    assert re.search(rf"node [01]\W.*{memory_mb} MiB", str(row.cause)), row.cause
    assert row.nodes_replaced is None


@pytest.mark.nightly
def test_failures_during_a_sweep(tmp_path: Path) -> None:
    """One sweep of three cold runs: a pause is no failure, a killed container and a suspended node are."""
    process, out = hanging_sweep(tmp_path, "--cold")
    for command in ("pause", "unpause"):
        docker(command, container(out, "node-1"))
        time.sleep(3)
    assert failures(out) == []

    docker("kill", container(out, "node-2"))
    wait_until(lambda: len(failures(out)) == 1)
    assert re.match(r"node 1 .*killed together with its container", failures(out)[0])

    wait_until_training(out, runs=2)
    docker("exec", container(out, "node-1"), "sh", "-c", "kill -STOP -1")
    wait_until(lambda: len(failures(out)) == 2, 200)  # silence or health check, not the timeout
    assert any(re.match(r"node 0\b", cause) for cause in failures(out))

    wait_until_training(out, runs=3)
    end(process)
    assert containers(out) == []


@pytest.mark.parametrize("transport", ["mpi", *nightly("memory")])
def test_interrupt_removes_warm_containers(tmp_path: Path, transport: str) -> None:
    process, out = hanging_sweep(tmp_path, transport=transport)
    assert_confined(out)
    end(process)
    assert containers(out) == []


def test_reaper_removes_the_containers_of_a_killed_orchestrator(tmp_path: Path) -> None:
    process, out = hanging_sweep(tmp_path, transport="rpc")
    assert_confined(out)
    end(process, signal.SIGKILL)
    wait_until(lambda: containers(out) == [], timeout_s=30)


@pytest.mark.nightly
def test_two_sweeps_at_once(tmp_path: Path) -> None:
    spec = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 1}
    file = write_sweep(tmp_path / "short.yml", spec)
    both = [start_sweep(file, tmp_path / name, "--runtime", "docker") for name in ("a", "b")]
    for process in both:
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output


def hanging_sweep(tmp_path: Path, *options: str, transport: str = "gloo") -> tuple[Running, Path]:
    """A sweep whose runs hang, with both ranks of the first run up; and its results directory."""
    strategy = {"name": "fault_injection", "work_s": 300}
    base = {"strategy": strategy, "transport": transport, "nodes": 2, "timeout_s": 300}
    file, out = write_sweep(tmp_path / "hanging.yml", base, {"axes": {"seed": [1, 2, 3]}}), tmp_path / "out"
    process = start_sweep(file, out, "--runtime", "docker", *options)
    wait_until_training(out, runs=1)
    return process, out


def wait_until_training(out: Path, runs: int) -> None:
    """Wait until this many runs have a plan, and both ranks of the last one have started."""
    wait_until(lambda: len(list(out.glob("*/plan.json"))) == runs and len(event_files(out)) == 2)


def assert_confined(out: Path) -> None:
    """At least 25 statements hold for each container of the run in `out`."""
    for name in containers(out):
        if not name.endswith("-data-1"):  # it has exited
            check = assert_coordinator_confined if "-coordinator-" in name else assert_node_confined
            assert check(name) >= 25


def failures(out: Path) -> list[str]:
    return [str(row.cause) for row in results_in(out)]
