"""A run in a job of its own."""

from __future__ import annotations

import time

from orchestrator.runtimes.base import Cluster, RunState
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.live_run import LiveRun, make_live
from orchestrator.runtimes.slurm.jobs import SubmittedJob, beginning_of, cancel_jobs_of, submit
from orchestrator.runtimes.slurm.script import LAUNCHER_LOG, TOKEN
from orchestrator.runtimes.slurm.states import error_of, requeue_causes
from trainer.core.events import Event

# In which a job ends once a rank has failed: srun waits in vain for a slurmstepd that is gone. A job that
# may be requeued waits until Slurm has noticed the loss of a node, which takes 5 minutes by default.
FAILED_S, REQUEUE_S = 20.0, 600.0


class JobOfARun(Cluster):
    """A job that starts with its run and ends with it."""

    def __init__(self, plan: LaunchPlan) -> None:
        """Submit the job of a plan. Raises InputError if Slurm does not accept it."""
        directory = plan.paths.directory.resolve()
        cancel_jobs_of(directory)
        make_live(plan.paths, plan.spec.world_size)
        self._job = submit(plan, directory, plan.paths.live)

    def run(self, plan: LaunchPlan) -> SlurmRun:
        return SlurmRun(plan, self._job)

    def delete(self) -> None:
        self._job.cancel()


class SlurmRun(LiveRun):
    """The run of a job."""

    def __init__(self, plan: LaunchPlan, job: SubmittedJob) -> None:
        super().__init__(plan)
        self._job = job
        self._ends_by: float | None = None  # since a rank has failed
        self._failed_s = REQUEUE_S if plan.requeues else FAILED_S

    def wait(self, timeout_s: float) -> RunState:
        time.sleep(timeout_s)
        state = self._job.ask()
        late = self._ends_by is not None and time.monotonic() > self._ends_by
        log = self._log() if late or state.ended else ""
        error = self._trouble or error_of(self._job.number, state, log)
        if not state.ended:
            if state.waits:
                self._ends_by, late = None, False
            return RunState({"job": 1} if late else {}, 1, error, waiting=state.waits)
        return RunState({"job": state.exit}, 0, error)

    def _log(self) -> str:
        """The beginning of what the job has written."""
        return beginning_of(self._paths.directory / f"{LAUNCHER_LOG}.log")

    def new_events(self) -> list[Event]:
        events = super().new_events()
        for event in events:
            if event.kind == "start":  # of the next attempt
                self._ends_by = None
            elif event.kind in ("failed", "terminated", "died") and self._ends_by is None:
                self._ends_by = time.monotonic() + self._failed_s
        return events

    def stop(self) -> None:
        self._job.cancel()

    def collect(self) -> list[Event]:
        self.requeues = requeue_causes(self._log())
        (self._paths.live / TOKEN).unlink(missing_ok=True)
        return super().collect()
