"""What the loss of an allocation means, and how many are started. Slurm is a stub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.slurm import allocation as module
from orchestrator.runtimes.slurm.allocation import MOST_LOST, Allocations, Loss, loss_of
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
    closed: bool = False

    @property
    def script(self) -> str | None:
        return self.plan.allocation

    def check_end(self) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> Allocations:
    monkeypatch.setattr(module, "Allocation", StubAllocation)
    return Allocations()


def plan(script: str = "a") -> LaunchPlan:
    spec = RunSpec.model_validate({"strategy": "serial"})
    return LaunchPlan(spec, RunPaths(Path("/x")), Path("/data"), [], allocation=script)


def ensure(allocations: Allocations, script: str = "a") -> tuple[Any, str | None]:
    return allocations.ensure(plan(script))


def test_runs_share_an_allocation_until_it_is_lost_or_too_small(allocations: Allocations) -> None:
    first, _ = ensure(allocations)
    assert ensure(allocations) == (first, None)
    first.loss = Loss("job 7 was cancelled", repeat=False)
    second, reason = ensure(allocations)
    assert (first.closed, reason) == (True, "job 7 was cancelled")
    assert second is not first
    third, reason = ensure(allocations, "of other nodes")
    assert (second.closed, reason) == (True, None)
    allocations.close()
    assert third.closed


def test_fruitless_allocations_are_limited(allocations: Allocations) -> None:
    for finished in (0, 0, 1, *([0] * MOST_LOST)):
        found, _ = ensure(allocations)
        found.loss, found.finished = Loss("job 7 was preempted", repeat=True), finished
    with pytest.raises(InputError, match="preempted"):
        ensure(allocations)
