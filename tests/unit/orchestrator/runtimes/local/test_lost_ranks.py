"""A local run that continues when a rank is lost: its processes are shell scripts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.launch_plan import LaunchPlan, Process
from orchestrator.runtimes.local.lost_ranks import LostRanks
from orchestrator.runtimes.local.runtime import LocalRun
from tests.support.processes import wait_until
from tests.unit.conftest import event
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec

RETURNS = {"kill": {"node": 1, "return_after": 0.1}, "at": {"epoch": 1}}
STARTED: dict[str, Any] = {"start": {"pid": 1}, "train_start": {"parameters": 1}}
FAULT = {"fault": 0, "action": "kill", "epoch": 1, "step": 0, "second": 0.5}
KILLED = "[ $SHARDYARD_INCARNATION ] || kill -9 $$; exec sleep 60"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    """A run whose node 1 is killed by a fault, and returns. A throttle runs beside the nodes."""
    spec = RunSpec.model_validate(
        {"strategy": "gossip", "transport": "gloo", "nodes": 2, "on_loss": "continue", "faults": [RETURNS]}
    )
    paths = RunPaths(tmp_path)
    scripts = ("exec sleep 60", KILLED)
    started = [
        Process(f"node {rank}", ["sh", "-c", script], {}, f"node-{rank}")
        for rank, script in enumerate(scripts)
    ]
    throttle = Process("throttle", ["sleep", "60"], {}, "throttle")
    plan = LaunchPlan(spec, paths, tmp_path, processes=[*started, throttle])
    paths.live.mkdir()
    events = [event(kind, rank, **fields) for rank in range(2) for kind, fields in STARTED.items()]
    for each in (*events, event("fault", 1, **FAULT)):
        with open(paths.live / f"rank-{each.rank}.jsonl", "a") as file:
            file.write(each.to_line() + "\n")
    run = LocalRun(plan, OutputLimits.of(spec), losses=LostRanks(plan, paths.live))
    yield run
    run.stop()


def test_exit_of_a_rank_that_returns_is_never_reported(run: LocalRun) -> None:
    """Also not by the look during which it is started again."""
    states = []

    def died() -> bool:
        states.append(run.wait(0.05))
        return any(each.kind == "died" for each in run.new_events())

    wait_until(died, timeout_s=10)
    after = time.monotonic() + 0.5
    while time.monotonic() < after:
        states.append(run.wait(0.05))
    assert {state.running for state in states} <= {1, 2}
    assert [state.exits for state in states if state.exits] == []
    assert states[-1].running == 2
