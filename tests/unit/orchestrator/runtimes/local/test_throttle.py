"""The throttle: a CPU quota for local processes, which no cgroup limits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

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


def worked(quota: float, cores: list[float], seconds: float, tick_s: float = TICK_S) -> float:
    """CPU seconds that workers used, with a throttle step every `tick_s`."""
    throttle, workers = Throttle(quota, 0.0), [Worker(each) for each in cores]
    for worker in workers:
        throttle.add(worker)
    for at in range(1, round(seconds / tick_s) + 1):
        for worker in workers:
            worker.work(tick_s)
        throttle.step(at * tick_s)
    throttle.release(seconds)
    assert all(worker.running for worker in workers)
    return sum(worker.cpu_s() for worker in workers)


@pytest.mark.parametrize("quota", [0.05, 0.25, 0.9, 1.5])
@pytest.mark.parametrize("cores", [[1.0], [1.0, 1.0], [2.0, 0.5]])
@pytest.mark.parametrize("tick_s", [TICK_S, PERIOD_S / 3])
def test_processes_share_the_quota(quota: float, cores: list[float], tick_s: float) -> None:
    wanted = min(quota, sum(cores)) * 100
    assert worked(quota, cores, 100, tick_s) == pytest.approx(wanted, abs=sum(cores) * tick_s + PERIOD_S)


@pytest.mark.parametrize("quota", [0.05, 0.25, 0.9])
def test_late_throttle_does_not_exceed_the_quota(quota: float) -> None:
    """On a busy machine the throttle may miss periods. Later periods compensate for the overuse."""
    late_s = PERIOD_S * 2.5
    assert worked(quota, [1.0], 100, late_s) <= quota * 100 + late_s


def test_process_below_its_quota_is_never_stopped() -> None:
    throttle, worker = Throttle(0.5, 0.0), Worker(0.4)
    throttle.add(worker)
    for at in range(1, 2000):
        worker.work(TICK_S)
        throttle.step(at * TICK_S)
        assert worker.running
    assert throttle.stopped_s == 0


def test_unused_quota_does_not_accumulate() -> None:
    """After 10 s idle, at most one period's quota is available, as for a container."""
    throttle, worker = Throttle(0.25, 0.0), Worker(1.0)
    throttle.add(worker)
    throttle.step(10.0)
    for at in range(1, 21):
        worker.work(TICK_S)
        throttle.step(10.0 + at * TICK_S)
    assert worker.cpu_s() <= 2 * 0.25 * PERIOD_S + TICK_S


def test_process_added_while_others_are_stopped_is_stopped() -> None:
    throttle, worker, late = Throttle(0.25, 0.0), Worker(1.0), Worker(1.0)
    throttle.add(worker)
    worker.work(PERIOD_S / 2)
    throttle.step(PERIOD_S / 2)
    assert throttle.stopped
    throttle.add(late)
    assert not late.running
    throttle.release(PERIOD_S)
    assert worker.running
    assert late.running
    assert throttle.stopped_s == pytest.approx(PERIOD_S / 2)


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_the_throttle_is_started_before_the_ranks(tmp_path: Path, transport: str) -> None:
    fields = {"nodes": 3, "processes_per_node": 2, "node_speed": [0.25, 1, 0.5]}
    run = RunSpec.model_validate({"strategy": "all_reduce", "transport": transport, **fields})
    first, *others = (
        LocalRuntime(shared_network=True).plan(run, RunPaths(tmp_path / "run"), tmp_path).processes
    )
    assert first.argv[2] == "orchestrator.runtimes.local.throttle"
    assert [NodeLimit.parse(text) for text in first.argv[4:]] == [
        NodeLimit(0.5, "node-1", (0, 1)),
        NodeLimit(1.0, "node-3", (4, 5)),
    ]
    assert not any("orchestrator.runtimes.local.throttle" in each.argv for each in others)
