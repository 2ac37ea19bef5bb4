"""Jobs that Shardyard has submitted: their state, and their end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from orchestrator.errors import InputError
from orchestrator.results.store import write_atomic
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.slurm import commands
from orchestrator.runtimes.slurm.commands import SlurmError
from orchestrator.runtimes.slurm.script import SCRIPT, TOKEN, TOKEN_VARIABLE
from orchestrator.runtimes.slurm.states import JobState
from trainer.core.regular_files import RefusedFile, open_below

T = TypeVar("T")

POLL_S = 1.0  # between questions to the controller, which all users share
CANCEL_S = 60.0  # in which Slurm ends a cancelled job: its KillWait is 30 s
FORGOTTEN_S = 30.0  # without an answer about a job
LOG_BYTES = 2**16


def answer(question: Callable[[], T]) -> T:
    """Slurm's answer to a question. Raises InputError."""
    try:
        return question()
    except SlurmError as error:
        raise InputError(f"Slurm: {error}") from error


def cancel_and_wait(numbers: list[str]) -> None:
    """Cancel jobs, and return when they have ended. Raises InputError if they do not."""
    if not numbers:
        return
    try:
        commands.cancel(numbers)
        deadline = time.monotonic() + CANCEL_S
        while left := [job.number for job in commands.queued() if job.number in numbers]:
            if time.monotonic() > deadline:
                raise InputError(
                    f"Slurm has not ended these jobs: {', '.join(left)}; scancel {' '.join(left)}"
                )
            time.sleep(POLL_S / 2)
    except SlurmError as error:
        raise InputError(f"scancel {' '.join(numbers)} failed: {error}") from error


def cancel_jobs_of(directory: Path) -> None:
    """Cancel the jobs of a directory, and wait until they have ended. Raises InputError.

    They are of an orchestrator on another machine that was killed: its lock is gone, its job may run.
    """
    cancel_and_wait([job.number for job in answer(commands.queued) if job.directory == directory])


def submit(plan: LaunchPlan, directory: Path, checked: Path) -> SubmittedJob:
    """Submit the job of a plan. Raises InputError if Slurm does not accept it.

    Args:
        plan: its cluster is the job.
        directory: that of the job's script.
        checked: the directory that its nodes must see, with the token of the plan.
    """
    (process,) = plan.cluster.processes
    write_atomic(checked / TOKEN, process.environment[TOKEN_VARIABLE])
    write_atomic(directory / SCRIPT, plan.cluster.request[SCRIPT])
    return SubmittedJob(answer(lambda: commands.submit(process.argv)))


def beginning_of(log: Path) -> str:
    """The beginning of a log; empty if there is none."""
    try:
        with open_below(log.parent, log.name) as file:
            return file.read(LOG_BYTES).decode(errors="replace")
    except (FileNotFoundError, RefusedFile):
        return ""


class SubmittedJob:
    """A job, and what Slurm says about it.

    Attributes:
        state: the state of the job as of the last answer.
    """

    def __init__(self, number: str) -> None:
        self.number, self.state = number, JobState("PENDING")
        self._asked_at = self._answered_at = time.monotonic()

    def ask(self, at_once: bool = False) -> JobState:
        """Its state, which is at most POLL_S old, or new."""
        now = time.monotonic()
        if self.state.ended or (not at_once and now - self._asked_at < POLL_S):
            return self.state
        self._asked_at = now
        found = None
        with suppress(SlurmError):  # a controller that is being restarted
            found = commands.state(self.number)
        if found:
            self.state, self._answered_at = found, now
        elif now - self._answered_at > FORGOTTEN_S:
            self.state = JobState("UNKNOWN")
        return self.state

    def wait_until_ended(self, within_s: float) -> JobState:
        """Its state when it has ended, or after a time."""
        deadline = time.monotonic() + within_s
        while not self.ask(at_once=True).ended and time.monotonic() < deadline:
            time.sleep(POLL_S / 5)
        return self.state

    def cancel(self) -> None:
        """End it, if it has not ended. Raises InputError if it does not end."""
        if not self.state.ended:
            cancel_and_wait([self.number])
            self.state = JobState("CANCELLED")
