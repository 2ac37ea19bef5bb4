"""Interrupted runs of local processes resume from their checkpoints."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from orchestrator.results.store import read_result
from tests.integration.test_lost_nodes import SignalRank
from tests.support.command_line import run_cli, start_sweep
from tests.support.nightly import nightly
from tests.support.processes import node_processes, wait_until
from tests.support.runs import RunCache
from trainer.core.events import read_events

Execute = Callable[..., RunResult]

LENET = {"name": "lenet", "dropout": 0.3}
RUN = {
    "strategy": "ddp",
    "transport": "gloo",
    "nodes": 3,  # with 2 nodes, sums would not depend on the order of DDP's buckets
    "dataset": {"name": "synthetic", "samples": 2000, "test_samples": 50, "noise": 1.0},
    "model": LENET,
    "optimizer": "momentum",
    "lr": 0.01,
    "batch_size": 10,
    "checkpoint_steps": 20,
    "epochs": 4,
}


def only_row(out: Path) -> RunResult:
    (path,) = out.glob("*/result.json")
    row = read_result(path)
    assert row
    return row


@pytest.mark.parametrize(
    "fields",
    [{}, *nightly(*({"strategy": each, "optimizer": "adam"} for each in ("zero1", "fsdp")))],
    ids=str,
)
def test_sweep_whose_orchestrator_was_killed_resumes_to_the_same_weights(
    fields: dict[str, str], run_cache: RunCache, tmp_path: Path
) -> None:
    run = {**RUN, **fields}
    file, out = tmp_path / "one.yml", tmp_path / "out"
    file.write_text(json.dumps({"name": "one", "base": run, "blocks": [{}]}))
    sweep = start_sweep(file, out)
    # In the second epoch: one epoch has been evaluated and another is in progress.
    wait_until(lambda: list(out.glob("*/checkpoints/local/epoch-00001-step-*/rank-2.pt")))
    sweep.kill()
    sweep.communicate()
    wait_until(lambda: not node_processes(out))
    assert not list(out.glob("*/result.json"))

    assert run_cli("sweep", file, "--out", out).returncode == 0
    resumed, whole = only_row(out), run_cache.get(**run).result
    events = list(read_events(out / resumed.key / "events.jsonl"))
    points = [event.fields for event in events if event.kind == "resumed"]
    assert len(points) == 3
    ((epoch, _),) = {(each["epoch"], each["step"]) for each in points}
    assert epoch >= 1
    assert digests(resumed) == digests(whole)
    assert resumed.certificate == whole.certificate
    assert [(r.steps, r.samples, r.bytes_sent) for r in resumed.ranks] == [
        (r.steps, r.samples, r.bytes_sent) for r in whole.ranks
    ]
    assert [(e.epoch, e.accuracy) for e in resumed.epochs] == [(e.epoch, e.accuracy) for e in whole.epochs]
    assert "resumed from a checkpoint once" in resumed.flags[-1]
    assert not any("checkpoint" in flag for flag in whole.flags)
    assert not list(tmp_path.glob("*/*/checkpoints"))  # removed after the run


def digests(row: RunResult) -> list[str | None]:
    return [rank.weights_digest for rank in row.ranks]


@pytest.mark.parametrize("transport", ["mpi", *nightly("gloo", "rpc")])
def test_run_that_lost_a_node_resumes(execute: Execute, run_cache: RunCache, transport: str) -> None:
    run: dict[str, Any] = {
        **RUN,
        "strategy": "all_reduce",
        "transport": transport,
        "nodes": 2,
        "epochs": 5,
        "checkpoint_steps": None,
        "checkpoint_epochs": 1,
    }
    lost = execute(SignalRank(signal.SIGKILL, 1, after="checkpoint"), **run)
    assert lost.status == "failed"
    assert "node 1" in str(lost.cause)
    resumed = execute(**run)
    assert (resumed.status, resumed.cause) == ("ok", None)
    assert "resumed from a checkpoint once" in resumed.flags[-1]
    assert [epoch.epoch for epoch in resumed.epochs] == [*range(1, 6)] * 2
    # Two ranks: on every transport the sum of two numbers is the same, bit for bit.
    uninterrupted = run_cache.get(**{**run, "transport": "memory"}).result
    assert digests(resumed) == digests(uninterrupted)
