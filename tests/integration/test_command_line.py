"""Mistakes of the command line: exit codes, resuming, interruption, and the orchestrator's death."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from orchestrator.cli import main
from tests.support.command_line import Running, end, orchestrator, refused, run_ok, start, start_sweep
from tests.support.nightly import nightly
from tests.support.processes import node_processes, wait_until
from tests.support.runs import event_files, results_in, write_sweep

END_S = 30.0  # for a sweep to stop its nodes; the runs would last 300 s
HANGS = {"name": "fault_injection", "work_s": 300}


@pytest.fixture
def short(tmp_path: Path) -> Path:
    dataset = {"name": "synthetic", "samples": 120, "test_samples": 32}
    base = {"dataset": dataset, "model": {"name": "mlp", "hidden": [8]}, "epochs": 1}
    all_reduce = {"base": {"strategy": "all_reduce", "transport": "gloo"}, "axes": {"nodes": [2]}}
    return write_sweep(tmp_path / "short.yml", base, {"strategy": "serial"}, all_reduce)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "long.yml"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def hanging(file: Path, out: Path, transport: str) -> Running:
    """A sweep that hangs in its second run, by seed, with both nodes started."""
    second = {"strategy": HANGS, "transport": transport, "nodes": 2, "seed": 2}
    base = {"strategy": "fault_injection", "timeout_s": 300}
    process = start_sweep(write_sweep(file, base, {"seed": 1}, second, {"seed": 3}), out)
    # One process with both ranks, two nodes, or mpirun and two nodes.
    up = {"memory": 1, "gloo": 2, "mpi": 3}[transport]
    wait_until(lambda: len(list(out.glob("*/result.json"))) == 1 and len(node_processes(out)) == up)
    wait_until(lambda: len(event_files(out)) == 2)
    return process


def test_failed_run_does_not_stop_the_sweep_and_is_repeated(file: Path, out: Path) -> None:
    crash = {"name": "fault_injection", "fault": "crash"}
    write_sweep(file, {}, {"strategy": crash}, {"strategy": "fault_injection", "seed": 1})
    run_ok("sweep", file, "--out", out, "--fail-fast", code=1)
    (first,) = results_in(out)
    assert str(first.cause).startswith("node 0: InjectedFault: ")
    run_ok("sweep", file, "--out", out, code=1)
    again = {result.status: result for result in results_in(out)}
    assert set(again) == {"failed", "ok"}
    assert again["failed"].started_at > first.started_at
    assert "InjectedFault" in (out / "results.csv").read_text()


@pytest.mark.parametrize(
    ("transport", "number"), [("gloo", signal.SIGINT), *nightly(("mpi", signal.SIGTERM))]
)
def test_interrupted_sweep_stops_all_nodes(
    file: Path, out: Path, transport: str, number: signal.Signals
) -> None:
    end(hanging(file, out, transport), number, END_S)
    assert node_processes(out) == []


@pytest.mark.parametrize("transport", [*nightly("memory"), "mpi"])
def test_nodes_end_when_the_orchestrator_is_killed(file: Path, out: Path, transport: str) -> None:
    end(hanging(file, out, transport), signal.SIGKILL, END_S)
    wait_until(lambda: not node_processes(out), END_S)

    file.write_text(file.read_text().replace('"work_s": 300', '"work_s": 0'))
    (before,) = results_in(out)
    run_ok("sweep", file, "--out", out)
    after = results_in(out)
    assert len(after) == 3
    assert before in after  # the finished run is not repeated


def test_interruption_while_packages_are_imported_has_no_traceback() -> None:
    process = start(orchestrator("sweep", "quickstart", "--dry-run"))
    wait_until(lambda: "pydantic_core" in Path(f"/proc/{process.pid}/maps").read_text())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=END_S)
    assert "Traceback" not in output
    # Python itself ends by SIGINT if it was in `exec`, as in the definition of a dataclass.
    assert process.returncode in (130, -signal.SIGINT), output


@pytest.mark.nightly
def test_clean_removes_what_a_killed_orchestrator_left(file: Path, out: Path) -> None:
    """A suspended node does not notice that its orchestrator has ended."""
    process = hanging(file, out, "gloo")
    for node in node_processes(out):
        os.kill(node.pid, signal.SIGSTOP)
    end(process, signal.SIGKILL, END_S)
    assert len(node_processes(out)) == 2
    run_ok("clean")
    assert node_processes(out) == []


def test_results_directory_is_locked_by_one_sweep_at_a_time(file: Path, out: Path) -> None:
    process = hanging(file, out, "memory")
    assert str(out) in refused("sweep", file, "--out", out)
    run_ok("sweep", file, "--out", out.with_name("other"), "--set", "strategy=fault_injection")
    assert process.poll() is None
    end(process, within_s=END_S)
    assert node_processes(out) == []


BAD = [
    (["sweep", "absent.yml"], ["absent.yml"]),
    (["sweep", "FILE", "--set", "lr=.nan"], ["--set lr=.nan", "nan"]),
    (["sweep", "FILE", "--set", "transport=mpi"], ["serial", "mpi", "memory, nccl"]),
    (["sweep", "FILE", "--nodes", "0"], ["--nodes 0"]),
    (["sweep", "FILE", "--nodes", "121"], ["121", "120", "synthetic"]),
    (["sweep", "FILE", "--runtime", "moon"], ["--runtime moon", "docker", "local"]),
    (["sweep", "FILE", "--out", "/proc/results"], ["/proc/results"]),
    (["sweep", "FILE", "--set", "dataset=cifar10", "--data-dir", "CORRUPT"], ["cifar-10-python.tar.gz"]),
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
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"half a download")
    paths = {"FILE": str(short), "CORRUPT": str(tmp_path)}
    arguments = [paths.get(argument, argument) for argument in arguments]
    if arguments[0] == "sweep" and "--out" not in arguments:
        arguments += ["--out", str(tmp_path / "out")]
    monkeypatch.setenv("SHARDYARD_RUNTIME", "local")
    monkeypatch.setattr(sys, "argv", ["orchestrator", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert [fact for fact in facts if fact not in error] == []
    assert not list(tmp_path.glob("out/*/result.json"))
