"""One job for all runs of a sweep: its script is the coordinator of its nodes."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.runtimes.base import RunState
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.led import LedCluster, LedRun
from orchestrator.runtimes.slurm.allocation_script import log_of
from orchestrator.runtimes.slurm.jobs import beginning_of, cancel_jobs_of, submit
from orchestrator.runtimes.slurm.script import TOKEN
from orchestrator.runtimes.slurm.states import JobState, error_of, launch_failure
from trainer.node.channel import ANSWERS, REQUESTS, Request, file_channel

# Ends of a job that say nothing about the run in progress, which is then repeated in a new allocation.
REPEATED = {"TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "UNKNOWN"}
BEAT_S = 2.0  # between heartbeats of the orchestrator
END_S = 10.0  # for the coordinator to end the job
ENDING_S = 40.0  # for Slurm to end it: its KillWait is 30 s


@dataclass(frozen=True)
class Loss:
    """Why an allocation runs nothing more. repeat: whether its run is to be repeated in a new one."""

    reason: str
    repeat: bool


class Allocation(LedCluster):
    """The job of a sweep.

    Attributes:
        loss: why it runs nothing more; None while it can.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        """Submit the job of a plan. Raises InputError if Slurm does not accept it."""
        self.loss: Loss | None = None
        self._directory = plan.paths.allocation.resolve()
        cancel_jobs_of(self._directory)
        self._directory.mkdir(exist_ok=True)
        super().__init__(file_channel(self._directory), shared=True)
        self.job = submit(plan, self._directory, self._directory)
        self._closed = threading.Event()  # ends the heartbeats
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart.start()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            self._request("beat")

    def _request(self, kind: str) -> None:
        with suppress(OSError):  # the results directory was removed: without heartbeats the job ends
            self.channel.post(Request.model_validate({"kind": kind}))

    def is_waiting(self, run: LedRun) -> bool:
        return not run.is_up

    def defect(self) -> str | None:
        """Find out whether the job is ending: no run starts then, and one may have failed because of it."""
        if self.loss is None and self.job.ask(at_once=True).state == "COMPLETING":
            self.job.wait_until_ended(ENDING_S)
        self._look(None)
        state = self.job.state
        if self.loss is None and state.state == "RUNNING" and state.is_overdue:
            self.loss = loss_of(self.job.number, JobState("TIMEOUT", limit=state.limit), None, "")
        return self.loss.reason if self.loss else None

    def _look(self, failure: str | None) -> None:
        """Ask Slurm for the state of the job. failure: of its coordinator."""
        if self.loss is None:
            state = self.job.wait_until_ended(ENDING_S) if failure else self.job.ask()
            self.loss = loss_of(self.job.number, state, failure, self._log())

    def trouble(self, run: LedRun) -> RunState | None:
        self._look(run.failure)
        return RunState({}, 0, self.loss.reason, nodes_lost=self.loss.repeat) if self.loss else None

    def loss_after(self, run: LedRun, disconnected: bool) -> RunState | None:
        if self.defect() is None and (disconnected or not run.agents):
            log = beginning_of(self._directory / log_of(self.job.number))
            if failure := launch_failure(log):
                self.loss = Loss(f"{failure} in job {self.job.number}", repeat=True)
        return RunState({}, 0, self.loss.reason, nodes_lost=self.loss.repeat) if self.loss else None

    def _log(self) -> str:
        return beginning_of(self._directory / log_of(self.job.number)) if self.job.state.ended else ""

    def delete(self) -> None:
        """End the job. Idempotent. Raises InputError if it does not end."""
        if self.deleted:
            return
        self._closed.set()
        self._heart.join()
        self._request("end")
        if not self.job.ask(at_once=True).waits:
            self.job.wait_until_ended(END_S)
        self.job.cancel()
        for name in (REQUESTS, ANSWERS, TOKEN):
            (self._directory / name).unlink(missing_ok=True)
        self.deleted = True


def loss_of(number: str, state: JobState, lost: str | None, log: str) -> Loss | None:
    """Why an allocation runs nothing more; None if it can.

    Args:
        number, state: those of its job.
        lost: how its coordinator has failed.
        log: what the job has written, once it has ended.
    """
    cause = error_of(number, state, log)
    if cause and state.state in REPEATED:
        return Loss(cause.partition(";")[0], repeat=True)  # without advice: the sweep continues
    if cause:
        return Loss(cause, repeat=False)
    if lost:
        return Loss(f"job {number} ended: {lost}", repeat=True)
    if state.ended:
        return Loss(f"job {number} ended with exit code {state.exit} (see {log_of(number)})", repeat=True)
    return None
