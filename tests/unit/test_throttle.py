"""The throttle: a quota of cores for processes that nobody else holds back."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.runtimes.local.throttle import PERIOD_S, Throttle
from trainer.spec.run_spec import RunSpec

TICK_S = PERIOD_S / 20


class Worker:
    """A process that uses so many cores whenever it is not stopped."""

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
    """CPU seconds that workers had, with the throttle looking at them every `tick_s`."""
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
def test_processes_have_the_quota_together(quota: float, cores: list[float], tick_s: float) -> None:
    wanted = min(quota, sum(cores)) * 100
    assert worked(quota, cores, 100, tick_s) == pytest.approx(wanted, abs=sum(cores) * tick_s + PERIOD_S)


@pytest.mark.parametrize("quota", [0.05, 0.25, 0.9])
def test_they_have_no_more_of_it_when_the_throttle_comes_late(quota: float) -> None:
    """On a busy machine it may miss periods: what was overdrawn meanwhile is missing later."""
    late_s = PERIOD_S * 2.5
    assert worked(quota, [1.0], 100, late_s) <= quota * 100 + late_s


def test_who_wants_less_is_never_stopped() -> None:
    throttle, worker = Throttle(0.5, 0.0), Worker(0.4)
    throttle.add(worker)
    for at in range(1, 2000):
        worker.work(TICK_S)
        throttle.step(at * TICK_S)
        assert worker.running
    assert throttle.stopped_s == 0


def test_what_is_not_used_is_lost() -> None:
    """After 10 s of rest it is as with a container's quota: one period's worth, and no more."""
    throttle, worker = Throttle(0.25, 0.0), Worker(1.0)
    throttle.add(worker)
    throttle.step(10.0)
    for at in range(1, 21):
        worker.work(TICK_S)
        throttle.step(10.0 + at * TICK_S)
    assert worker.cpu_s() <= 2 * 0.25 * PERIOD_S + TICK_S


def test_who_comes_while_the_others_are_stopped_is_stopped_with_them() -> None:
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


@pytest.mark.parametrize(("transport", "variable"), [("gloo", "RANK"), ("mpi", "OMPI_COMM_WORLD_RANK")])
def test_the_throttle_is_started_before_the_ranks(tmp_path: Path, transport: str, variable: str) -> None:
    fields = {"nodes": 2, "processes_per_node": 2, "cpus": 2, "bottleneck_cpus": 0.25}
    run = RunSpec.model_validate({"strategy": "all_reduce", "transport": transport, **fields})
    first, *others = LocalRuntime().plan(run, RunPaths(tmp_path / "run"), tmp_path).processes
    assert first.argv[2:-1] == [
        "orchestrator.runtimes.local.throttle",
        "0.25",
        "node-2",
        variable,
        "2,3",
    ]
    assert not any("orchestrator.runtimes.local.throttle" in each.argv for each in others)
