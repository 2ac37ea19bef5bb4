"""States of a job, and what they mean for its run. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from orchestrator.runtimes.slurm.container import NO_CONTAINER, OTHER_SOURCES
from orchestrator.runtimes.slurm.script import NEAR_LIMIT, NOT_REQUEUED, NOT_SHARED, PREEMPTED, TOO_OFTEN
from orchestrator.runtimes.slurm.times import seconds_of

WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
}
RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
# Ends that the ranks do not cause, and what they are called.
ENDS = {
    "TIMEOUT": "reached its time limit of {limit}; `slurm: time` sets it",
    "PREEMPTED": "was preempted by another job",
    "NODE_FAIL": "lost {node}: node failure",
    "BOOT_FAIL": "lost a node that did not boot",
    "CANCELLED": "was cancelled",
    "DEADLINE": "reached its deadline",
    "OUT_OF_MEMORY": "ran out of memory; `slurm: arguments` can ask for more, such as --mem=8G",
    "REVOKED": "was revoked",
    "UNKNOWN": "is unknown to Slurm, which does not say how it has ended",
}
# What Slurm gives as a signal if the first node cannot open the job's log.
NO_OUTPUT = 53
# What srun writes if a node does not start its tasks.
LAUNCH_FAILURE = re.compile(r"^srun: error: Task launch for \S+ failed on node (\S+): (.+)$", re.MULTILINE)
# What srun writes about a node that has failed, which may still be up, but does not answer.
NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
REQUEUE_LINE = re.compile(r"^shardyard: requeue \d+$", re.MULTILINE)
# Why a job waits that will never start: nothing but another request helps.
HOPELESS = re.compile(
    r"PartitionConfig|PartitionNodeLimit|PartitionTimeLimit|BadConstraints|DependencyNeverSatisfied|"
    r"Invalid(Account|QOS)|(Account|QOS|Assoc)NotAllowed|JobLaunchFailure|launch_failed_requeued_held|"
    r"JobHeld(User|Admin)|(Assoc|QOS)\w*(MaxNodePerJobLimit|MaxWallDurationPerJobLimit|MaxCpuPerJobLimit)"
)
# What srun says after the error of a task.
FOLLOWING = re.compile(r"srun: error: \S+: tasks? |srun: Terminating|Try ")


@dataclass(frozen=True)
class JobState:
    """What Slurm says about a job.

    reason: why it waits or has failed, or "None". code, signal: those of the script's exit. limit,
    run_time: times as Slurm prints them. preempted: whether Slurm has ended it in favour of another job.
    """

    state: str
    reason: str = "None"
    code: int = 0
    signal: int = 0
    limit: str = "UNLIMITED"
    run_time: str = "00:00"
    preempted: bool = False

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def ended(self) -> bool:
        return self.state not in WAITING | RUNNING

    @property
    def is_overdue(self) -> bool:
        """Whether its time is over. Slurm starts no more steps then, but may end the job a minute later."""
        return seconds_of(self.limit) <= seconds_of(self.run_time) < math.inf

    @property
    def exit(self) -> int:
        """The exit code as that of a process: negative for a signal; 1 if the job failed without any."""
        if self.signal:
            return -self.signal
        return self.code or int(self.ended and self.state != "COMPLETED")


def parse_scontrol(text: str) -> JobState | None:
    """The state in the output of `scontrol --oneliner show job ID`; None if there is none."""
    fields = dict(re.findall(r"\b(JobState|Reason|ExitCode|TimeLimit|RunTime|PreemptTime)=(\S*)", text))
    if "JobState" not in fields:
        return None
    code, signal = _exit(fields.get("ExitCode", "0:0"))
    return JobState(
        fields["JobState"],
        fields.get("Reason", "None"),
        code,
        signal,
        fields.get("TimeLimit", "UNLIMITED"),
        fields.get("RunTime", "00:00"),
        fields.get("PreemptTime", "None")[:1].isdigit(),
    )


def parse_sacct(text: str) -> JobState | None:
    """The state in the output of `sacct --parsable2`; None if there is none.

    Its columns are State, Reason, ExitCode and Timelimit.

    A state may be followed by who has cancelled the job: `CANCELLED by 1000`.
    """
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 4 and fields[0]:
            code, signal = _exit(fields[2])
            return JobState(fields[0].split()[0], fields[1] or "None", code, signal, fields[3])
    return None


def _exit(text: str) -> tuple[int, int]:
    """Exit code and signal of `CODE:SIGNAL`."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def error_of(number: str, job: JobState, log: str = "") -> str | None:
    """What Slurm has done to a job, or why it cannot start; None if its ranks explain its end.

    Args:
        number: the number of the job. log: what the job has written.
    """
    if job.waits:
        if HOPELESS.search(job.reason):
            return f"job {number} cannot start: Slurm's reason is {job.reason}"
        return None
    if job.ended and job.preempted:
        return f"job {number} {ENDS['PREEMPTED']}"
    log = REQUEUE_LINE.split(log)[-1]  # of the last start
    if "DUE TO NODE FAILURE" in log:  # its state follows once the node answers
        return f"job {number} {ENDS['NODE_FAIL'].format(node=_failed_node(log))}"
    if job.state in ENDS:
        said = job.reason if job.reason not in ("None", "", "TimeLimit", "OutOfMemory") else ""
        reason = f" (Slurm's reason: {said})" if said else ""
        return f"job {number} {ENDS[job.state].format(limit=job.limit, node=_failed_node(log))}{reason}"
    if job.ended and job.code == NOT_SHARED and (failure := launch_failure(log)):
        return f"job {number} failed: {failure}"
    if job.ended and job.code == TOO_OFTEN:
        again = "`slurm: requeues` sets the limit; the same command resumes the run"
        return f"job {number} was requeued more often than is allowed; {again}"
    if job.ended and job.code == NOT_REQUEUED:
        return (
            f"job {number} has stopped at a checkpoint, and Slurm does not requeue it; "
            "the same command resumes the run"
        )
    if job.ended and (job.code == NOT_SHARED or job.signal == NO_OUTPUT):
        blind = sorted(set(re.findall(r"^shardyard: node (\S+) does not see (.+)$", log, re.MULTILINE)))
        nodes = " and ".join(dict.fromkeys(node for node, _ in blind)) or "a node"
        verb = "do" if " and " in nodes else "does"
        where = "--out must be on a file system that all nodes share"
        return f"{nodes} {verb} not see the directory of the run; {where}"
    if job.ended and job.code == OTHER_SOURCES:
        found = re.search(r"^shardyard: (image has sources .+)$", log, re.MULTILINE)
        said = found[1] if found else "image has other sources than the orchestrator"
        return f"{said}; build the image of `slurm: container` from this version of Shardyard"
    if job.ended and job.code == NO_CONTAINER:
        lines = [line.strip() for line in log.splitlines() if line.strip() and not FOLLOWING.match(line)]
        errors = [line for line in lines if re.search("error|fatal|unrecognized", line, re.IGNORECASE)]
        said = next(iter(errors or lines[-1:]), "see the log of the job")
        return f"the container does not start on each node: {said}"
    return None


