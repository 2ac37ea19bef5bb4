"""What the loss of an allocation means, and how many are started. Slurm is a stub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan
from orchestrator.runtimes.slurm import runtime as module
from orchestrator.runtimes.slurm.allocation import Loss, loss_of
from orchestrator.runtimes.slurm.runtime import MOST_LOST, SlurmRuntime
from orchestrator.runtimes.slurm.states import JobState
from trainer.spec.run_spec import RunSpec


@pytest.mark.parametrize(
    ("state", "lost", "repeat", "named"),
    [
        (JobState("TIMEOUT", limit="00:10:00"), None, True, "time limit of 00:10:00"),
        (JobState("TIMEOUT"), "the leader received SIGTERM", True, "time limit"),
        (JobState("PREEMPTED"), "a warm node was lost", True, "preempted"),
        (JobState("NODE_FAIL"), None, True, "node failure"),
        (JobState("CANCELLED"), "a warm node was lost", False, "cancelled"),
        (JobState("OUT_OF_MEMORY"), None, False, "out of memory"),
        (JobState("FAILED", code=66), None, False, "--out"),
        (JobState("PENDING", "PartitionTimeLimit"), None, False, "PartitionTimeLimit"),
        (JobState("FAILED", code=1), "a warm node was lost (n2)", True, "a warm node was lost (n2)"),
        (JobState("RUNNING"), "no heartbeat", True, "no heartbeat"),
        (JobState("FAILED", code=2), None, True, "exit code 2"),
        (JobState("UNKNOWN"), None, True, "job 7"),
    ],
)
def test_loss(state: JobState, lost: str | None, repeat: bool, named: str) -> None:
    loss = loss_of("7", state, lost, "")
    assert loss is not None
    assert loss.repeat is repeat
    assert named in loss.reason
    assert (";" in loss.reason) is (not repeat and state.state in ("OUT_OF_MEMORY", "FAILED"))


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "SUSPENDED"])
def test_no_loss(state: str) -> None:
    assert loss_of("7", JobState(state), None, "") is None


@dataclass
class StubAllocation:
    plan: LaunchPlan
    loss: Loss | None = None
    finished: int = 0


def test_fruitless_allocations_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Allocation", StubAllocation)
    runtime = SlurmRuntime()
    spec = RunSpec.model_validate({"strategy": "serial"})
    plan = LaunchPlan(spec, RunPaths(Path("/x")), Path("/data"), ClusterPlan(shared=True))
    for finished in (0, 0, 1, *([0] * MOST_LOST)):
        found: Any = runtime.create(plan)
        found.loss, found.finished = Loss("job 7 was preempted", repeat=True), finished
    with pytest.raises(InputError, match="preempted"):
        runtime.create(plan)
