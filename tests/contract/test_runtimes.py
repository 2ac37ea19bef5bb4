"""The contract of every runtime, warm and cold: injected faults, equal weights, several ranks in a node."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from orchestrator.results.store import SweepPaths
from orchestrator.runtimes import RUNTIMES
from tests.contract.conftest import Nodes
from tests.support.runs import SMALL, FinishedRun, RunCache
from trainer.spec.run_spec import RunSpec

Execute = Callable[..., FinishedRun]
LINES = 20_000


# Every fault on one transport, and every transport with one fault: one topology each.
# tests/integration/test_lost_nodes.py and the soaks have more combinations.
@pytest.mark.parametrize(
    ("fault", "transport", "status", "cause"),
    [
        ("flood", "gloo", "ok", None),
        ("crash", "rpc", "failed", "node 1: InjectedFault: "),
        ("kill", "mpi", "failed", "(?s)node 1.*SIGKILL"),
        ("stall", "memory", "timeout", r"stopped after \d+ s.*node 1"),
    ],
)
def test_injected_fault(
    execute: Execute, nodes: Nodes, fault: str, transport: str, status: str, cause: str | None
) -> None:
    strategy = {"name": "fault_injection", "fault": fault, "rank": 1, "work_s": 0.3, "lines": LINES}
    timeout_s = nodes.start_up_s() + 2 if fault == "stall" else 120.0
    if fault == "stall" and not nodes.cold:  # then warm nodes are up, and the limit is for the run alone
        execute(strategy="fault_injection", transport=transport, nodes=3)
    run = execute(strategy=strategy, transport=transport, nodes=3, timeout_s=timeout_s)
    assert run.result.status == status, run.result.cause
    if cause is None:
        assert run.result.cause is None
        assert len(run.result.ranks) == 3
        assert run.log("node-1").count("fault_injection line") == LINES
    else:
        assert re.search(cause, str(run.result.cause)), run.result.cause
    files = {path.name for path in run.directory.iterdir()}
    assert files >= {"spec.json", "plan.json", "result.json", "events.jsonl"}
    assert files & {"node-0.log", "node-1.log"}  # one may not have started, or have all ranks
    assert "live" not in files


@pytest.mark.parametrize(
    ("strategy", "transport"), [("all_reduce", "gloo"), ("one_shot", "mpi"), ("all_reduce", "rpc")]
)
def test_same_seed_same_weights_on_every_runtime(
    execute: Execute, run_cache: RunCache, strategy: str, transport: str
) -> None:
    """Bit for bit the weights of another run on local processes."""
    fields = {"strategy": strategy, "transport": transport, "nodes": 2}
    run = execute(**fields, save_weights=True)
    assert (run.result.status, run.result.cause) == ("ok", None)
    assert np.array_equal(run.weights, run_cache.get(**fields).weights)
    assert run.result.replicas_equal
    assert run.result.certificate is not None
    assert run.result.certificate.verified


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_several_ranks_in_a_node(execute: Execute, nodes: Nodes, transport: str) -> None:
    """Global rank = node × processes per node + local rank; a node's log has its ranks' lines only.

    Virtual nodes are one process, which has one log.
    """
    run = execute(strategy="all_reduce", transport=transport, nodes=2, processes_per_node=2)
    assert (run.result.status, run.result.cause, len(run.result.ranks)) == ("ok", None, 4)
    one_process = RUNTIMES.load(nodes.runtime).info.simulates_time
    logs = [{"0", "1", "2", "3"}] if one_process else [{"0", "1"}, {"2", "3"}]
    for node, ranks in enumerate(logs):
        assert set(re.findall(r"(?m)^rank (\d) \| ", run.log(f"node-{node}"))) == ranks


def test_making_a_plan_starts_and_writes_nothing(nodes: Nodes, tmp_path: Path) -> None:
    run = RunSpec.model_validate({**SMALL, "strategy": "all_reduce", "transport": "gloo", "nodes": 2})
    paths = SweepPaths(tmp_path).run(run.key)
    plan = RUNTIMES.load(nodes.runtime)(nodes.cold).plan(run, paths, tmp_path / "data")
    assert plan.warm is not nodes.cold
    assert (plan.spec, plan.paths, plan.data_dir) == (run, paths, tmp_path / "data")
    processes = [*plan.cluster.processes, *plan.processes]
    assert processes or plan.cluster.request
    assert all(process.argv for process in processes)
    assert json.loads(json.dumps(plan.as_dict()))["site"] == plan.site.model_dump(exclude_defaults=True)
    assert list(tmp_path.iterdir()) == []
