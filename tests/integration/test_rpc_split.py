"""Strategy rpc_split across real processes: it trains as serial does, says what it did, and ends well."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.results.records import RunResult
from tests.integration.rpc_ranks import Ranks
from tests.support.processes import node_processes
from tests.support.runs import DuringTraining
from tests.unit.training import SMALL, Notes, train
from trainer.core.context import NodeContext
from trainer.launch.ranks import connect
from trainer.launch.ranks import train as train_rank
from trainer.parallel.rpc_stages import Master, Part
from trainer.spec.run_spec import RunSpec
from trainer.training.replica import Replica
from trainer.training.task import Task

Execute = Callable[..., RunResult]
# 120 samples in batches of 11, the last of 10: 55 steps. With dropout.
STEPS: dict[str, Any] = {**SMALL, "model": "lenet", "batch_size": 11, "epochs": 5, "lr": 0.01}


def split(split_points: list[str] | None = None) -> dict[str, Any]:
    return {"name": "rpc_split", "split_points": split_points}


# The same training as serial's


def with_losses(fields: dict[str, Any], context: NodeContext) -> tuple[list[float], list[float]]:
    """A rank's training: the loss of every step and the final weights, both as the master knows them."""
    losses: list[float] = []
    forward = Master.forward

    def noting(self: Master, batch: Any) -> Any:
        loss = forward(self, batch)
        losses.append(loss.item())
        return loss

    Master.forward = noting  # type: ignore[method-assign]  # in this process, which ends with it
    spec = RunSpec.model_validate({**fields, "save_weights": True})
    out_dir = Path(context.rendezvous).parent
    comm = connect(context)
    train_rank(replace(context, out_dir=out_dir), Task(spec, Path()), Notes(context.rank), comm)
    comm.close()
    weights = np.load(out_dir / "weights.npy").tolist() if context.rank == 0 else []
    return losses, weights


def serial(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> tuple[list[float], np.ndarray]:
    losses: list[float] = []
    step = Replica.step

    def noting(self: Replica) -> None:
        step(self)
        assert self.loss is not None
        losses.append(self.loss.item())

    monkeypatch.setattr(Replica, "step", noting)
    return losses, train("serial", 1, **fields).weights


@pytest.mark.parametrize(
    ("split_points", "optimizer", "nodes"),
    [
        (None, "momentum", 3),
        (["pool1", "relu1", "conv2"], "adam", 5),  # uneven, and two parts without weights
        (["conv2", "log_softmax"], "adamw", 4),  # the last has none
        ([], "sgd", 2),
    ],
)
def test_it_is_serial_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    split_points: list[str] | None,
    optimizer: str,
    nodes: int,
) -> None:
    fields = {**STEPS, "optimizer": optimizer}
    expected, weights = serial(monkeypatch, fields)
    work = partial(with_losses, {**fields, "strategy": split(split_points), "nodes": nodes})
    told = Ranks(f"{tmp_path}/rendezvous").run(work, nodes)
    assert all(isinstance(outcome, tuple) for outcome in told), told
    losses, found = told[0]
    assert len(losses) == len(expected) == 55
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    # Gradients come in another layout of memory, and Adam magnifies what is rounded otherwise.
    np.testing.assert_allclose(found, weights, rtol=1e-3, atol=2e-5)
    assert told[1:] == [([], [])] * (nodes - 1)


# What it says


