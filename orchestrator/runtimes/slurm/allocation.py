"""One job for all runs of a sweep: its leader (trainer/slurm_allocation) starts the ranks of each."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.results.store import write_atomic
from orchestrator.runtimes.base import Cluster, RunState
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.live_run import LiveRun, make_live
from orchestrator.runtimes.slurm import commands
from orchestrator.runtimes.slurm.allocation_script import log_of
from orchestrator.runtimes.slurm.jobs import SubmittedJob, answer, cancel_and_wait
from orchestrator.runtimes.slurm.script import LAUNCHER_LOG, SCRIPT, TOKEN, TOKEN_VARIABLE
from orchestrator.runtimes.slurm.states import JobState, error_of, launch_failure
from trainer.core.regular_files import RefusedFile, open_below
from trainer.slurm_allocation.messages import (
    ANSWERS,
    BEAT_S,
    POLL_S,
    REQUESTS,
    LeaderAnswer,
    LeaderRequest,
    LineReader,
    append,
)

# Ends of a job that say nothing about the run in progress, which is then repeated in a new allocation.
REPEATED = {"TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "UNKNOWN"}
STOP_S = 15.0  # for the leader to end a run: more than its CANCEL_S
END_S = 10.0  # for the leader to end the job
ENDING_S = 40.0  # for Slurm to end it: its KillWait is 30 s
LOG_BYTES = 2**16


@dataclass(frozen=True)
class Loss:
    """Why an allocation runs nothing more. repeat: whether its run is to be repeated in a new one."""

    reason: str
    repeat: bool


class Allocation(Cluster):
    """The job of a sweep.

    Attributes:
        loss: why it runs nothing more; None while it can.
        finished: runs that have ended in it.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        """Submit the job of a plan. Raises InputError if Slurm does not accept it."""
        self.finished = 0
        self.loss: Loss | None = None
        self._directory = plan.paths.allocation.resolve()
        # A job of an orchestrator on another machine that was killed.
        cancel_and_wait([job.number for job in answer(commands.queued) if job.directory == self._directory])
        (submit,) = plan.cluster.processes
        write_atomic(self._directory / TOKEN, submit.environment[TOKEN_VARIABLE])
        write_atomic(self._directory / SCRIPT, plan.cluster.script or "")
        for name in (REQUESTS, ANSWERS):
            (self._directory / name).write_text("")
        self._reader = LineReader(self._directory / ANSWERS, LeaderAnswer)
        self._answers: dict[tuple[str, int], LeaderAnswer] = {}
        self._runs = 0
        self.job = SubmittedJob(answer(lambda: commands.submit(submit.argv)))
        self._closed = threading.Event()  # ends the heartbeats
        self._deleted = False
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart.start()

    def run(self, plan: LaunchPlan) -> AllocatedRun:
        return AllocatedRun(self, plan)

    def ready(self) -> bool:
        self.check_end()
        self.failure = self.loss.reason if self.loss else None
        return self.loss is None

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            self._request(LeaderRequest(kind="heartbeat"))

    def _request(self, request: LeaderRequest) -> None:
        with suppress(OSError):  # the results directory was removed: without heartbeats the leader ends
            append(self._directory / REQUESTS, request)

    def hand_over(self, script: Path, log: Path, warm: bool) -> int:
        """Let the leader start a run. Returns its number."""
        self._runs += 1
        self._request(
            LeaderRequest(kind="run", run=self._runs, script=str(script), log=str(log), warm=warm)
        )
        return self._runs

    def cancel(self, run: int) -> None:
        """Let the leader end a run."""
        self._request(LeaderRequest(kind="cancel", run=run))

    def started(self, run: int) -> LeaderAnswer | None:
        """The leader's answer when it has started a run."""
        return self._answers.get(("started", run))

    def ended(self, run: int) -> LeaderAnswer | None:
        """The leader's answer when a run has ended."""
        return self._answers.get(("ended", run))

    def poll(self) -> None:
        """Read the leader's answers, and ask Slurm for the state of the job."""
        lost: str | None = None
        try:
            for each in self._reader.new():
                self._answers[each.kind, each.run] = each
                self.finished += each.kind == "ended" and each.reason is None
                lost = each.reason if each.kind == "lost" else lost
        except ValueError as error:
            lost = str(error)
        if self.loss:
            return
        state = self.job.wait_until_ended(ENDING_S) if lost else self.job.ask()
        self.loss = loss_of(self.job.number, state, lost, self._log())

    def check_end(self) -> None:
        """Find out whether the job is ending: no run starts then, and one may have failed because of it."""
        if self.loss is None and self.job.ask(at_once=True).state == "COMPLETING":
            self.job.wait_until_ended(ENDING_S)
        self.poll()
        state = self.job.state
        if self.loss is None and state.state == "RUNNING" and state.is_overdue:
            self.loss = loss_of(self.job.number, JobState("TIMEOUT", limit=state.limit), None, "")

    def lose(self, reason: str) -> None:
        """Let the run in progress be repeated in a new allocation."""
        self.loss = self.loss or Loss(reason, repeat=True)

    def _log(self) -> str:
        return _beginning(self._directory / log_of(self.job.number)) if self.job.state.ended else ""

    def abandon(self, reason: str) -> None:
        """End the job before the end of the sweep."""
        if not self._closed.is_set():
            self.loss = self.loss or Loss(f"job {self.job.number} was ended: {reason}", repeat=False)
        self.delete()

    def delete(self) -> None:
        """End the job. Idempotent. Raises InputError if it does not end."""
        if self._deleted:
            return
        self._closed.set()
        self._heart.join()
        self._request(LeaderRequest(kind="end"))
        if not self.job.ask(at_once=True).waits:
            self.job.wait_until_ended(END_S)
        self.job.cancel()
        for name in (REQUESTS, ANSWERS, TOKEN):
            (self._directory / name).unlink(missing_ok=True)
        self._deleted = True


