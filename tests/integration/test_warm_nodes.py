"""Mistakes of warm nodes: a lost, slow or grown parent that stays, processes that runs share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psutil
import pytest

from orchestrator.errors import InputError
from orchestrator.execution.clusters import Clusters
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.local.runtime import LocalCluster, LocalRuntime
from tests.support.nightly import nightly
from tests.support.processes import ended, private_network_missing, wait_until
from tests.support.runs import DuringTraining, RecordingDisplay, digests, execute_on
from trainer.spec.run_spec import RunSpec
from trainer.warm.process import GROWTH, ParentProcess

LONG: dict[str, Any] = {"strategy": "all_reduce", "nodes": 3, "epochs": 100}
Execute = Callable[..., RunResult]
Find = Callable[[], psutil.Process]


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with Clusters(LocalRuntime(shared_network=private_network_missing() is not None)) as started:
        yield started


@pytest.fixture
def execute(clusters: Clusters, tmp_path: Path) -> Execute:
    def execute(display: RecordingDisplay | None = None, **fields: Any) -> RunResult:
        return execute_on(clusters, "local", tmp_path, display, fields)

    return execute


@pytest.fixture
def warm_parent(clusters: Clusters) -> Callable[[], psutil.Process]:
    """Find the warm parent of the runtime; this process may have started others."""

    def find() -> psutil.Process:
        plan = clusters.plan(RunSpec(strategy="serial"), RunPaths(Path()), Path())
        name = plan.processes[0].argv[-1]
        command = ["-m", "trainer.warm", name]
        alive = [child for child in psutil.Process().children() if not ended(child)]
        found = [child for child in alive if child.cmdline()[-3:] == command]
        assert len(found) == 1
        return found[0]

    return find


def test_runs_share_one_parent_and_no_process(execute: Execute, warm_parent: Find) -> None:
    parents, ranks = set(), set()
    for seed in range(3):
        display = RecordingDisplay()
        result = execute(display, strategy="one_shot", nodes=2, seed=seed)
        assert (result.status, result.warm, result.nodes_replaced) == ("ok", True, None)
        parents.add(warm_parent())
        ranks |= {event.fields["pid"] for event in display.seen if event.kind == "start"}
        assert warm_parent().children() == []
    assert len(parents) == 1
    assert len(ranks) == 6


@pytest.mark.parametrize("transport", ["gloo", *nightly("mpi")])
def test_parent_killed_during_a_run_is_replaced_and_the_run_repeated(
    execute: Execute, warm_parent: Find, transport: str
) -> None:
    undisturbed = execute(**LONG, transport=transport)
    display = DuringTraining(lambda _: warm_parent().kill(), rank=0)
    result = execute(display, **LONG, transport=transport)
    assert (result.status, result.cause) == ("ok", None)
    assert "SIGKILL" in str(result.nodes_replaced)
    assert any("warm nodes" in flag for flag in result.flags)
    assert digests(result) == digests(undisturbed)


def test_parent_killed_or_stopped_between_runs_is_replaced(
    execute: Execute, warm_parent: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.warm.process.ANSWER_S", 0.5)
    for number, reason in ((signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "did not answer")):
        execute(strategy="one_shot", nodes=2)
        before = warm_parent()
        before.send_signal(number)
        result = execute(strategy="one_shot", nodes=2)
        assert (result.status, result.warm) == ("ok", True)
        assert reason in str(result.nodes_replaced)
        wait_until(lambda before=before: not before.is_running())


@pytest.mark.nightly
def test_parent_that_has_grown_is_replaced(
    execute: Execute, warm_parent: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(strategy="one_shot", nodes=2)
    before = warm_parent()
    assert {figure for figure, *_ in GROWTH} == {"descriptors", "other_mb"}
    monkeypatch.setattr("trainer.warm.process.GROWTH", [("descriptors", "descriptors", -1)])
    assert "descriptors" in str(execute(strategy="one_shot", nodes=2).nodes_replaced)
    assert not before.is_running()


def test_failed_run_costs_only_itself(execute: Execute, warm_parent: Find) -> None:
    fine = execute(strategy="one_shot", nodes=2)
    parent = warm_parent()
    for fault in ("crash", "kill"):
        strategy = {"name": "fault_injection", "fault": fault, "rank": 1}
        assert execute(strategy=strategy, transport="gloo", nodes=2).status == "failed"
    again = execute(strategy="one_shot", nodes=2)
    assert (again.status, again.nodes_replaced) == ("ok", None)
    assert digests(again) == digests(fine)
    assert warm_parent() == parent


def test_parent_that_never_starts_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.warm.process.LOOK_S", 0.02)
    for limit in ("START_S", "IDLE_START_S"):
        with monkeypatch.context() as patch:
            patch.setattr(f"trainer.warm.process.{limit}", 0.05)
            if limit == "IDLE_START_S":
                patch.setattr("psutil.Process.cpu_times", lambda _: SimpleNamespace(user=0.0, system=0.0))
            with pytest.raises(InputError, match="--cold"):
                LocalCluster(ParentProcess(f"shardyard-test-{uuid4().hex}", {}))