def test_the_row_says_what_happened(execute: Execute) -> None:
    fields = {"model": {"name": "lenet"}, "optimizer": "momentum", "lr": 0.02}
    alone = execute(strategy="serial", **fields)
    result = execute(strategy=split(), nodes=3, **fields)
    assert (result.status, result.cause, result.topology) == ("ok", None, "rpc")
    assert result.accuracy == alone.accuracy
    master, convolutions, head = result.ranks
    (serial,) = alone.ranks
    assert master.weights_digest == serial.weights_digest
    assert (convolutions.weights_digest, head.weights_digest) == (None, None)

    assert [rank.samples for rank in result.ranks] == [480, 0, 0]
    assert [rank.steps for rank in result.ranks] == [16] * 3
    assert master.blocks == []
    assert (convolutions.blocks or [])[-1] == "pool3"
    assert (head.blocks or [])[0] == "flatten"
    assert [rank.parameters for rank in result.ranks] == [0, 7790, 7870]
    assert serial.state_bytes is not None
    for what, size in serial.state_bytes.items():
        assert sum((rank.state_bytes or {})[what] for rank in result.ranks) == size
    assert serial.activation_bytes is not None
    kept = [rank.activation_bytes or 0 for rank in result.ranks]
    assert min(kept) > 0
    # What is between two parts is kept by both, but the loss by the master alone.
    assert serial.activation_bytes <= sum(kept) <= 1.02 * serial.activation_bytes

    # 480 samples: 28 × 28 numbers each to the first part, 120 between parts, 10 to the master; and back.
    images, between, out = (4 * 480 * numbers for numbers in (28 * 28, 120, 10))
    assert master.bytes_to == [0, images, out]
    assert convolutions.bytes_to == [0, 0, between]
    assert head.bytes_to == [out, between, 0]
    assert [rank.bytes_sent for rank in result.ranks] == [images + out, between, out + between]

    for rank in result.ranks:
        assert rank.train_s == pytest.approx(
            sum(rank.seconds.values()) - rank.seconds["evaluate"], abs=1e-4
        )
    # What is computed is computed once, wherever; forward passes alone are about a third of it.
    assert serial.work_cpu_s is not None
    parts = sum(rank.work_cpu_s or 0 for rank in (convolutions, head))
    assert 0.5 * serial.work_cpu_s < parts < 4 * serial.work_cpu_s
    assert convolutions.seconds["compute"] > head.seconds["compute"]
    for rank in result.ranks:
        assert rank.seconds["communicate"] > 0
        assert rank.seconds["wait"] > 0
    assert master.seconds["wait"] > 0.5 * master.train_s


def test_nothing_of_torchs_is_in_the_logs(execute: Execute, tmp_path: Path) -> None:
    assert execute(strategy=split(), nodes=2).status == "ok"
    (log, *others) = [path.read_text() for path in sorted(tmp_path.rglob("node-*.log"))]
    for line in "".join([log, *others]).splitlines():
        assert re.match(r"node-\d \| ", line), line


# Nodes that are lost


@pytest.mark.parametrize("doomed", [0, 1, 2])
def test_kill_9_of_the_master_or_a_part(execute: Execute, tmp_path: Path, doomed: int) -> None:
    training = DuringTraining(lambda pid: os.kill(pid, signal.SIGKILL), doomed)
    result = execute(training, strategy=split(), nodes=3, epochs=10_000)
    assert result.status == "failed"
    expected = rf"node {doomed} \(process {training.pid}\) was killed by SIGKILL"
    assert re.fullmatch(expected, str(result.cause))
    assert result.started_at + result.wall_s - training.at < 10
    assert node_processes(tmp_path) == []


def stops(method: str, doomed: int, context: NodeContext) -> Any:
    """A rank's training, in which one part's process stands still in its third call of `method`."""
    note = Path(f"{context.rendezvous}.pid")
    calls: list[None] = []
    original = getattr(Part, method)

    def standing_still(self: Part, *arguments: Any) -> Any:
        calls.append(None)
        if context.rank == doomed and len(calls) == 3:
            note.write_text(f"{os.getpid()} {time.monotonic()}")
            os.kill(os.getpid(), signal.SIGSTOP)
        return original(self, *arguments)

    setattr(Part, method, standing_still)
    spec = RunSpec.model_validate({**SMALL, "strategy": "rpc_split", "nodes": context.size})
    try:
        return train_rank(context, Task(spec, Path()), Notes(context.rank), connect(context))
    except Exception as error:
        pid, since = note.read_text().split()
        if context.rank == 0:
            os.kill(int(pid), signal.SIGKILL)
        return type(error).__name__, str(error), time.monotonic() - float(since)


@pytest.mark.parametrize("method", ["forward", "_pass_back"])
def test_a_part_that_stands_still_is_named_when_time_is_up(tmp_path: Path, method: str) -> None:
    doomed = 2 if method == "_pass_back" else 1  # the first part has nobody to pass gradients to
    ranks = Ranks(f"{tmp_path}/rendezvous", timeout_s=5.0)
    told = ranks.run(partial(stops, method, doomed), 3)
    kind, said, after_s = told[0]
    assert told[doomed] is None
    assert kind == "CommunicationError"
    assert said.startswith(f"calling node {doomed} failed: ")
    assert "\n" not in said
    assert after_s < 5 + 5
