"""The command line: exit codes, resuming, interruption, and the orchestrator's death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.results.records import RunResult
from orchestrator.results.store import read_result
from tests.support.command_line import (
    PROJECT,
    environment,
    heed_signals,
    orchestrator,
    run_cli,
    start_sweep,
)
from tests.support.nightly import nightly
from tests.support.processes import node_processes, wait_until
from tests.support.runs import HANGING_SWEEP, event_files

END_S = 30.0  # for a sweep to stop its nodes; the runs would last 300 s

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


def hanging(file: Path, out: Path, transport: str) -> subprocess.Popen[str]:
    """A sweep that hangs in its second run, with both nodes started."""
    file.write_text(HANGING_SWEEP.replace("TRANSPORT", transport))
    process = start_sweep(file, out)
    # One process with both ranks, two nodes, or mpirun and two nodes.
    up = {"memory": 1, "gloo": 2, "mpi": 3}[transport]
    wait_until(lambda: len(list(out.glob("*/result.json"))) == 1 and len(node_processes(out)) == up)
    wait_until(lambda: len(event_files(out)) == 2)
    return process


def test_failed_run_does_not_stop_the_sweep_and_is_repeated(tmp_path: Path) -> None:
    file, out = tmp_path / "crash.yml", tmp_path / "out"
    file.write_text(
        "name: crash\nblocks:\n"
        "  - base: {strategy: {name: fault_injection, fault: crash}}\n"
        "  - base: {strategy: fault_injection, seed: 1}\n"
    )

    def results() -> dict[str, RunResult]:
        found = [read_result(path) for path in out.glob("*/result.json")]
        return {result.status: result for result in found if result}

    assert run_cli("sweep", file, "--out", out, "--fail-fast").returncode == 1
    first = results()
    assert set(first) == {"failed"}
    assert str(first["failed"].cause).startswith("node 0: InjectedFault: ")

    assert run_cli("sweep", file, "--out", out).returncode == 1
    again = results()
    assert set(again) == {"failed", "ok"}
    assert again["failed"].started_at > first["failed"].started_at
    assert "InjectedFault" in (out / "results.csv").read_text()


def test_dry_run_starts_nothing(short: Path, tmp_path: Path) -> None:
    done = run_cli("sweep", short, "--out", tmp_path / "out", "--dry-run", "-v", "--nodes", "2,3")
    assert done.returncode == 0, done.stderr
    for expected in ("serial-memory-n1", "all_reduce-gloo-n2", "all_reduce-gloo-n3", "warm/client.py"):
        assert expected in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("transport", "number"), [("gloo", signal.SIGINT), *nightly(("mpi", signal.SIGTERM))]
)
def test_interrupted_sweep_stops_all_nodes(tmp_path: Path, transport: str, number: signal.Signals) -> None:
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = hanging(file, out, transport)
    process.send_signal(number)
    wait_until(lambda: not node_processes(out), END_S)
    output, _ = process.communicate(timeout=END_S)
    assert process.returncode == 130, output


@pytest.mark.parametrize("transport", [*nightly("memory"), "mpi"])
def test_nodes_end_when_the_orchestrator_is_killed(tmp_path: Path, transport: str) -> None:
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = hanging(file, out, transport)
    process.kill()
    process.communicate(timeout=END_S)
    wait_until(lambda: not node_processes(out), END_S)

    file.write_text(file.read_text().replace("work_s: 300", "work_s: 0"))
    (before,) = [path.stat().st_mtime_ns for path in out.glob("*/result.json")]
    assert run_cli("sweep", file, "--out", out).returncode == 0
    after = [path.stat().st_mtime_ns for path in out.glob("*/result.json")]
    assert len(after) == 3
    assert before in after  # the finished run is not repeated


def test_interruption_while_packages_are_imported_has_no_traceback() -> None:
    process = subprocess.Popen(
        orchestrator("sweep", "quickstart", "--dry-run"),
        cwd=PROJECT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_signals,
    )
    wait_until(lambda: "pydantic_core" in Path(f"/proc/{process.pid}/maps").read_text())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=END_S)
    assert "Traceback" not in output
    # Python itself ends by SIGINT if it was in `exec`, as in the definition of a dataclass.
    assert process.returncode in (130, -signal.SIGINT), output


@pytest.mark.nightly
def test_clean_removes_what_a_killed_orchestrator_left(tmp_path: Path) -> None:
    """A suspended node does not notice that its orchestrator has ended."""
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = hanging(file, out, "gloo")
    for node in node_processes(out):
        os.kill(node.pid, signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=END_S)
    assert len(node_processes(out)) == 2
    assert run_cli("clean").returncode == 0
    assert node_processes(out) == []


def test_results_directory_is_locked_by_one_sweep_at_a_time(tmp_path: Path) -> None:
    file, out = tmp_path / "long.yml", tmp_path / "out"
    process = hanging(file, out, "memory")
    second = run_cli("sweep", file, "--out", out)
    assert second.returncode == 2
    assert str(out) in second.stderr
    other = run_cli("sweep", file, "--out", tmp_path / "other", "--set", "strategy=fault_injection")
    assert other.returncode == 0
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=END_S)
    assert process.returncode == 130, output
    assert node_processes(out) == []


BAD = [
    (["sweep", "absent.yml"], ["absent.yml"]),
    (["sweep", "FILE", "--set", "lr=.nan"], ["--set lr=.nan", "nan"]),
    (["sweep", "FILE", "--set", "strategy=foo"], ["strategy", "serial", "one_shot"]),
    (["sweep", "FILE", "--set", "transport=mpi"], ["serial", "mpi", "memory, nccl"]),
    (["sweep", "FILE", "--nodes", "0"], ["--nodes 0"]),
    (["sweep", "FILE", "--nodes", "121"], ["121", "120", "synthetic"]),
    (["sweep", "FILE", "--runtime", "moon"], ["--runtime moon", "docker", "local"]),
    (["sweep", "FILE", "--out", "/proc/results"], ["/proc/results"]),
    (["sweep", "FILE", "--set", "dataset=cifar10", "--data-dir", "CORRUPT"], ["cifar-10-python.tar.gz"]),
    (["sweep", "FILE", "--frobnicate"], ["--frobnicate"]),
    (["report", "/proc"], ["/proc", "sweep.json"]),
]


@pytest.mark.parametrize(("arguments", "facts"), BAD)
def test_input_errors_exit_with_code_2(
    short: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    facts: list[str],
) -> None:
    corrupt = tmp_path / "corrupt"
    corrupt.mkdir()
    (corrupt / "cifar-10-python.tar.gz").write_bytes(b"half a download")
    paths = {"FILE": str(short), "CORRUPT": str(corrupt)}
    arguments = [paths.get(argument, argument) for argument in arguments]
    if arguments[0] == "sweep" and "--out" not in arguments:
        arguments += ["--out", str(tmp_path / "out")]
    monkeypatch.setenv("SHARDYARD_RUNTIME", "local")
    monkeypatch.setattr(sys, "argv", ["orchestrator", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    for fact in facts:
        assert fact in error
    assert not list(tmp_path.glob("out/*/result.json"))


def test_doctor_reports_every_subject() -> None:
    done = run_cli("doctor")
    assert done.returncode == 0, done.stdout
    for subject in ("torch", "Open MPI", "Docker engine", "cores", "memory", "/dev/shm", "digits", "mnist"):
        assert subject in done.stdout
