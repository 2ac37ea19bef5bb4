"""Mistakes of traces of local runs, one of each kind of exchange: files that lack or break a law."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.results.records import RunResult
from tests.support.runs import execute
from tests.support.virtual_training import train_virtually
from tests.unit.trace_laws import assert_lawful, assert_matching, exchanges
from trainer.core.trace import Kind, Trace, read_trace, trace_path
from trainer.spec.run_spec import RunSpec

SMALL: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": 240, "test_samples": 64, "noise": 1.0},
    "epochs": 2,
    "nodes": 3,
    "timeout_s": 120,
}
WIDE = {"name": "mlp", "hidden": [512, 512, 128]}  # several buckets
SPLIT = {"split_points": ["conv2", "flatten"]}
MESSAGES = {Kind.SEND, Kind.SEND_WAIT, Kind.RECEIVE}
STARTED = {Kind.START_ALL_REDUCE, Kind.WAIT}
# The strategies and transports that the unit tests cannot run, and the kinds of records of their own.
RUNS: dict[str, tuple[dict[str, Any], set[Kind]]] = {
    "serial": ({"strategy": "serial", "nodes": 1}, set()),
    "all_reduce": ({"strategy": "all_reduce", "transport": "rpc"}, {Kind.ALL_REDUCE}),
    # It starts from rank 0's weights, and ends with the average.
    "gossip": ({"strategy": "gossip", "transport": "mpi"}, {Kind.SHIFT, Kind.BROADCAST, Kind.ALL_REDUCE}),
    "pipeline": ({"strategy": {"name": "pipeline", **SPLIT}, "transport": "mpi"}, MESSAGES),
    "ddp": ({"strategy": "ddp", "nodes": 2, "model": WIDE}, STARTED),
    "ddp_power_sgd": (
        {"strategy": {"name": "ddp", "compression": "power_sgd"}, "nodes": 2},
        {Kind.ALL_REDUCE},
    ),
    "zero1": ({"strategy": "zero1"}, {*STARTED, Kind.START_BROADCAST}),
    "fsdp": ({"strategy": "fsdp"}, {Kind.START_ALL_GATHER, Kind.WAIT, Kind.REDUCE_SCATTER}),
    **{
        f"pipeline_torch_{each}": (
            {"strategy": {"name": "pipeline_torch", "schedule": each, **SPLIT}},
            MESSAGES,
        )
        for each in ("gpipe", "1f1b")
    },
    "async_parameter_server": (
        {"strategy": {"name": "async_parameter_server", "max_staleness": 1}},
        {Kind.REQUEST, Kind.TAKE, Kind.RESPOND},
    ),
    "rpc_split": (  # the second stage has no parameters
        {"strategy": {"name": "rpc_split", "split_points": ["pool1", "conv2"]}, "nodes": 4},
        {Kind.SEND, Kind.RECEIVE},
    ),
}
MARKS = {Kind.WORK, Kind.EPOCH, Kind.STEP}


def traced(directory: Path, **fields: Any) -> tuple[RunResult, list[Trace]]:
    """A local run and the traces of its ranks."""
    run = RunSpec.model_validate({**SMALL, **fields})
    result = execute(run, directory)
    assert (result.status, result.cause) == ("ok", None)
    paths = [trace_path(directory / run.key, rank) for rank in range(run.world_size)]
    return result, [read_trace(path) for path in paths if path.exists()]


@pytest.mark.parametrize("mode", ["steps", "full"])
@pytest.mark.parametrize("name", RUNS)
def test_every_rank_of_a_local_run_leaves_a_lawful_trace(tmp_path: Path, name: str, mode: str) -> None:
    fields, kinds = RUNS[name]
    result, traces = traced(tmp_path, trace=mode, **fields)
    assert len(traces) == len(result.ranks)
    found: set[Kind] = set()
    for trace, rank in zip(traces, result.ranks, strict=True):
        assert rank.work_cpu_s is not None
        assert_lawful(trace, rank.bytes_sent, rank.work_cpu_s)
        assert (trace.records["kind"] == Kind.STEP).sum() == rank.steps
        found |= {Kind(kind) for kind in trace.records["kind"].tolist()}
    assert found - {Kind.BARRIER} == MARKS | kinds
    assert_matching(traces)


@pytest.mark.parametrize("name", ["ddp", "zero1", "fsdp"])
def test_the_exchanges_and_weights_of_torch_on_virtual_nodes_are_those_of_gloo(
    tmp_path: Path, name: str
) -> None:
    fields = {**SMALL, **RUNS[name][0], "transport": "gloo", "save_weights": True}
    _, traces = traced(tmp_path, **fields)
    virtual = train_virtually(RunSpec.model_validate(fields))
    assert [*map(exchanges, virtual.traces)] == [*map(exchanges, traces)]
    (weights,) = tmp_path.rglob("weights.npy")
    np.testing.assert_allclose(virtual.weights, np.load(weights), rtol=1e-4, atol=1e-6)


def test_started_all_reduces_are_handed_over_within_the_backward_pass(tmp_path: Path) -> None:
    _, traces = traced(tmp_path, **RUNS["ddp"][0])
    for trace in traces:
        kinds = trace.records["kind"].tolist()
        # The second step: DDP has rebuilt its buckets.
        first, second = [at for at, kind in enumerate(kinds) if kind == Kind.STEP][:2]
        count = kinds[first:second].count(Kind.START_ALL_REDUCE)
        assert count > 1
        buckets = [Kind.WORK, Kind.START_ALL_REDUCE] * count
        waits = [kind for kind in kinds[first + 1 + len(buckets) : second] if kind != Kind.WORK]
        assert kinds[first + 1 : first + 1 + len(buckets)] == buckets
        assert waits == [Kind.WAIT] * count
        assert kinds[second - 1] == Kind.WORK
