"""The job with which doctor tries what starts MPI ranks on a Slurm cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.trial import RANKS_S, allocation, outcomes, script

OPTIONS = SlurmOptions(partition="short", account="lab", time="1:00:00", arguments=["--qos=high"])


def test_allocation_uses_the_options_of_the_site() -> None:
    argv = allocation(OPTIONS, "true")
    assert argv[0] == "salloc"
    assert {"--nodes=2", "--partition=short", "--account=lab", "--qos=high", "--time=2"} <= set(argv)
    assert argv[-3:] == ["bash", "-c", "true"]
    assert not [each for each in argv if each.startswith(("--output", "--open-mode", "--no-requeue"))]


def test_script_is_that_of_bash_and_marks_each_launch() -> None:
    text = script(OPTIONS, ["mpirun", "pmix"])
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "--mpi=pmix" in text
    assert text.index("ppr:1:node") < text.index("--mpi=pmix")
    assert text.count(f"timeout {RANKS_S} ") == 2


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code_of_the_ranks_is_the_outcome(code: int) -> None:
    """The commands are stubs."""
    stubs = f"timeout() {{ echo said; return {code}; }}; scontrol() {{ echo node7; }}\n"
    done = subprocess.run(
        ["bash"],
        input=stubs + script(OPTIONS, ["mpirun", "pmix"]),
        capture_output=True,
        text=True,
        check=True,
    )
    expected = "said" if code else None
    assert outcomes(done.stdout, ["mpirun", "pmix"]) == {"mpirun": expected, "pmix": expected}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_allocation_is_given_back_when_doctor_is_killed(tmp_path: Path, number: int) -> None:
    """salloc is a stub. It ends its job when it gets SIGTERM."""
    started, ended = tmp_path / "started", tmp_path / "ended"
    stub = f"trap 'touch {ended}; exit' TERM; touch {started}; while :; do sleep 0.05; done"
    code = f"from orchestrator.runtimes.slurm import trial; trial._run(['bash', '-c', {stub!r}])"
    with subprocess.Popen([sys.executable, "-c", code]) as doctor:
        wait_for(started)
        doctor.send_signal(number)
    wait_for(ended)


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_outcomes() -> None:
    output = """
shardyard-trial mpirun 0
srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types
srun: error: another line

shardyard-trial pmix 1
"""
    assert outcomes(output, ["mpirun", "pmix"]) == {
        "mpirun": None,
        "pmix": "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types",
    }
    assert "30 s" in str(outcomes("\nshardyard-trial mpirun 124\n", ["mpirun"])["mpirun"])
    assert outcomes("", ["pmix"])["pmix"]