def requeue_causes(log: str) -> list[str]:
    """Why Slurm started a job again, one for each time, from what the job has written."""
    found = []
    parts = REQUEUE_LINE.split(log)
    for part in parts[:-1]:
        stopped = re.search(r"^shardyard: stopped at a checkpoint: (.+)$", part, re.MULTILINE)
        slurm = re.search(r"\bCANCELLED AT \S+ DUE TO (.+?)(?:, SEE .*)? \*\*\*", part)
        if stopped and stopped[1] == NEAR_LIMIT:
            found.append("it stopped at a checkpoint before its time limit")
        elif stopped:
            found.append(f"it stopped at a checkpoint after {stopped[1]}, as before preemption")
        elif PREEMPTED in part:
            found.append("Slurm's reason is preemption")
        elif slurm:
            found.append(f"Slurm's reason is {slurm[1].lower()}")
        else:
            found.append("Slurm does not give a reason, as after the failure of its first node")
    return found


def _failed_node(log: str) -> str:
    """Which node has failed, if srun has written that."""
    failed = " and ".join(dict.fromkeys(NODE_FAILURE.findall(log)))
    return f"node {failed}" if failed else "a node"


def launch_failure(log: str) -> str | None:
    """Which node has not started its tasks, and why, if srun has written that; it may be lost."""
    found = LAUNCH_FAILURE.search(log)
    return f"{found[1]} did not start its tasks ({found[2]})" if found else None
