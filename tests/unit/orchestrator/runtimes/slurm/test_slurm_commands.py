"""Mistakes in what Slurm's commands are asked and answer, and in the trial job of doctor. They are stubs."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.runtimes.slurm import commands
from orchestrator.runtimes.slurm.commands import MPI, QueuedJob, SlurmError
from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.states import JobState
from orchestrator.runtimes.slurm.times import seconds_of
from orchestrator.runtimes.slurm.trial import allocation, outcomes, script
from tests.support.processes import wait_until

Stub = Callable[..., None]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stub:
    """Writes a command that prints a text, to its standard error if it fails."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def write(name: str, text: str, code: int = 0) -> None:
        stream = f">&{2 if code else 1}"
        (tmp_path / name).write_text(f"#!/bin/sh\ncat {stream} <<TEXT\n{text}\nTEXT\nexit {code}\n")
        (tmp_path / name).chmod(0o755)

    return write


PMIX = """srun: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:195: can not load PMIx library
srun: error: Couldn't load specified plugin name for mpi/pmix: Plugin init() callback failed
srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types"""
ACCOUNT = "srun: error: Invalid account or account/partition combination specified"


def test_error_is_the_line_that_says_it(stub: Stub) -> None:
    hint = "sbatch: unrecognized option '--x'\nTry \"sbatch --help\" for more information\n"
    assert commands.message_of("sbatch: note\nsbatch: error: Bad thing\n") == "Bad thing"
    assert commands.message_of(hint) == "unrecognized option '--x'"
    assert "can not load PMIx library" in commands.message_of(PMIX, MPI)
    stub("sbatch", hint, code=1)
    with pytest.raises(SlurmError, match=r"^unrecognized option '--x'$"):
        commands.try_submission(["--x"])
    for name in commands.COMMANDS:
        stub(name, "sinfo: fatal: Could not establish a configuration source", code=1)
    assert "SLURM_CONF" in str(commands.unavailable_reason())
    stub("sinfo", "slurm_load_partitions: connect failure", code=1)
    assert "connect failure" in str(commands.unavailable_reason())


def test_pmix_that_srun_lists_need_not_load(stub: Stub) -> None:
    for said, code, trouble in (
        (PMIX, 1, "can not load PMIx"),
        (ACCOUNT, 1, "None"),
        ("starts", 0, "None"),
    ):
        stub("srun", said, code)
        assert trouble in str(commands.pmix_trouble())


def test_jobs_are_submitted_found_and_remembered(stub: Stub) -> None:
    stub("sbatch", "12;cluster")
    assert commands.submit(["sbatch", "--parsable", "x"]) == "12"
    stub("squeue", "12|shardyard 1 2/3 pid:[4]|/home/a|b")
    assert commands.queued() == [QueuedJob("12", "shardyard 1 2/3 pid:[4]", Path("/home/a|b"))]
    stub("scontrol", "slurm_load_jobs error: Invalid job id specified", code=1)
    stub("sacct", "Slurm accounting storage is disabled", code=1)
    assert commands.state("12") is None
    stub("sacct", "TIMEOUT|None|0:15|00:03:00")
    assert commands.state("12") == JobState("TIMEOUT", "None", 0, 15, "00:03:00")
    stub("scontrol", "Unable to contact slurm controller", code=1)
    with pytest.raises(SlurmError, match="Unable"):
        commands.state("12")


def test_nodes_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = enumerate(("a", "a", "b", "here"))
    lines = [f"NodeName=n{number} NodeHostName={host} CPUTot=8 " for number, host in hosts]
    monkeypatch.setattr(commands, "machine_cores", lambda: 2.0)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setattr(commands, "call", lambda *argv: "\n".join(lines))
    assert commands.host_cores() == 18


def test_variables_do_not_override_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PARTITION", "TIMELIMIT", "EXPORT", "NO_REQUEUE", "OPEN_MODE", "ARRAY_INX", "CLUSTERS"):
        monkeypatch.setenv(f"SBATCH_{name}", "theirs")
    kept = [name for name in commands.environment() if name.startswith("SBATCH_")]
    assert kept == ["SBATCH_CLUSTERS"]


@pytest.mark.parametrize(
    ("partitions", "lines", "minutes"),
    [
        (None, "debug*|infinite\nshort|10:00", None),
        (None, "debug|10:00\nlong*|2-00:00:00", 2880),
        ("long,short", "long*|1:30:00\nshort|10:30", 10),
        ("nope", "", None),
    ],
)
def test_longest_time_limit(
    monkeypatch: pytest.MonkeyPatch, partitions: str | None, lines: str, minutes: int | None
) -> None:
    monkeypatch.setattr(commands, "call", lambda *argv: lines)
    assert commands.longest_minutes(partitions) == minutes


@given(st.integers(0, 40), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_seconds_of_a_time_limit(days: int, hours: int, minutes: int, seconds: int) -> None:
    spans = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
    for text, units in (
        (f"{minutes}", ["minutes"]),
        (f"{minutes}:{seconds:02}", ["minutes", "seconds"]),
        (f"{hours}:{minutes:02}:{seconds:02}", ["hours", "minutes", "seconds"]),
        (f"{days}-{hours}", ["days", "hours"]),
        (f"{days}-{hours}:{minutes:02}", ["days", "hours", "minutes"]),
        (f"{days}-{hours:02}:{minutes:02}:{seconds:02}", [*spans]),
    ):
        assert seconds_of(text) == timedelta(**{unit: spans[unit] for unit in units}).total_seconds()
    assert seconds_of("UNLIMITED") == math.inf


def test_trial_starts_each_launch_in_an_allocation_of_the_site() -> None:
    options = SlurmOptions(partition="short", account="lab", time="1:00:00", arguments=["--qos=high"])
    tried, own = script(options, ["mpirun", "pmix"]), ("--output", "--open-mode", "--no-requeue")
    argv = allocation(options, tried)
    assert (argv[0], argv[-3:]) == ("salloc", ["bash", "-c", tried])
    assert {"--nodes=2", "--partition=short", "--account=lab", "--qos=high", "--time=2"} <= set(argv)
    assert not [each for each in argv if each.startswith(own)]
    stubs = "timeout() { case $* in *--mpi=pmix*) echo said; return 3; esac; }\nscontrol() { echo n7; }\n"
    done = subprocess.run(["bash"], input=stubs + tried, capture_output=True, text=True, check=True)
    assert outcomes(done.stdout, ["mpirun", "pmix"]) == {"mpirun": None, "pmix": "said"}


def test_outcomes_of_a_trial() -> None:
    output = f"\nshardyard-trial mpirun 124\n{ACCOUNT}\n{PMIX.splitlines()[2]}\nother\n\nshardyard-trial pmix 1\n"
    found = outcomes(output, ["mpirun", "pmix"])
    assert "30 s" in str(found["mpirun"])
    assert found["pmix"] == PMIX.splitlines()[2]
    assert outcomes("", ["pmix"])["pmix"]


def test_allocation_is_given_back_when_doctor_is_killed(tmp_path: Path) -> None:
    """salloc is a stub. It ends its job when it gets SIGTERM."""
    started, ended = tmp_path / "started", tmp_path / "ended"
    salloc = f"trap 'touch {ended}; exit' TERM; touch {started}; while :; do sleep 0.05; done"
    code = f"from orchestrator.runtimes.slurm import trial; trial._run(['bash', '-c', {salloc!r}])"
    with subprocess.Popen([sys.executable, "-c", code]) as doctor:
        wait_until(started.exists)
        doctor.send_signal(signal.SIGKILL)
    wait_until(ended.exists)
