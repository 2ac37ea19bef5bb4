"""Mistakes in the throttle: time that a quota allows, processes that stay stopped, its nodes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.runtimes.local.throttle import PERIOD_S, NodeLimit, Throttle
from trainer.spec.run_spec import RunSpec

TICK_S = PERIOD_S / 20


class Worker:
    """A process that uses `cores` cores whenever it is not stopped."""

    def __init__(self, cores: float) -> None:
        self._cores, self._used = cores, 0.0
        self.running = True

    def cpu_s(self) -> float:
        return self._used

    def signal(self, number: int) -> None:
        self.running = {signal.SIGSTOP: False, signal.SIGCONT: True}[signal.Signals(number)]

    def work(self, seconds: float) -> None:
        self._used += self._cores * seconds * self.running


@given(
    st.floats(0.05, 2.0),
    st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=1, max_size=3),
    st.sampled_from([TICK_S, PERIOD_S / 3, PERIOD_S * 2.5]),
    st.sampled_from([0.0, 5.0]),
)
def test_processes_share_the_quota(quota: float, cores: list[float], tick_s: float, idle_s: float) -> None:
    """Unused time is lost. A throttle that misses periods on a busy machine makes up for it later."""
    throttle, workers, stopped = Throttle(quota, 0.0), [Worker(each) for each in cores], 0.0
    throttle.add(workers[0])
    throttle.step(idle_s)
    for at in range(1, round(2 / tick_s) + 1):
        stopped += tick_s * throttle.stopped
        for worker in workers[max(at - 1, 1) : at]:  # one more
            throttle.add(worker)
        for worker in workers[:at]:
            assert worker.running is not throttle.stopped
            worker.work(tick_s)
        throttle.step(idle_s + at * tick_s)
    throttle.release(idle_s + 2)
    assert all(worker.running for worker in workers)
    used, wanted = sum(worker.cpu_s() for worker in workers), min(quota, sum(cores)) * 2
    assert (throttle.used_s, throttle.stopped_s) == pytest.approx((used, stopped))
    margin = sum(cores) * tick_s * 3 + quota * PERIOD_S
    assert used <= wanted + margin
    assert used >= wanted - margin or tick_s > PERIOD_S
    assert stopped == 0 or sum(cores) > quota - 1e-9 or tick_s > PERIOD_S


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_the_throttle_is_started_before_the_ranks(tmp_path: Path, transport: str) -> None:
    fields = {"nodes": 3, "processes_per_node": 2, "node_speed": [0.25, 1, 0.5]}
    run = RunSpec.model_validate({"strategy": "all_reduce", "transport": transport, **fields})
    plan = LocalRuntime(shared_network=True).plan(run, RunPaths(tmp_path / "run"), tmp_path)
    modules = ["orchestrator.runtimes.local.throttle" in each.argv for each in plan.processes]
    assert modules == [True, *[False] * (len(modules) - 1)]
    limits = [NodeLimit.parse(text) for text in plan.processes[0].argv[4:]]
    assert limits == [NodeLimit(0.5, "node-1", (0, 1)), NodeLimit(1.0, "node-3", (4, 5))]
