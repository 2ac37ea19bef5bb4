"""The command line as a person uses it: exit codes, going on, interruption, the orchestrator's death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import run_cli, start_sweep
from tests.support.processes import node_processes, wait_until
from tests.support.runs import HANGING_SWEEP

SHORT = """
name: short
base:
  dataset: {name: synthetic, samples: 120, test_samples: 32}
  model: {name: mlp, hidden: [8]}
  epochs: 1
blocks:
  - base: {strategy: serial}
  - base: {strategy: all_reduce, transport: gloo}
    axes: {nodes: [2]}
"""


@pytest.fixture
def short(tmp_path: Path) -> Path:
    file = tmp_path / "short.yml"
    file.write_text(SHORT)
    return file


def stalled(file: Path, out: Path, transport: str) -> subprocess.Popen[str]:
    """A sweep that hangs in its second run, with both nodes up."""
    file.write_text(HANGING_SWEEP.replace("TRANSPORT", transport))
    process = start_sweep(file, out)
    # One process with both ranks, two nodes, or mpirun and two nodes.
    up = {"memory": 1, "gloo": 2, "mpi": 3}[transport]
    wait_until(lambda: len(list(out.glob("*/result.json"))) == 1 and len(node_processes(out)) == up)
    wait_until(lambda: len(list(out.glob("*/live/rank-*.jsonl"))) == 2)
    return process


def test_sweep_report_and_going_on(short: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = run_cli("sweep", short, "--out", out)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "2 of 2 runs ok" in first.stdout
    for name in ("results.csv", "report.md", "report.html", "sweep.json"):
        assert (out / name).stat().st_size > 0
    for run in out.glob("*/result.json"):
        assert json.loads(run.read_text())["status"] == "ok"
        assert {path.name for path in run.parent.iterdir()} >= {"spec.json", "plan.json", "events.jsonl"}

    results = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    second = run_cli("sweep", short, "--out", out)
    assert second.returncode == 0
    assert second.stdout.count("already done") == 2
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")} == results

    (out / "report.html").unlink()
    again = run_cli("report", out)
    assert again.returncode == 0, again.stderr
    assert (out / "report.html").exists()


def test_a_failed_run_does_not_stop_the_sweep_and_is_tried_again(tmp_path: Path) -> None:
    file, out = tmp_path / "crash.yml", tmp_path / "out"
    file.write_text(
        "name: crash\nblocks:\n"
        "  - base: {strategy: {name: fault_injection, fault: crash}}\n"
        "  - base: {strategy: fault_injection}\n"
    )
    for _ in range(2):
        done = run_cli("sweep", file, "--out", out)
        assert done.returncode == 1
        assert "node 0: InjectedFault: crash requested" in done.stdout
        assert "1 of 2 runs ok, 1 not" in done.stdout
    assert "fault_injection crashed" in (out / "results.csv").read_text()

    fast = run_cli("sweep", file, "--out", tmp_path / "fast", "--fail-fast")
    assert fast.returncode == 1
    assert len(list((tmp_path / "fast").glob("*/result.json"))) == 1


def test_dry_run_starts_nothing(short: Path, tmp_path: Path) -> None:
    done = run_cli("sweep", short, "--out", tmp_path / "out", "--dry-run", "--nodes", "2,3")
    assert done.returncode == 0, done.stderr
    assert "3 runs planned; nothing was started" in done.stdout
    assert "all_reduce-gloo-n3" in done.stdout
    assert "-m trainer" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("transport", ["memory", "gloo", "mpi"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_all_and_says_how_to_go_on(
    tmp_path: Path, transport: str, number: signal.Signals
) -> None:
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = stalled(file, out, transport)
    process.send_signal(number)
    wait_until(lambda: not node_processes(out), timeout_s=5)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "everything is stopped" in output
    assert "run the same command" in output

    file.write_text(file.read_text().replace("work_s: 300", "work_s: 0"))
    again = run_cli("sweep", file, "--out", out)
    assert again.returncode == 0, again.stdout
    assert again.stdout.count("already done") == 1


@pytest.mark.parametrize("transport", ["memory", "gloo", "mpi"])
def test_when_the_orchestrator_is_killed_the_nodes_end(tmp_path: Path, transport: str) -> None:
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = stalled(file, out, transport)
    process.kill()
    process.communicate(timeout=30)
    wait_until(lambda: not node_processes(out), timeout_s=10)

    file.write_text(file.read_text().replace("work_s: 300", "work_s: 0"))
    again = run_cli("sweep", file, "--out", out)
    assert again.returncode == 0, again.stdout
    assert again.stdout.count("already done") == 1


def test_what_a_killed_orchestrator_left_is_removed_by_clean(tmp_path: Path) -> None:
    """A node that was stopped cannot notice that it is alone."""
    run_cli("clean")  # of what others have left on this machine
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = stalled(file, out, "gloo")
    for node in node_processes(out):
        os.kill(node.pid, signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=30)
    assert len(node_processes(out)) == 2
    assert "removed 2 process(es)" in run_cli("clean").stdout
    assert node_processes(out) == []


def test_a_results_directory_serves_one_sweep_at_a_time(tmp_path: Path) -> None:
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = stalled(file, out, "memory")
    try:
        second = run_cli("sweep", file, "--out", out)
        assert second.returncode == 2
        assert f"{out}: in use by another sweep" in second.stderr
        other = run_cli("sweep", file, "--out", tmp_path / "other", "--set", "strategy=fault_injection")
        assert other.returncode == 0, "another directory is not disturbed"
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


BAD = [
    (["sweep", "absent.yml"], "absent.yml: no such file"),
    (["sweep", "FILE", "--set", "lr=.nan"], "--set lr=.nan: nan is not allowed"),
    (["sweep", "FILE", "--set", "strategy=foo"], "unknown strategy; known: serial, one_shot"),
    (["sweep", "FILE", "--set", "transport=mpi"], "serial cannot use mpi; allowed: memory, nccl"),
    (["sweep", "FILE", "--nodes", "0"], "--nodes 0: 0 is not allowed"),
    (["sweep", "FILE", "--nodes", "121"], "121 nodes are more than the 120 training samples of synthetic"),
    (["sweep", "FILE", "--runtime", "moon"], "unknown runtime; known: docker, local"),
    (["sweep", "FILE", "--out", "/proc/results"], "/proc/results: cannot be written"),
    (["sweep", "FILE", "--set", "dataset=cifar10", "--data-dir", "CORRUPT"], "cifar-10-python.tar.gz"),
    (["sweep", "FILE", "--frobnicate"], "No such option"),
    (["report", "/proc"], "no sweep.json here"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_message_and_exit_code_2(
    short: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    corrupt = tmp_path / "corrupt"
    corrupt.mkdir()
    (corrupt / "cifar-10-python.tar.gz").write_bytes(b"half a download")
    places = {"FILE": str(short), "CORRUPT": str(corrupt)}
    arguments = [places.get(argument, argument) for argument in arguments]
    if arguments[0] == "sweep" and "--out" not in arguments:
        arguments += ["--out", str(tmp_path / "out")]
    done = run_cli(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("out/*/result.json"))


def test_doctor_says_what_can_run_here() -> None:
    done = run_cli("doctor")
    assert done.returncode == 0, done.stdout
    for subject in ("torch", "Open MPI", "Docker engine", "cores", "memory", "/dev/shm", "digits", "mnist"):
        assert subject in done.stdout
