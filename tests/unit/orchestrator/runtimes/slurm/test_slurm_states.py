"""What Slurm says about jobs, as its commands print it, and the causes that follow."""

from __future__ import annotations

import pytest

from orchestrator.runtimes.slurm.script import PREEMPTED
from orchestrator.runtimes.slurm.states import (
    JobState,
    error_of,
    launch_failure,
    parse_sacct,
    parse_scontrol,
    requeue_causes,
)

# Slurm 22.05; shortened.
PENDING = (
    "JobId=8 JobName=shardyard/a b/JobState=RUNNING UserId=root(0) Priority=4294901752 Account=(null) "
    "QOS=(null) JobState=PENDING Reason=BeginTime Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 "
    "ExitCode=0:0 RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A Partition=debug\n"
)
ENDED = "JobId=9 JobName=x JobState={} Reason={} Requeue=0 ExitCode={} TimeLimit=00:03:00 Power=\n"


def test_waiting_job() -> None:
    state = parse_scontrol(PENDING)
    assert state == JobState("PENDING", "BeginTime", limit="UNLIMITED", run_time="00:00:00")
    assert state.waits
    assert not state.ended
    assert error_of("8", state) is None


@pytest.mark.parametrize(
    "reason",
    [
        *(
            "PartitionConfig",
            "PartitionNodeLimit",
            "PartitionTimeLimit",
            "BadConstraints",
            "InvalidAccount",
        ),
        *("InvalidQOS", "AssocMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "JobHeldUser"),
        "launch_failed_requeued_held",
    ],
)
def test_job_that_waits_in_vain(reason: str) -> None:
    error = error_of("8", JobState("PENDING", reason))
    assert error is not None
    assert reason in error
    assert "8" in error


@pytest.mark.parametrize(
    "reason", ["Resources", "Priority", "None", "ReqNodeNotAvail", "AssocGrpCpuLimit", "Licenses"]
)
def test_job_that_may_still_start(reason: str) -> None:
    assert error_of("8", JobState("PENDING", reason)) is None


@pytest.mark.parametrize(
    ("state", "reason", "code", "named"),
    [
        ("TIMEOUT", "TimeLimit", "0:15", ["time limit of 00:03:00", "slurm: time"]),
        ("PREEMPTED", "None", "0:15", ["preempted"]),
        ("NODE_FAIL", "NodeDown", "1:0", ["node failure", "NodeDown"]),
        ("CANCELLED", "None", "0:15", ["cancelled"]),
        ("OUT_OF_MEMORY", "OutOfMemory", "0:125", ["out of memory", "--mem"]),
        ("FAILED", "NonZeroExitCode", "66:0", ["does not see", "--out"]),
        ("FAILED", "RaisedSignal:53(Real-time_signal_19)", "0:53", ["does not see", "--out"]),
    ],
)
def test_ends_that_ranks_do_not_cause(state: str, reason: str, code: str, named: list[str]) -> None:
    job = parse_scontrol(ENDED.format(state, reason, code))
    assert job is not None
    assert job.ended
    assert job.exit != 0
    error = error_of("9", job)
    assert error is not None
    for each in named:
        assert each in error


@pytest.mark.parametrize(("code", "expected"), [("1:0", 1), ("0:9", -9), ("0:0", 1)])
def test_end_that_ranks_explain(code: str, expected: int) -> None:
    job = parse_scontrol(ENDED.format("FAILED", "NonZeroExitCode", code))
    assert job is not None
    assert (job.exit, error_of("9", job)) == (expected, None)


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED"])
def test_running_job(state: str) -> None:
    job = JobState(state)
    assert (job.waits, job.ended, job.exit, error_of("9", job)) == (False, False, 0, None)


def test_completed_job() -> None:
    job = parse_scontrol(ENDED.format("COMPLETED", "None", "0:0"))
    assert job is not None
    assert (job.ended, job.exit, error_of("9", job)) == (True, 0, None)


def test_nodes_that_do_not_see_the_directory_are_named() -> None:
    seen = "shardyard: node {} does not see /home/x\n"
    log = seen.format("n3") + "srun: error: n3\n" + seen.format("n2")
    error = error_of("9", JobState("FAILED", code=66), log)
    assert error is not None
    assert error.startswith("n2 and n3 do not see ")


@pytest.mark.parametrize("code", [1, 66])
def test_node_that_does_not_start_its_tasks_is_named(code: int) -> None:
    log = "srun: error: Task launch for StepId=9.0 failed on node n2: Communication connection failure\n"
    assert str(launch_failure(log)).startswith("n2 ")
    error = error_of("9", JobState("FAILED", code=code), log)
    assert ("n2" in str(error)) is (code == 66)
    assert launch_failure("srun: error: n2: task 1: Killed\n") is None


def test_accounting() -> None:
    assert parse_sacct("CANCELLED by 1000|None|0:15|00:05:00\n") == JobState(
        "CANCELLED", "None", 0, 15, "00:05:00"
    )
    assert parse_sacct("COMPLETED||0:0|UNLIMITED\n") == JobState("COMPLETED")
    assert parse_sacct("") is None
    assert parse_sacct("Slurm accounting storage is disabled\n") is None


@pytest.mark.parametrize(
    ("limit", "run_time", "overdue"),
    [
        ("00:01:00", "00:00:59", False),
        ("00:01:00", "00:01:00", True),
        ("1-00:00:00", "23:59:59", False),
        ("1-00:00:00", "1-00:00:02", True),
        ("UNLIMITED", "9-00:00:00", False),
    ],
)
def test_job_whose_time_is_over(limit: str, run_time: str, overdue: bool) -> None:
    text = (
        f"JobId=9 JobState=RUNNING Reason=None ExitCode=0:0 RunTime={run_time} TimeLimit={limit} Power=\n"
    )
    state = parse_scontrol(text)
    assert state is not None
    assert state.is_overdue is overdue


def test_no_such_job() -> None:
    assert parse_scontrol("") is None


CANCELLED = "slurmstepd-n1: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-24T01:55:16 DUE TO {} ***\n"
NODE_FAILED = CANCELLED.format("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")
STOPPED = "shardyard: stopped at a checkpoint: {}\n" + CANCELLED.format("JOB REQUEUE")


def test_causes_of_requeues() -> None:
    parts = (
        STOPPED.format("its time limit"),
        STOPPED.format("SIGTERM"),
        PREEMPTED + "\n",
        NODE_FAILED,
        "",
        "",
    )
    log = "".join(f"{part}shardyard: requeue {number}\n" for number, part in enumerate(parts[:-1], start=1))
    causes = requeue_causes(log + parts[-1])
    assert len(causes) == 5
    for cause, named in zip(
        causes, ("time limit", "SIGTERM", "preemption", "node failure", "not"), strict=True
    ):
        assert named in cause
    assert requeue_causes(NODE_FAILED) == []


@pytest.mark.parametrize(("code", "named"), [(69, "slurm: requeues"), (70, "does not requeue")])
def test_end_of_requeues_is_named(code: int, named: str) -> None:
    error = error_of("9", JobState("FAILED", "NonZeroExitCode", code))
    assert named in str(error)
    assert "resumes" in str(error)


def test_preempted_job_whose_ranks_exited_in_time() -> None:
    text = ENDED.format("FAILED", "NonZeroExitCode", "143:0") + "PreemptTime={}"
    for time, named in (("2026-11-24T02:09:25", True), ("None", False)):
        job = parse_scontrol(text.format(time))
        assert job is not None
        assert ("preempted" in str(error_of("9", job))) is named


def test_node_failure_before_the_job_has_ended() -> None:
    assert "lost a node: node failure" in str(error_of("4", JobState("COMPLETING"), NODE_FAILED))
    for job, log in ((JobState("NODE_FAIL"), ""), (JobState("COMPLETING"), NODE_FAILED)):
        named = error_of("4", job, f"srun: error: Node failure on n2\n{log}")
        assert "lost node n2: node failure" in str(named)
    earlier = NODE_FAILED + "shardyard: requeue 1\n"
    assert error_of("4", JobState("FAILED", code=1), earlier) is None
