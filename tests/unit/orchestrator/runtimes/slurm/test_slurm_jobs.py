"""Mistakes in what Slurm's commands are asked and say: states and causes of jobs, times, trials."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import InputError
from orchestrator.runtimes.slurm import commands, trial
from orchestrator.runtimes.slurm import runtime as module
from orchestrator.runtimes.slurm.allocation import Loss, loss_of
from orchestrator.runtimes.slurm.commands import MPI, QueuedJob, SlurmError
from orchestrator.runtimes.slurm.options import SlurmOptions
from orchestrator.runtimes.slurm.runtime import MOST_LOST, SlurmRuntime
from orchestrator.runtimes.slurm.script import PREEMPTED
from orchestrator.runtimes.slurm.states import JobState, error_of, parse_scontrol, requeue_causes
from orchestrator.runtimes.slurm.times import seconds_of
from orchestrator.runtimes.slurm.trial import allocation, outcomes
from tests.support.processes import wait_until


def job(state: str, reason: str = "None", code: str = "0:0", preempted: str = "None") -> JobState:
    """A job as Slurm 22.05 shows it, shortened."""
    found = parse_scontrol(
        f"JobId=9 JobName=shardyard/a b/JobState=RUNNING QOS=(null) JobState={state} Reason={reason} "
        f"Requeue=0 ExitCode={code} RunTime=00:01:00 TimeLimit=00:03:00 PreemptTime={preempted} Power=\n"
    )
    assert found
    return found


def failed(code: str) -> JobState:
    return job("FAILED", "NonZeroExitCode", code)


CANCELLED = "slurmstepd-n1: error: *** JOB 9 ON n1 CANCELLED AT 2026-11-24T01:55:16 DUE TO {} ***\n"
NODE_FAILED = CANCELLED.format("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")
NODE_N2 = "srun: error: Node failure on n2\n"
BLIND = "shardyard: node n3 does not see /x\nsrun: error: n3\nshardyard: node n2 does not see /x\n"
UNLAUNCHED = "srun: error: Task launch for StepId=9.0 failed on node n2: Communication connection failure\n"
NO_ENGINE = "slurmstepd-n2: error: execve(): apptainer: No such file\nsrun: error: n2: task 1: Exited\n"
NO_IMAGE = "srun: error: n1: task 0: Exited\nFATAL:   could not open image /x.sif\n"


@pytest.mark.parametrize(
    ("state", "log", "cause", "repeat"),
    [
        (job("PENDING", "QOSMaxWallDurationPerJobLimit"), "", "job 9 cannot start: Slurm's reason", False),
        (job("TIMEOUT", "TimeLimit", "0:15"), "", "job 9 reached its time limit of 00:03:00", True),
        (job("PREEMPTED", code="0:15"), "", "job 9 was preempted", True),
        (job("NODE_FAIL", "NodeDown"), "", "job 9 lost a node: node failure (Sl", True),
        (job("NODE_FAIL"), NODE_N2, "job 9 lost node n2: node failure", True),
        (job("COMPLETING"), NODE_N2 + NODE_FAILED, "job 9 lost node n2: node failure", False),
        (job("UNKNOWN"), "", "job 9 is unknown", True),
        (job("CANCELLED", code="0:15"), "", "job 9 was cancelled", False),
        (job("OUT_OF_MEMORY", "OutOfMemory", "0:125"), "", "job 9 ran out of memory; `slurm:", False),
        (job("FAILED", code="143:0", preempted="2026-11-24T02:09:25"), "", "job 9 was preempted", False),
        (failed("66:0"), "", "a node does not see the directory of the run; --out", False),
        (failed("0:53"), "", "a node does not see the directory of the run; --out", False),
        (failed("66:0"), BLIND, "n2 and n3 do not see ", False),
        (failed("66:0"), UNLAUNCHED, "job 9 failed: n2 did not start its tasks (Communic", False),
        (failed("68:0"), NO_ENGINE, "the container does not start on each node: slurmstepd", False),
        (failed("68:0"), NO_IMAGE, "the container does not start on each node: FATAL:", False),
        (failed("68:0"), "", "the container does not start on each node: see the log", False),
        (failed("69:0"), "", "job 9 was requeued more often than is allowed; `slurm: req", False),
        (failed("70:0"), "", "job 9 has stopped at a checkpoint, and Slurm does not req", False),
    ],
)  # fmt: skip
def test_cause_is_what_slurm_has_done(state: JobState, log: str, cause: str, repeat: bool) -> None:
    assert str(error_of("9", state, log)).startswith(cause)
    loss = loss_of("9", state, "the leader received SIGTERM", log)
    assert loss
    assert loss.repeat is repeat
    assert loss.reason.startswith(cause.partition(";")[0])
    assert not (repeat and ";" in loss.reason)  # no advice where the sweep continues


def test_ranks_explain_other_ends() -> None:
    waiting = [(job("PENDING", reason), "", 0) for reason in ("Resources", "AssocGrpCpuLimit", "None")]
    running = [(job(state), "", 0) for state in ("RUNNING", "COMPLETING", "SUSPENDED")]
    running += [(job("RUNNING", preempted="2026-11-24T02:09:25"), "", 0)]  # in its grace time
    ended = [(job("COMPLETED"), "", 0), (failed("0:9"), "", -9), (failed("0:0"), "", 1)]
    logged = [(failed("1:0"), UNLAUNCHED, 1), (failed("1:0"), NODE_FAILED + "shardyard: requeue 1\n", 1)]
    for states in (waiting, running, [*ended, *logged]):
        for state, log, code in states:
            assert (state.exit, error_of("9", state, log)) == (code, None)
            assert (state.waits, state.ended) == (states is waiting, states not in (waiting, running))
            reason = f"job 9 ended with exit code {code} (see job-9.log)"
            assert loss_of("9", state, None, log) == (Loss(reason, repeat=True) if state.ended else None)
            assert loss_of("9", state, "silence", log) == Loss("job 9 ended: silence", repeat=True)


def test_reasons_that_no_waiting_changes() -> None:
    hopeless = "PartitionConfig PartitionNodeLimit PartitionTimeLimit BadConstraints InvalidAccount "
    hopeless += "InvalidQOS AssocMaxNodePerJobLimit JobHeldUser launch_failed_requeued_held"
    for reason in hopeless.split():
        assert reason in str(error_of("9", job("PENDING", reason)))


def test_job_is_overdue_when_its_time_is_over() -> None:
    times = [("00:01:00", "00:00:59"), ("00:01:00", "00:01:00"), ("UNLIMITED", "9-00:00:00")]
    jobs = [JobState("RUNNING", limit=limit, run_time=run_time) for limit, run_time in times]
    assert [each.is_overdue for each in jobs] == [False, True, False]


def test_causes_of_requeues() -> None:
    stopped = "shardyard: stopped at a checkpoint: {}\n" + CANCELLED.format("JOB REQUEUE")
    parts = (stopped.format("its time limit"), stopped.format("SIGTERM"), PREEMPTED + "\n", NODE_FAILED, "")
    log = "".join(f"{part}shardyard: requeue {number}\n" for number, part in enumerate(parts, start=1))
    named = ("before its time limit", "after SIGTERM", "preemption", "node failure", "not give a reason")
    for cause, part in zip(requeue_causes(log + NODE_FAILED), named, strict=True):
        assert part in cause


def test_fruitless_allocations_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {"loss": Loss("job 7 was preempted", repeat=True), "finished": 0}
    monkeypatch.setattr(module, "Allocation", lambda plan: MagicMock(**lost))
    runtime, plan = SlurmRuntime(), MagicMock()
    for finished in (0, 0, 1, *([0] * MOST_LOST)):
        allocated: Any = runtime.create(plan)
        allocated.finished = finished
    with pytest.raises(InputError, match="preempted"):
        runtime.create(plan)


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
    for said, code, trouble in ((PMIX, 1, "can not load"), (ACCOUNT, 1, "None"), ("starts", 0, "None")):
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
    stub("sacct", "COMPLETED||0:0|UNLIMITED")
    assert commands.state("12") == JobState("COMPLETED")
    stub("sacct", "CANCELLED by 1000|None|0:15|00:03:00")
    assert commands.state("12") == JobState("CANCELLED", "None", 0, 15, "00:03:00")
    stub("scontrol", "Unable to contact slurm controller", code=1)
    with pytest.raises(SlurmError, match="Unable"):
        commands.state("12")


def test_variables_do_not_override_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PARTITION", "TIMELIMIT", "EXPORT", "NO_REQUEUE", "OPEN_MODE", "ARRAY_INX", "CLUSTERS"):
        monkeypatch.setenv(f"SBATCH_{name}", "theirs")
    kept = [name for name in commands.environment() if name.startswith("SBATCH_")]
    assert kept == ["SBATCH_CLUSTERS"]


def test_longest_time_limit_is_that_of_all_chosen_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    for partitions, lines, minutes in (
        (None, "debug*|infinite\nshort|10:00", None),
        (None, "debug|10:00\nlong*|2-00:00:00", 2880),
        ("long,short", "long*|1:30:00\nshort|10:30", 10),
        ("nope", "", None),
    ):
        monkeypatch.setattr(commands, "call", lambda *argv, lines=lines: lines)
        assert commands.longest_minutes(partitions) == minutes


@given(st.integers(0, 40), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_seconds_of_a_time_limit(days: int, hours: int, minutes: int, seconds: int) -> None:
    at = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    assert seconds_of(f"{days}-{hours}:{minutes:02}:{seconds:02}") == at
    assert seconds_of(f"{days}-{hours}:{minutes:02}") == at - seconds
    assert seconds_of(f"{days}-{hours}") == at - seconds - 60 * minutes
    assert seconds_of(f"{hours}:{minutes:02}:{seconds:02}") == at - 86_400 * days
    assert seconds_of(f"{minutes}:{seconds:02}") == 60 * minutes + seconds
    assert seconds_of(f"{minutes}") == 60 * minutes
    assert seconds_of("UNLIMITED") == math.inf


def test_trial_has_an_allocation_with_the_options_of_the_site() -> None:
    options = SlurmOptions(partition="short", account="lab", time="1:00:00", arguments=["--qos=high"])
    argv = allocation(options, "true")
    assert (argv[0], argv[-3:]) == ("salloc", ["bash", "-c", "true"])
    assert {"--nodes=2", "--partition=short", "--account=lab", "--qos=high", "--time=2"} <= set(argv)
    assert not [each for each in argv if each.startswith(("--output", "--open-mode", "--no-requeue"))]
    found = outcomes(
        "\nshardyard-trial mpirun 124\nsaid\nshardyard-trial pmix 3\n", ["mpirun", "pmix", "x"]
    )
    late = "its ranks do not end within 30 s"
    assert found == {"mpirun": late, "pmix": "said", "x": "the trial ended before it"}


def test_allocation_is_given_back_when_doctor_is_killed(tmp_path: Path) -> None:
    """salloc is a stub. It ends its job when it gets SIGTERM."""
    started, ended = tmp_path / "started", tmp_path / "ended"
    salloc = f"trap 'touch {ended}; exit' TERM; touch {started}; for i in {{1..900}}; do sleep 0.05; done"
    doctor = os.fork()
    if not doctor:
        with suppress(BaseException):
            trial._run(["bash", "-c", salloc])
        os._exit(1)
    wait_until(started.exists, timeout_s=20)
    os.kill(doctor, signal.SIGKILL)
    os.waitpid(doctor, 0)
    wait_until(ended.exists, timeout_s=20)
