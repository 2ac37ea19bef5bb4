"""Mistakes of rpc_split: its default split points, and the time and traffic of a stage by its events.

The integration tests compare its results and traces with those of other strategies.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn

from tests.unit.conftest import FakeTime
from tests.unit.training import SMALL
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.traffic import Traffic
from trainer.core.clock import Clock
from trainer.parallel import rpc_stages
from trainer.parallel.pipeline_stage import choose_split_points
from trainer.parallel.rpc_stages import RpcStage
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate(
        {**SMALL, "model": "lenet", "strategy": "rpc_split", "nodes": 3, **fields}
    )


def link(clock: Clock, rank: int = 2, size: int = 4) -> Any:
    """The attributes of a communicator that a stage uses: rank 2 of 4 is between two other stages."""
    return SimpleNamespace(
        clock=clock, rank=rank, size=size, device="cpu", traffic=Traffic(), trace_at=lambda *_: None
    )


# Split points


def test_other_split_points_than_that_of_the_classifier_are_balanced_for_whole_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def balanced(_: Task, comm: Any, *chosen: Any, micro_batches: int) -> list[Any]:
        return [comm.size, *chosen, micro_batches]

    monkeypatch.setattr("trainer.parallel.pipeline_stage.choose_split_points", balanced)
    given = {"name": "rpc_split", "split_points": ["conv2"]}
    for run, expected in (
        (spec(), ["flatten"]),  # the convolutions and the classifier of lenet
        (spec(model="mlp"), [3, 2, None, 1]),
        (spec(nodes=4), [4, 3, None, 1]),
        (spec(strategy=given), [3, 2, ["conv2"], 1]),
    ):
        strategy: Any = run.strategy
        comm = link(Clock(), size=run.nodes)
        session = SimpleNamespace(task=Task(run, Path()), spec=run, comm=comm, size=comm.size)
        assert strategy._choose_split_points(session) == expected


def test_blocks_are_measured_with_a_micro_batch_and_in_cpu_time_if_one_thread_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = spec().model.names
    seconds, output_bytes = ([*range(first, first + len(names))] for first in (1, 100))
    costs = zip(seconds, output_bytes, strict=True)
    blocks = [SimpleNamespace(seconds=each, output_bytes=size) for each, size in costs]
    profile, balanced = MagicMock(return_value=blocks), MagicMock(return_value=["flatten", "fc1"])
    monkeypatch.setattr("trainer.parallel.pipeline_stage.profile_blocks", profile)
    monkeypatch.setattr("trainer.parallel.pipeline_stage.balanced_split_points", balanced)
    comm, pairs = MemoryCommunicator(0, 1, Clock(), ThreadGroup(1)), [MagicMock()]
    for threads, clock in ((1, time.thread_time), (2, time.perf_counter)):
        task = Task(spec(threads=threads), Path())
        assert choose_split_points(task, comm, 3, None, 5, pairs) == ["flatten", "fc1"]
        assert profile.call_args.kwargs["clock"] is clock
        assert len(profile.call_args.args[1]) == len(profile.call_args.args[2]) == 10 // 5
        assert balanced.call_args.args == (names, seconds, [2 * each for each in output_bytes], 3, pairs)


# Time and traffic of a stage

WALL, CPU = FakeTime(0.0), FakeTime(0.0)


def advance(wall: float, cpu: float) -> None:
    WALL.pass_(wall)
    CPU.pass_(cpu)


class SlowLayer(nn.Module):
    """1 s forward (0.9 s of CPU), 2 s backward (1.5 s of CPU)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        advance(1.0, 0.9)
        y = (x * 1.0) * self.weight
        y.register_hook(lambda _: advance(2.0, 1.5))
        return y * 1.0


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> RpcStage:
    monkeypatch.setattr(rpc_stages, "_stages", {})
    monkeypatch.setattr(Task, "build_model", lambda *_, **__: nn.Sequential(SlowLayer()))
    WALL.now = CPU.now = 0.0
    clock = Clock(WALL, CPU)
    made = RpcStage(Task(spec(nodes=4), Path()), link(clock), ["conv2", "flatten"], timeout_s=10.0)
    clock.start()
    return made


def test_clock_includes_work_in_rpc_threads(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage._optimizer, "step", lambda: advance(0.5, 0.4))
    thread = threading.Thread(target=stage.run_epoch)
    thread.start()
    assert stage._in_epoch.wait(5)
    for _ in range(2):
        advance(5.0, 0.2)
        y = stage.forward(torch.ones(3, 4, requires_grad=True))
        advance(3.0, 0.1)
        y.sum().backward()
        advance(4.0, 0.0)
        stage.step()
    advance(7.0, 0.0)
    stage.end_epoch(2)
    thread.join(5)
    stage.end_epoch(0)
    assert stage.run_epoch() == 0  # nothing more is booked
    stage._clock.stop()
    seconds, cpu = stage._clock.seconds, stage._clock.cpu_seconds
    # Before attribute_stragglers separates waiting: 5 s for activations, 3 s for their gradient.
    assert seconds["communicate"] == pytest.approx(2 * (5 + 3))
    assert seconds["compute"] == pytest.approx(2 * (1 + 2 + 0.5))
    assert cpu["compute"] == pytest.approx(2 * (0.9 + 1.5 + 0.4))
    assert seconds["wait"] == pytest.approx(2 * 4 + 7)
    assert stage._clock.train_s == WALL()
    traffic = stage._comm.traffic
    assert [each[:3] for each in traffic.receives] == [
        (0, 5, 1),
        (6, 9, 3),
        (15.5, 20.5, 1),
        (21.5, 24.5, 3),
    ]
    assert traffic.sends == [(6, 3), (11, 1), (21.5, 3), (26.5, 1)]
    assert traffic.bytes_to == {3: 2 * 48, 1: 2 * 48}


def test_forward_waits_for_the_start_of_the_epoch(stage: RpcStage) -> None:
    stage._timeout_s = 0.05
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        stage.forward(torch.ones(3, 4))
