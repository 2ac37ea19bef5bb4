"""The contract of every runtime: outcomes of injected faults, and a training with equal weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from orchestrator.execution.sweep_runner import SweepRunner
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.support.runs import SMALL, RecordingDisplay
from trainer.spec.run_spec import RunSpec

Execute = Callable[..., RunResult]
TRANSPORTS = ["memory", "gloo", "rpc", "mpi"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("fault", "status", "cause"),
    [
        ("ok", "ok", None),
        ("flood", "ok", None),
        ("crash", "failed", "node 1: InjectedFault: crash requested"),
        ("kill", "failed", "killed by SIGKILL|node 1 .* exited without a report"),
        ("stall", "timeout", "stopped after 7 s; node 1 last seen training"),
    ],
)
def test_placebo(
    execute: Execute, tmp_path: Path, transport: str, fault: str, status: str, cause: str | None
) -> None:
    fault_injection = {"name": "fault_injection", "fault": fault, "rank": 1, "work_s": 0.3, "lines": 20_000}
    timeout_s = 7.0 if fault == "stall" else 60.0
    result = execute(strategy=fault_injection, transport=transport, nodes=3, timeout_s=timeout_s)
    assert result.status == status, result.cause
    if cause is None:
        assert result.cause is None
        assert len(result.ranks) == 3
    else:
        assert result.cause is not None
        assert re.search(cause, result.cause), result.cause
    run = tmp_path / "results" / result.key
    assert {path.name for path in run.iterdir()} >= {
        "spec.json",
        "plan.json",
        "result.json",
        "events.jsonl",
    }
    assert not (run / "live").exists()
    assert (run / "node-0.log").exists()
    if fault == "flood":
        log = "node-0" if transport == "memory" else "node-1"
        assert (run / f"{log}.log").read_text().count("fault_injection line") == 20_000


@pytest.mark.parametrize(
    ("strategy", "transport"), [("all_reduce", "gloo"), ("one_shot", "mpi"), ("all_reduce", "rpc")]
)
def test_same_weights_as_local_processes(
    execute: Execute, tmp_path: Path, strategy: str, transport: str
) -> None:
    """The same run with the same seed: bit for bit the same weights, wherever the nodes are."""
    fields = {"strategy": strategy, "transport": transport, "nodes": 2, "save_weights": True}
    result = execute(**fields)
    assert (result.status, result.cause) == ("ok", None)
    run = RunSpec.model_validate({**SMALL, **fields})
    paths = SweepPaths(tmp_path / "reference").run(run.key)
    reference = SweepRunner(
        LocalRuntime(), "local", SweepPaths(tmp_path / "reference"), tmp_path, RecordingDisplay()
    )
    assert reference.run(run).status == "ok"
    here = np.load(tmp_path / "results" / run.key / "weights.npy")
    assert np.array_equal(here, np.load(paths.weights))
    assert result.replicas_equal
    assert result.certificate is not None
    assert result.certificate.verified


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_several_ranks_in_a_node(execute: Execute, tmp_path: Path, transport: str) -> None:
    """Global rank = node × processes per node + local rank; the node's log has its ranks' lines alone."""
    fields = {"strategy": "all_reduce", "transport": transport, "nodes": 2, "processes_per_node": 2}
    result = execute(**fields)
    assert (result.status, result.cause, len(result.ranks)) == ("ok", None, 4)
    run = tmp_path / "results" / result.key
    for node, ranks in enumerate([{"0", "1"}, {"2", "3"}]):
        said = set(re.findall(r"(?m)^rank (\d) \| trained", (run / f"node-{node}.log").read_text()))
        assert said == ranks


def test_making_a_plan_starts_and_writes_nothing(runtime: str, tmp_path: Path) -> None:
    run = RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "transport": "gloo", "nodes": 2})
    paths = SweepPaths(tmp_path).run(run.key)
    plan = RUNTIMES.load(runtime)().plan(run, paths, tmp_path / "data")
    assert (plan.spec, plan.paths, plan.data_dir) == (run, paths, tmp_path / "data")
    assert plan.processes
    assert all(process.argv for process in plan.processes)
    assert list(tmp_path.iterdir()) == []
