"""Mistakes in what runtime virtual starts, refuses before anything starts, and reuses."""

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
from trainer.spec.run_spec import RunSpec
from trainer.strategies.local_sgd import LocalSGD
from trainer.virtual.options import VirtualOptions


def run(strategy: Any = "all_reduce", **fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": strategy, "nodes": 3, **fields})


def configured(**options: Any) -> VirtualRuntime:
    runtime = VirtualRuntime(cold=True)
    runtime.configure(VirtualOptions(**options))
    return runtime


def test_one_process_has_all_ranks_over_any_transport(tmp_path: Path) -> None:
    for transport in ("gloo", "mpi", "rpc"):
        spec = run(transport=transport, nodes=1025, node_speed={0: 0.5}, checkpoint_epochs=1)
        paths, runtime = SweepPaths(tmp_path).run(spec.key), configured(seconds_per_sample=0.5)
        (process,) = runtime.plan(spec, paths, tmp_path).processes
        assert json.loads(process.environment["SHARDYARD_VIRTUAL"]) == {"seconds_per_sample": 0.5}
        # No launcher numbers the ranks, and no throttle slows a node down.
        assert process.environment["SHARDYARD_LAUNCHER"] == "none"
        assert "SHARDYARD_THROTTLED" not in process.environment
        assert process.environment["SHARDYARD_CHECKPOINTS"].endswith("/virtual")
        assert process.argv[1:] == ["-m", "trainer"]
        runtime.check([spec], tmp_path)
        with pytest.raises(InputError, match=r"nodes is 1,025; allowed: at most 1,024, or --runtime virt"):
            LocalRuntime().check([spec], tmp_path)


SLOW = {"latency_ms": 5, "bandwidth_mbit": 100}
SAMPLED = {"compute": "sampled"}
HALVED = {"name": "ddp", "compression": "fp16"}
PARAMETER_SERVER = {"strategy": "async_parameter_server"}


@pytest.mark.parametrize(
    ("options", "fields", "reason"),
    [
        ({}, {}, "None"),
        ({}, {"strategy": "fsdp"}, "None"),
        (SAMPLED, {"strategy": "fsdp"}, "None"),
        ({"seconds_per_sample": 0.1}, {"strategy": HALVED}, "cost of a whole step, and ddp exchanges"),
        ({"seconds_per_sample": 0.1}, {"strategy": "ddp"}, "None"),
        (SAMPLED, {"strategy": HALVED}, "ddp exchanges within it"),
        (SAMPLED, {"strategy": "zero1"}, "None"),
        ({}, {"strategy": "rpc_split"}, "strategy rpc_split .*; strategy pipeline can"),
        ({}, {"strategy": "fault_injection"}, "strategy fault_injection cannot run on virtual nodes$"),
        ({}, {"threads": 2}, r"threads is 2, .*allowed: 1"),
        ({}, {"transport": "nccl"}, "CPU cores.*other than nccl"),
        ({}, {"faults": [{"kill": {"node": 1}, "at": {"epoch": 1}}]}, "no faults; leave it out"),
        ({}, {"transport": "memory"}, "no network .*allowed: gloo, mpi or rpc"),
        ({}, {"trace": "none"}, "trace is none, .*allowed: steps, full"),
        ({}, {"transport": "gloo", "restarts": 1}, "no restarts; leave it out"),
        ({}, {"link": {**SLOW, "jitter_ms": 1, "loss": 0.01}}, "link: jitter_ms and loss cannot be"),
        ({}, PARAMETER_SERVER, r"order .* async_parameter_server .* set link\.latency_ms"),
        ({}, {**PARAMETER_SERVER, "link": {"pairs": {"0-1": {"latency_ms": 5}}}}, r"set link\.latency_ms"),
        ({}, {**PARAMETER_SERVER, "link": SLOW}, "None"),
        ({}, {"strategy": "pipeline"}, "None"),
        ({"seconds_per_sample": 0.1}, {"strategy": "pipeline"}, "seconds_per_sample is the cost of"),
        ({"seconds_per_sample": 0.1}, {}, "None"),
        ({"workers": 2}, {}, "None"),
        ({"workers": 2}, {"strategy": "serial", "nodes": 1}, "None"),
        ({"workers": 2}, {"strategy": "pipeline"}, "workers is 2, but pipeline cuts the model"),
        ({"workers": 3}, {}, "workers is 3; allowed: 1 to 2"),
        (SAMPLED, {}, "None"),
        (SAMPLED, {"strategy": "pipeline"}, "pipeline cuts it over ranks; allowed: full"),
        (SAMPLED, {"model": {"name": "wide_resnet", "norm": "sync_batch"}}, "layers of wide_resnet .*full"),
        (SAMPLED, {"strategy": {"name": "local_sgd", "aggregation": "median"}}, "aggregation combines"),
        (SAMPLED, {"target_accuracy": 0.9}, r"target_accuracy is 0\.9; leave it out"),
        (SAMPLED, {"strategy": "zero2"}, "None"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused_with_what_to_change(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], fields: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr("orchestrator.runtimes.virtual.runtime.cores", lambda: 2.5)
    assert re.search(reason, str(configured(**options).unsupported_reason(run(**fields))))
    if options == SAMPLED:
        assert VirtualRuntime().unsupported_reason(run(**fields)) is None


def test_shards_of_the_state_cannot_be_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalSGD, "shards_state", True)
    reason = configured(**SAMPLED).unsupported_reason(run(strategy="local_sgd"))
    assert "local_sgd divides it; allowed: full" in str(reason)


def test_only_results_with_the_same_costs_are_reused() -> None:
    result = a_run("all_reduce", nodes=2)
    runtimes = [VirtualRuntime(), configured(seconds_per_sample=0.1), configured(compute="sampled")]
    for made in runtimes:
        environment = {**result.environment, **made.environment()}
        played = result.model_copy(update={"environment": environment, "runtime_info": made.info})
        assert [each.can_reuse(played) for each in runtimes] == [each is made for each in runtimes]
        assert LocalRuntime().can_reuse(played) is made.info.trains
