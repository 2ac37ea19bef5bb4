"""The job with which doctor tries what starts MPI ranks on a Slurm cluster."""

from __future__ import annotations

import subprocess

import pytest

from orchestrator.runtimes.slurm.trial import RANKS_S, allocation, outcomes, script
from orchestrator.sweeps.slurm import SlurmOptions

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
