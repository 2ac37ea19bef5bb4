"""What runtime virtual starts, and what it refuses before anything starts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.local.runtime import LocalRuntime
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.unit.report_support import a_run
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.virtual.options import VirtualOptions


def run(strategy: Any = "all_reduce", **fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": strategy, "nodes": 3, **fields})


@pytest.mark.parametrize("transport", ["gloo", "mpi", "rpc"])
def test_one_process_has_all_ranks_over_any_transport(transport: str, tmp_path: Path) -> None:
    runtime = VirtualRuntime(cold=True)
    runtime.configure(VirtualOptions(seconds_per_sample=0.5))
    spec = run(transport=transport, nodes=1000, node_speed={0: 0.5})
    plan = runtime.plan(spec, SweepPaths(tmp_path).run(spec.key), tmp_path)
    (process,) = plan.processes
    assert json.loads(process.environment["SHARDYARD_VIRTUAL"]) == {"seconds_per_sample": 0.5}
    # No launcher numbers the ranks, and no throttle slows a node down.
    assert process.environment["SHARDYARD_LAUNCHER"] == "none"
    assert "SHARDYARD_THROTTLED" not in process.environment
    assert process.argv[1:] == ["-m", "trainer"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"strategy": "ddp"}, "strategy ddp cannot run on virtual nodes; strategy all_reduce can"),
        ({"strategy": "rpc_split"}, "strategy rpc_split .*; strategy pipeline can"),
        ({"strategy": "fault_injection"}, "strategy fault_injection cannot run on virtual nodes$"),
        ({"threads": 2}, r"threads is 2, .*allowed: 1"),
        ({"transport": "nccl"}, "CPU cores.*other than nccl"),
        ({"faults": [{"kill": {"node": 1}, "at": {"epoch": 1}}]}, "no faults; leave it out"),
        ({"transport": "memory"}, "no network .*allowed: gloo, mpi or rpc"),
        ({"trace": "none"}, "trace is none, .*allowed: steps, full"),
        ({"debug": True}, "no debug; leave it out"),
        ({"transport": "gloo", "restarts": 1}, "no restarts; leave it out"),
        (
            {"transport": "gloo", "link": {"latency_ms": 5, "jitter_ms": 1, "loss": 0.01}},
            "link: jitter_ms and loss cannot be simulated",
        ),
        (
            {"strategy": "async_parameter_server"},
            r"order .* async_parameter_server .* set link\.latency_ms",
        ),
        (
            {"strategy": "async_parameter_server", "link": {"pairs": {"0-1": {"latency_ms": 5}}}},
            r"set link\.latency_ms",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_what_to_change(
    fields: dict[str, Any], reason: str
) -> None:
    found = VirtualRuntime().unsupported_reason(run(**fields))
    assert found is not None
    assert re.search(reason, found), found


def test_a_price_per_sample_is_that_of_a_whole_model() -> None:
    runtime = VirtualRuntime()
    assert runtime.unsupported_reason(run("pipeline")) is None
    runtime.configure(VirtualOptions(seconds_per_sample=0.1))
    assert "seconds_per_sample" in (runtime.unsupported_reason(run("pipeline")) or "")
    assert runtime.unsupported_reason(run()) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"strategy": "pipeline"}, "pipeline cuts it over ranks; allowed: full"),
        ({"model": {"name": "wide_resnet", "norm": "sync_batch"}}, "layers of wide_resnet .*allowed: full"),
        (
            {"strategy": {"name": "local_sgd", "aggregation": "median"}},
            "aggregation combines .*allowed: full",
        ),
        ({"target_accuracy": 0.9}, r"target_accuracy is 0\.9; leave it out"),
        ({"save_weights": True}, "save_weights is True; leave it out"),
        ({"checkpoint_epochs": 1}, "checkpoint_epochs is 1; leave it out"),
        ({"strategy": "zero2"}, "zero2 takes a part of it; allowed: full"),
    ],
)
def test_what_needs_a_trained_model_is_refused_where_nothing_is_trained(
    fields: dict[str, Any], reason: str
) -> None:
    runtime = VirtualRuntime()
    assert runtime.unsupported_reason(run(**fields)) is None
    runtime.configure(VirtualOptions(compute="sampled"))
    assert re.search(reason, str(runtime.unsupported_reason(run(**fields))))
    assert runtime.unsupported_reason(run()) is None


def test_there_are_at_most_as_many_worker_processes_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.runtimes.virtual.runtime.cores", lambda: 2.5)
    runtime = VirtualRuntime()
    runtime.configure(VirtualOptions(workers=2))
    assert runtime.unsupported_reason(run()) is None
    assert runtime.unsupported_reason(run(nodes=1, strategy="serial")) is None
    assert "workers is 2, but pipeline cuts the model" in (
        runtime.unsupported_reason(run("pipeline")) or ""
    )
    runtime.configure(VirtualOptions(workers=3))
    assert "workers is 3; allowed: 1 to 2" in (runtime.unsupported_reason(run()) or "")


def test_asynchronous_strategies_need_a_latency_and_nothing_else() -> None:
    link = {"latency_ms": 5, "bandwidth_mbit": 100}
    assert VirtualRuntime().unsupported_reason(run("async_parameter_server", link=link)) is None


def test_every_strategy_that_cannot_run_virtually_names_one_that_can() -> None:
    for name in STRATEGIES.entries:
        strategy = STRATEGIES.load(name)
        if not strategy.virtual and strategy.trains:
            assert strategy.equivalent is not None, name
            assert STRATEGIES.load(strategy.equivalent).virtual


def test_checkpoints_are_apart_from_those_of_local_processes(tmp_path: Path) -> None:
    spec = run(transport="gloo", checkpoint_epochs=1)
    paths = SweepPaths(tmp_path).run(spec.key)
    places = {
        runtime(cold=True).plan(spec, paths, tmp_path).processes[0].environment["SHARDYARD_CHECKPOINTS"]
        for runtime in (VirtualRuntime, LocalRuntime)
    }
    assert len(places) == 2


def test_only_virtual_nodes_are_more_than_1024(tmp_path: Path) -> None:
    runs = [run(nodes=1025)]
    VirtualRuntime().check(runs, tmp_path)
    with pytest.raises(InputError, match=r"nodes is 1,025; allowed: at most 1,024, or --runtime virtual"):
        LocalRuntime().check(runs, tmp_path)


def test_a_result_with_another_price_is_not_reused() -> None:
    runtime, result = VirtualRuntime(), a_run("all_reduce", nodes=2)
    assert runtime.can_reuse(result)
    runtime.configure(VirtualOptions(seconds_per_sample=0.1))
    assert not runtime.can_reuse(result)
    priced = {**result.environment, **runtime.environment()}
    assert runtime.can_reuse(result.model_copy(update={"environment": priced}))


def test_a_result_without_training_is_only_reused_where_nothing_is_trained() -> None:
    sampled, full, trained = VirtualRuntime(), VirtualRuntime(), a_run("all_reduce", nodes=2)
    sampled.configure(VirtualOptions(compute="sampled"))
    assert not sampled.can_reuse(trained)
    changes = {"environment": sampled.environment(), "runtime_info": sampled.info}
    played = trained.model_copy(update=changes)
    assert sampled.can_reuse(played)
    assert not full.can_reuse(played)
    assert not LocalRuntime().can_reuse(played)
