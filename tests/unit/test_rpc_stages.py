"""Strategy rpc_split as far as one process can tell: its cuts, and a part's accounts. The rest is in
tests/integration."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from tests.unit.training import SMALL
from trainer.comm.traffic import Traffic
from trainer.core.clock import Clock
from trainer.parallel import rpc_stages as split
from trainer.parallel.rpc_stages import Part
from trainer.spec.run_spec import RunSpec
from trainer.strategies.rpc_split import RpcSplit
from trainer.training.task import Task


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate(
        {**SMALL, "model": "lenet", "strategy": "rpc_split", "nodes": 3, **fields}
    )


# Cuts


def cuts_of(run: RunSpec) -> Any:
    assert isinstance(run.strategy, RpcSplit)
    comm = Link(Clock(), size=run.nodes)
    session = SimpleNamespace(task=Task(run, Path()), spec=run, comm=comm, size=comm.size)
    return run.strategy._split_points(session)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "split_points"),
    [
        ({}, ["flatten"]),  # lenet's convolutions and its fully connected layers
        ({"nodes": 2}, []),
        ({"strategy": {"name": "rpc_split", "split_points": ["conv2"]}}, ["conv2"]),
    ],
)
def test_where_the_model_is_cut(fields: dict[str, Any], split_points: list[str]) -> None:
    assert cuts_of(spec(**fields)) == split_points


@pytest.mark.parametrize("fields", [{"model": "mlp"}, {"nodes": 4}])
def test_parts_that_the_model_does_not_suggest_are_balanced(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    def measured(
        _: Task, comm: Link, parts: int, split_points: None, *, micro_batches: int
    ) -> list[object]:
        return [comm.size, parts, split_points, micro_batches]

    monkeypatch.setattr("trainer.parallel.pipeline_stage.cut", measured)
    run = spec(**fields)
    whole_batches = 1
    assert cuts_of(run) == [run.nodes, run.nodes - 1, None, whole_batches]


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"nodes": 1}, ["rpc_split", "1 node", "2 or more"]),
        ({"nodes": 15}, ["14 stages", "13 blocks"]),
        (
            {"strategy": {"name": "rpc_split", "split_points": ["fc9"]}},
            ["'fc9'", "allowed: pool1"],
        ),
        (
            {"strategy": {"name": "rpc_split", "split_points": ["conv2"]}, "nodes": 4},
            ["stages: 3", "split points: 1"],
        ),
        ({"transport": "gloo"}, ["gloo", "allowed: rpc"]),
    ],
)
def test_invalid_partitions_are_refused(fields: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**fields)
    (error,) = caught.value.errors()
    assert [fact for fact in facts if fact not in error["msg"]] == []


def test_the_master_alone_has_samples() -> None:
    strategy = spec().strategy
    assert (spec().num_replicas, [strategy.reports_samples(rank, 3) for rank in range(3)]) == (
        1,
        [True, False, False],
    )
    assert [strategy.replica_of(rank, 3) < 1 for rank in range(3)] == [True, False, False]


# A part's accounts


@dataclass
class Time:
    """Wall and CPU seconds that pass when the test says so."""

    wall: float = 0.0
    cpu: float = 0.0

    def passes(self, wall: float, cpu: float) -> None:
        self.wall += wall
        self.cpu += cpu


@dataclass
class Link:
    """A communicator, as far as a part's accounts need one: rank 2 of 4, between two other parts."""

    clock: Clock
    rank: int = 2
    size: int = 4
    device: str = "cpu"
    traffic: Traffic = field(default_factory=Traffic)


class Slow(nn.Module):
    """Takes 1 s forward (0.9 s of CPU) and 2 s back (1.5 s)."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self._time = time

    def forward(self, x: Tensor) -> Tensor:
        self._time.passes(1.0, 0.9)
        y = (x * 1.0) * self.weight
        y.register_hook(lambda _: self._time.passes(2.0, 1.5))
        return y * 1.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch, time: Time) -> Part:
    monkeypatch.setattr(split, "_parts", {})
    slow = Slow(time)
    monkeypatch.setattr(Task, "build_model", lambda *_, **__: nn.Sequential(slow))
    clock = Clock(wall=lambda: time.wall, cpu=lambda: time.cpu)
    made = Part(Task(spec(nodes=4), Path()), Link(clock), ["conv2", "flatten"], 10.0)  # type: ignore[arg-type]
    assert made.blocks[0] == "conv2"
    clock.start()
    return made


def test_what_a_part_does_in_other_threads_is_on_its_clock(part: Part, time: Time) -> None:
    step = part._optimizer.step

    def slow_step() -> None:
        time.passes(0.5, 0.4)
        step()

    part._optimizer.step = slow_step  # type: ignore[method-assign,assignment]
    steps: list[int] = []
    thread = threading.Thread(target=lambda: steps.append(part.serve()))
    thread.start()
    assert part._serving.wait(5)
    for _ in range(2):
        time.passes(5.0, 0.2)
        x = torch.ones(3, 4, requires_grad=True)
        y = part.forward(x)
        time.passes(3.0, 0.1)
        y.sum().backward()
        time.passes(4.0, 0.0)
        part.step()
    time.passes(7.0, 0.0)
    part.over(2)
    thread.join(5)
    part._clock.stop()
    assert steps == [2]
    seconds, cpu = part._clock.seconds, part._clock.cpu_seconds
    # Before attribute_stragglers moves waiting out of it: 5 s for activations, 3 s for their gradient.
    assert seconds["communicate"] == pytest.approx(2 * (5 + 3))
    assert seconds["compute"] == pytest.approx(2 * (1 + 2 + 0.5))
    assert cpu["compute"] == pytest.approx(2 * (0.9 + 1.5 + 0.4))
    assert seconds["wait"] == pytest.approx(2 * 4 + 7)
    assert part._clock.train_s == time.wall

    traffic = part._comm.traffic
    assert traffic.receives == [(0, 5, 1), (6, 9, 3), (15.5, 20.5, 1), (21.5, 24.5, 3)]
    assert traffic.sends == [(6, 3), (11, 1), (21.5, 3), (26.5, 1)]
    assert traffic.bytes_to == {3: 2 * 48, 1: 2 * 48}


def test_images_get_no_gradient(part: Part) -> None:
    part._serving.set()
    part.forward(torch.ones(3, 4)).sum().backward()
    assert part._comm.traffic.bytes_to == {3: 48}


def test_activations_are_those_of_the_first_step(part: Part) -> None:
    part._serving.set()
    assert part.activation_bytes is None
    part.forward(torch.ones(3, 4))
    first = part.activation_bytes
    part.forward(torch.ones(30, 4))
    assert first == part.activation_bytes
    assert first


def test_before_the_epoch_begins_nothing_is_computed(part: Part) -> None:
    part._timeout_s = 0.05
    with pytest.raises(TimeoutError, match=r"it has not begun the epoch within 0\.05 s"):
        part.forward(torch.ones(3, 4))
