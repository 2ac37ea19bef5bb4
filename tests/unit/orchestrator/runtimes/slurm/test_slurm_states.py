"""Mistakes in what Slurm says about jobs: fields of its commands, causes, what is repeated, exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan
from orchestrator.runtimes.slurm import runtime as module
from orchestrator.runtimes.slurm.allocation import Loss, loss_of
from orchestrator.runtimes.slurm.runtime import MOST_LOST, SlurmRuntime
from orchestrator.runtimes.slurm.script import PREEMPTED
from orchestrator.runtimes.slurm.states import (
    JobState,
    error_of,
    parse_sacct,
    parse_scontrol,
    requeue_causes,
)
from trainer.spec.run_spec import RunSpec


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
BLIND = (
    "shardyard: node n3 does not see /home/x\nsrun: error: n3\nshardyard: node n2 does not see /home/x\n"
)
UNLAUNCHED = "srun: error: Task launch for StepId=9.0 failed on node n2: Communication connection failure\n"
NO_ENGINE = "slurmstepd-n2: error: execve(): apptainer: No such file\nsrun: error: n2: task 1: Exited\n"
NO_IMAGE = "srun: error: n1: task 0: Exited\nFATAL:   could not open image /x.sif\n"
NO_PYXIS = "srun: unrecognized option '--container-image=/x'\nTry \"srun --help\" for more information\n"


@pytest.mark.parametrize(
    ("state", "log", "cause", "repeat"),
    [
        (job("PENDING", "QOSMaxWallDurationPerJobLimit"), "", "job 9 cannot start: Slurm's reason is", False),
        (job("TIMEOUT", "TimeLimit", "0:15"), "", "job 9 reached its time limit of 00:03:00", True),
        (job("PREEMPTED", code="0:15"), "", "job 9 was preempted", True),
        (job("NODE_FAIL", "NodeDown"), "", "job 9 lost a node: node failure (Slurm", True),
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
        (failed("68:0"), NO_PYXIS, "the container does not start on each node: srun: unrec", False),
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


@pytest.mark.parametrize(
    ("state", "log", "exit_code"),
    [
        (job("PENDING", "Resources"), "", 0),
        (job("PENDING", "AssocGrpCpuLimit"), "", 0),
        (job("PENDING", "ReqNodeNotAvail"), "", 0),
        (job("RUNNING"), "", 0),
        (job("COMPLETING"), "", 0),
        (job("SUSPENDED"), "", 0),
        (job("COMPLETED"), "", 0),
        (failed("1:0"), "", 1),
        (failed("1:0"), UNLAUNCHED, 1),
        (failed("1:0"), NODE_FAILED + "shardyard: requeue 1\n", 1),
        (failed("0:9"), "", -9),
        (job("FAILED"), "", 1),
    ],
)
def test_ranks_explain_other_ends(state: JobState, log: str, exit_code: int) -> None:
    assert (state.exit, error_of("9", state, log)) == (exit_code, None)
    ended = state.state in ("COMPLETED", "FAILED")
    assert (state.waits, state.ended) == (state.state == "PENDING", ended)
    reason = f"job 9 ended with exit code {exit_code} (see job-9.log)"
    assert loss_of("9", state, None, log) == (Loss(reason, repeat=True) if ended else None)
    assert loss_of("9", state, "no heartbeat", log) == Loss("job 9 ended: no heartbeat", repeat=True)


def test_reasons_that_no_waiting_changes() -> None:
    hopeless = (
        "PartitionConfig PartitionNodeLimit PartitionTimeLimit BadConstraints InvalidAccount InvalidQOS"
    )
    hopeless += " AssocMaxNodePerJobLimit JobHeldUser launch_failed_requeued_held"
    for reason in hopeless.split():
        assert reason in str(error_of("9", job("PENDING", reason)))


def test_accounting() -> None:
    assert parse_scontrol("") is None
    cancelled = parse_sacct("CANCELLED by 1000|None|0:15|00:05:00\n")
    assert cancelled == JobState("CANCELLED", "None", 0, 15, "00:05:00")
    assert parse_sacct("COMPLETED||0:0|UNLIMITED\n") == JobState("COMPLETED")
    assert parse_sacct("Slurm accounting storage is disabled\n") is None


def test_job_is_overdue_when_its_time_is_over() -> None:
    for limit, run_time, overdue in (
        ("00:01:00", "00:00:59", False),
        ("00:01:00", "00:01:00", True),
        ("1-00:00:00", "23:59:59", False),
        ("UNLIMITED", "9-00:00:00", False),
    ):
        assert JobState("RUNNING", limit=limit, run_time=run_time).is_overdue is overdue


def test_causes_of_requeues() -> None:
    stopped = "shardyard: stopped at a checkpoint: {}\n" + CANCELLED.format("JOB REQUEUE")
    parts = (stopped.format("its time limit"), stopped.format("SIGTERM"), PREEMPTED + "\n", NODE_FAILED, "")
    log = "".join(f"{part}shardyard: requeue {number}\n" for number, part in enumerate(parts, start=1))
    named = (
        "before its time limit",
        "after SIGTERM",
        "preemption",
        "node failure",
        "does not give a reason",
    )
    for cause, part in zip(requeue_causes(log + NODE_FAILED), named, strict=True):
        assert part in cause


class StubAllocation:
    def __init__(self, plan: LaunchPlan) -> None:
        self.loss, self.finished = Loss("job 7 was preempted", repeat=True), 0


def test_fruitless_allocations_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Allocation", StubAllocation)
    runtime = SlurmRuntime()
    spec = RunSpec.model_validate({"strategy": "serial"})
    plan = LaunchPlan(spec, RunPaths(Path("/x")), Path("/data"), ClusterPlan(shared=True))
    for finished in (0, 0, 1, *([0] * MOST_LOST)):
        found: Any = runtime.create(plan)
        found.finished = finished
    with pytest.raises(InputError, match="preempted"):
        runtime.create(plan)
