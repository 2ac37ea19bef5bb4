"""Runs on real processes that something cuts off, and that go on when the same is asked for again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.records import RunResult
from orchestrator.results.store import read_result
from tests.integration.test_harness import kill_in_training
from tests.support.command_line import run_cli, start_sweep
from tests.support.processes import node_processes, wait_until
from tests.support.runs import RecordingDisplay
from trainer.core.events import read_events

Execute = Callable[..., RunResult]

LENET = {"name": "lenet", "dropout": 0.3}
RUN = {
    "strategy": "ddp",
    "transport": "gloo",
    "nodes": 4,  # on 2, DDP's buckets could be in any order and the sums would be the same
    "dataset": {"name": "synthetic", "samples": 2000, "test_samples": 50, "noise": 1.0},
    "model": LENET,
    "optimizer": "momentum",
    "lr": 0.01,
    "batch_size": 10,
    "checkpoint_steps": 20,
    "epochs": 4,
}


def the_row(out: Path) -> RunResult:
    (path,) = out.glob("*/result.json")
    row = read_result(path)
    assert row
    return row


def test_a_sweep_whose_orchestrator_was_killed_ends_with_the_weights_that_it_would_have_had(
    tmp_path: Path,
) -> None:
    file, cut = tmp_path / "one.yml", tmp_path / "cut"
    file.write_text(json.dumps({"name": "one", "base": RUN, "blocks": [{}]}))
    sweep = start_sweep(file, cut)
    # In the second epoch, so that an epoch has been evaluated and another is in the middle.
    wait_until(lambda: list(cut.glob("*/checkpoints/local/epoch-00001-step-*/rank-3.pt")))
    sweep.kill()
    sweep.communicate()
    wait_until(lambda: not node_processes(cut))
    assert not list(cut.glob("*/result.json"))

    assert run_cli("sweep", file, "--out", cut).returncode == 0
    went_on, whole = the_row(cut), uninterrupted(tmp_path)
    events = list(read_events(cut / went_on.key / "events.jsonl"))
    resumed = [event.fields for event in events if event.kind == "resumed"]
    assert len(resumed) == 4
    ((epoch, _),) = {(each["epoch"], each["step"]) for each in resumed}
    assert epoch >= 1
    assert digests(went_on) == digests(whole)
    assert went_on.certificate == whole.certificate
    assert [(r.steps, r.samples, r.bytes_sent) for r in went_on.ranks] == [
        (r.steps, r.samples, r.bytes_sent) for r in whole.ranks
    ]
    assert [(e.epoch, e.accuracy) for e in went_on.epochs] == [(e.epoch, e.accuracy) for e in whole.epochs]
    assert "resumed from a checkpoint once" in went_on.flags[-1]
    assert not any("checkpoint" in flag for flag in whole.flags)
    assert not list(tmp_path.glob("*/*/checkpoints"))  # of no use any more


def uninterrupted(tmp_path: Path) -> RunResult:
    file, out = tmp_path / "whole.yml", tmp_path / "whole"
    file.write_text(json.dumps({"name": "whole", "base": RUN, "blocks": [{}]}))
    assert run_cli("sweep", file, "--out", out).returncode == 0
    return the_row(out)


def digests(row: RunResult) -> list[str | None]:
    return [rank.weights_digest for rank in row.ranks]


@pytest.mark.parametrize("transport", ["gloo", "mpi", "rpc"])
def test_a_run_that_lost_a_node_goes_on(execute: Execute, tmp_path: Path, transport: str) -> None:
    run: dict[str, Any] = {
        **RUN,
        "strategy": "all_reduce",
        "transport": transport,
        "nodes": 2,
        "epochs": 5,
        "checkpoint_steps": None,
        "checkpoint_epochs": 1,
    }
    display = RecordingDisplay()
    kill_in_training(display, 1, after="checkpoint")
    cut = execute(display, **run)
    assert cut.status == "failed"
    assert "node 1" in str(cut.cause)
    went_on = execute(**run)
    assert (went_on.status, went_on.cause) == ("ok", None)
    assert "resumed from a checkpoint once" in went_on.flags[-1]
    assert [epoch.epoch for epoch in went_on.epochs] == [*range(1, 6)] * 2
    assert digests(went_on) == digests(execute(**run))
