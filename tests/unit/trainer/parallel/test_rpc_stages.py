"""Mistakes of rpc_split: its default split points, and the time and traffic of a stage by its events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.training import SMALL
from trainer.comm.traffic import Traffic
from trainer.core.clock import Clock
from trainer.core.trace import Kind
from trainer.parallel import rpc_stages
from trainer.parallel.pipeline_stage import choose_split_points
from trainer.parallel.rpc_stages import RpcStage
from trainer.spec.run_spec import RunSpec
from trainer.strategies.rpc_split import RpcSplit
from trainer.training.task import Task


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate(
        {**SMALL, "model": "lenet", "strategy": "rpc_split", "nodes": 3, **fields}
    )


# Split points


def chosen_split_points(run: RunSpec) -> Any:
    assert isinstance(run.strategy, RpcSplit)
    comm = Link(Clock(), size=run.nodes)
    session = SimpleNamespace(task=Task(run, Path()), spec=run, comm=comm, size=comm.size)
    return run.strategy._choose_split_points(session)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "split_points"),
    [
        ({}, ["flatten"]),  # the convolutions and the classifier of lenet
        ({"nodes": 2}, []),
        ({"strategy": {"name": "rpc_split", "split_points": ["conv2"]}}, ["conv2"]),
    ],
)
def test_split_points(fields: dict[str, Any], split_points: list[str]) -> None:
    assert chosen_split_points(spec(**fields)) == split_points


def test_other_split_points_are_balanced_for_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(_: Task, comm: Link, *chosen: Any, micro_batches: int) -> list[object]:
        return [comm.size, *chosen, micro_batches]

    monkeypatch.setattr("trainer.parallel.pipeline_stage.choose_split_points", measured)
    for run in (spec(model="mlp"), spec(nodes=4)):
        assert chosen_split_points(run) == [run.nodes, run.nodes - 1, None, 1]


@pytest.mark.parametrize(("threads", "clock"), [(1, time.thread_time), (2, time.perf_counter)])
def test_blocks_are_measured_in_cpu_time_if_one_thread_computes(
    monkeypatch: pytest.MonkeyPatch, threads: int, clock: Callable[[], float]
) -> None:
    class Measured(Exception):
        pass

    def profile(*_: object, clock: Callable[[], float]) -> None:
        raise Measured(clock)

    monkeypatch.setattr("trainer.parallel.pipeline_stage.profile_blocks", profile)
    task, comm = Task(spec(threads=threads), Path()), Link(Clock(), rank=0)
    with pytest.raises(Measured) as caught:
        choose_split_points(task, comm, 3, None, 1)  # type: ignore[arg-type]
    assert caught.value.args == (clock,)


def test_only_the_master_has_samples() -> None:
    strategy = spec().strategy
    assert (spec().num_replicas, [strategy.reports_samples(rank, 3) for rank in range(3)]) == (
        1,
        [True, False, False],
    )
    assert [strategy.replica_of(rank, 3) < 1 for rank in range(3)] == [True, False, False]


# Time and traffic of a stage


@dataclass
class FakeTime:
    """Wall and CPU clocks that advance only when a test advances them."""

    wall: float = 0.0
    cpu: float = 0.0

    def advance(self, wall: float, cpu: float) -> None:
        self.wall += wall
        self.cpu += cpu


@dataclass
class Link:
    """The attributes of a communicator that a stage uses: rank 2 of 4, between two other stages."""

    clock: Clock
    rank: int = 2
    size: int = 4
    device: str = "cpu"
    traffic: Traffic = field(default_factory=Traffic)
    traced: list[tuple[Kind, int, int]] = field(default_factory=list)

    def trace_at(self, kind: Kind, entered: float, left: float, size: int, peer: int) -> None:
        assert entered <= left
        self.traced.append((kind, peer, size))


class SlowLayer(nn.Module):
    """1 s forward (0.9 s of CPU), 2 s backward (1.5 s of CPU)."""

    def __init__(self, time: FakeTime) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self._time = time

    def forward(self, x: Tensor) -> Tensor:
        self._time.advance(1.0, 0.9)
        y = (x * 1.0) * self.weight
        y.register_hook(lambda _: self._time.advance(2.0, 1.5))
        return y * 1.0


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, time: FakeTime) -> RpcStage:
    monkeypatch.setattr(rpc_stages, "_stages", {})
    layer = SlowLayer(time)
    monkeypatch.setattr(Task, "build_model", lambda *_, **__: nn.Sequential(layer))
    clock = Clock(wall=lambda: time.wall, cpu=lambda: time.cpu)
    made = RpcStage(Task(spec(nodes=4), Path()), Link(clock), ["conv2", "flatten"], 10.0)  # type: ignore[arg-type]
    assert made.blocks[0] == "conv2"
    clock.start()
    return made


def test_clock_includes_work_in_rpc_threads(stage: RpcStage, time: FakeTime) -> None:
    step = stage._optimizer.step

    def slow_step() -> None:
        time.advance(0.5, 0.4)
        step()

    stage._optimizer.step = slow_step  # type: ignore[method-assign,assignment]
    steps: list[int] = []
    thread = threading.Thread(target=lambda: steps.append(stage.run_epoch()))
    thread.start()
    assert stage._in_epoch.wait(5)
    for _ in range(2):
        time.advance(5.0, 0.2)
        x = torch.ones(3, 4, requires_grad=True)
        y = stage.forward(x)
        time.advance(3.0, 0.1)
        y.sum().backward()
        time.advance(4.0, 0.0)
        stage.step()
    time.advance(7.0, 0.0)
    stage.end_epoch(2)
    thread.join(5)
    stage._clock.stop()
    assert steps == [2]
    seconds, cpu = stage._clock.seconds, stage._clock.cpu_seconds
    # Before attribute_stragglers separates waiting: 5 s for activations, 3 s for their gradient.
    assert seconds["communicate"] == pytest.approx(2 * (5 + 3))
    assert seconds["compute"] == pytest.approx(2 * (1 + 2 + 0.5))
    assert cpu["compute"] == pytest.approx(2 * (0.9 + 1.5 + 0.4))
    assert seconds["wait"] == pytest.approx(2 * 4 + 7)
    assert stage._clock.train_s == time.wall

    traffic = stage._comm.traffic
    assert traffic.receives == [(0, 5, 1), (6, 9, 3), (15.5, 20.5, 1), (21.5, 24.5, 3)]
    assert traffic.sends == [(6, 3), (11, 1), (21.5, 3), (26.5, 1)]
    assert traffic.bytes_to == {3: 2 * 48, 1: 2 * 48}
    activations = [(Kind.RECEIVE, 1, 48), (Kind.SEND, 3, 48)]
    gradients = [(Kind.RECEIVE, 3, 48), (Kind.SEND, 1, 48)]
    answers = [(Kind.RECEIVE, 1, 0), (Kind.SEND, 3, 0), (Kind.RECEIVE, 0, 0), (Kind.SEND, 0, 0)]
    assert stage._comm.traced == 2 * [*activations, *gradients, *answers]  # type: ignore[attr-defined]


def test_no_gradient_is_sent_for_images(stage: RpcStage) -> None:
    stage._in_epoch.set()
    stage.forward(torch.ones(3, 4)).sum().backward()
    assert stage._comm.traffic.bytes_to == {3: 48}


def test_activation_bytes_are_those_of_the_first_step(stage: RpcStage) -> None:
    stage._in_epoch.set()
    assert stage.activation_bytes is None
    stage.forward(torch.ones(3, 4))
    first = stage.activation_bytes
    stage.forward(torch.ones(30, 4))
    assert first == stage.activation_bytes
    assert first


def test_forward_waits_for_the_start_of_the_epoch(stage: RpcStage) -> None:
    stage._timeout_s = 0.05
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        stage.forward(torch.ones(3, 4))