def _beginning(path: Path) -> str:
    """The beginning of a log; empty if there is none."""
    try:
        with open_below(path.parent, path.name) as log:
            return log.read(LOG_BYTES).decode(errors="replace")
    except (FileNotFoundError, RefusedFile):
        return ""


def loss_of(number: str, state: JobState, lost: str | None, log: str) -> Loss | None:
    """Why an allocation runs nothing more; None if it can.

    Args:
        number, state: those of its job.
        lost: the reason of its leader.
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


class AllocatedRun(LiveRun):
    """A run in an allocation."""

    def __init__(self, allocation: Allocation, plan: LaunchPlan) -> None:
        """Hand the run over."""
        super().__init__(plan)
        self._allocation, self._stopped = allocation, False
        directory = plan.paths.directory.resolve()
        make_live(plan.paths, plan.spec.world_size)
        write_atomic(directory / SCRIPT, plan.script or "")
        log = plan.paths.log(LAUNCHER_LOG).resolve()
        self._number = allocation.hand_over(directory / SCRIPT, log, plan.warm)

    def wait(self, timeout_s: float) -> RunState:
        deadline = time.monotonic() + timeout_s
        self._allocation.poll()
        while not self._over() and time.monotonic() < deadline:
            time.sleep(POLL_S)
            self._allocation.poll()
        if (started := self._allocation.started(self._number)) and started.reason:
            self.replaced = started.reason
        ended = self._allocation.ended(self._number)
        if ended and ended.code:
            self._allocation.check_end()
            if failure := launch_failure(_beginning(self._paths.log(LAUNCHER_LOG))):
                self._allocation.lose(f"{failure} in job {self._allocation.job.number}")
        exits = {"step": ended.code} if ended else {}
        if ended and ended.reason and not self._allocation.loss:
            return RunState(exits, 0, ended.reason, nodes_lost=True)
        if (loss := self._allocation.loss) and not (ended and not ended.code):
            return RunState(exits, 0, loss.reason, nodes_lost=loss.repeat)
        return RunState(exits, 0 if ended else 1, self._trouble, waiting=started is None)

    def _over(self) -> bool:
        return bool(self._allocation.ended(self._number) or self._allocation.loss)

    def stop(self) -> None:
        """End the run. The allocation stays unless the leader does not end the run in time."""
        if self._stopped or self._over():
            return
        self._stopped = True
        if self._allocation.started(self._number):
            self._allocation.cancel(self._number)
            deadline = time.monotonic() + STOP_S
            while not self._over() and time.monotonic() < deadline:
                time.sleep(POLL_S)
                self._allocation.poll()
            if not self._over():
                self._allocation.abandon(f"a run did not end within {STOP_S:g} s")
        else:
            self._allocation.abandon("it had not started its run")
