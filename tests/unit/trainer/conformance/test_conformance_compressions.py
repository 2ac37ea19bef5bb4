"""Conformance of compressions: every registered one obeys the contract of `Compressor`."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Size, Tensor

from tests.unit.threads import together
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator
from trainer.compression.base import Compressor
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.result import TrainResult
from trainer.core.rng import RngFactory
from trainer.launch.ranks import train as train_rank
from trainer.spec.registries import COMPRESSIONS
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task

# A convolution, a layer with its bias, a scalar: 5 tensors of 901 values (odd), 866 of them in matrices.
SHAPES = [Size([6, 3, 5, 5]), Size([6]), Size([16, 26]), Size([28]), Size([])]
FLOATS = 901
LR = 0.1
# What the formulas of the bytes that a rank sends per step contain, by the words of docs/sweeps.md.
QUANTITIES = {
    "n": FLOATS,
    "L": 5,
    "k": 9,  # 1 % of the values
    "v": 6 + 28 + 1,
    "m": (6 + 75) + (16 + 26),
    "rank": 2,
}
NAMES = list(COMPRESSIONS.entries)


def build(name: str, comm: Communicator) -> Compressor:
    return COMPRESSIONS.parse(name).build(comm, SHAPES, RngFactory(0))


def gradient(rank: int, step: int, shapes: list[Size] = SHAPES) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(sum(shape.numel() for shape in shapes), generator=generator)


def stated_bytes(name: str, ranks: int) -> float:
    """The bytes that one of the ranks sends per step, by the formula that the documentation shows."""
    headline = (COMPRESSIONS.load(name).__doc__ or "").splitlines()[0]
    formula = headline.split(": ")[1].split(" bytes")[0]
    formula = re.sub("⌈(.+)/(.+)⌉", r"(-(-\1//\2))", formula).replace("−", "-").replace("·", "*")
    factors = " ".join(re.findall(r"\d+|[A-Za-z]+|//|\S", formula))
    stated: float = eval(re.sub(r"(?<=[\w)]) (?=[\w(])", "*", factors), {"P": ranks, **QUANTITIES})
    return stated


def means(name: str, size: int, steps: int) -> list[tuple[list[Tensor], Compressor]]:
    """For each rank, the mean gradients that it computes in `steps` steps, and its compressor."""

    def body(comm: MemoryCommunicator) -> tuple[list[Tensor], Compressor]:
        compressor, reported = build(name, comm), []
        for step in range(steps):
            mean = gradient(comm.rank, step)
            compressor.mean(mean, LR)
            reported.append(mean)
        return reported, compressor

    return together(size, body)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_means_are_identical_on_all_ranks_and_in_a_second_run(name: str, size: int) -> None:
    (first, _), *others = means(name, size, steps=5)
    for reported, _ in [*others, *means(name, size, steps=5)]:
        assert all(torch.equal(mine, its) for mine, its in zip(first, reported, strict=True))
    assert all(mean.shape == (FLOATS,) and mean.any() for mean in first)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_error_feedback_loses_nothing(name: str, size: int) -> None:
    steps = 20
    outcomes = means(name, size, steps)
    reported, _ = outcomes[0]
    nothing = torch.zeros(FLOATS)
    kept = [getattr(compressor, "residual", nothing) for _, compressor in outcomes]
    wanted = sum((gradient(rank, step) for rank in range(size) for step in range(steps)), nothing) / size
    # fp16 has no error feedback: it loses the rounding errors.
    loss = steps * 2**-10 if name == "fp16" else 1e-4
    torch.testing.assert_close(
        sum(reported, nothing) + sum(kept, nothing) / size, wanted, rtol=0, atol=loss
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_bytes_sent_equal_the_formula(name: str, size: int) -> None:
    for _, compressor in means(name, size, steps=3):
        sent = compressor.comm.traffic.bytes_sent
        assert sent == pytest.approx(3 * stated_bytes(name, size))
        if name != "none" and size > 1:
            assert sent < 0.51 * 3 * stated_bytes("none", size)


@pytest.mark.parametrize("name", NAMES)
def test_single_rank_is_not_compressed(name: str) -> None:
    ((reported, _),) = means(name, 1, steps=3)
    assert all(torch.equal(mean, gradient(0, step)) for step, mean in enumerate(reported))


@pytest.mark.parametrize("name", NAMES)
def test_zero_gradient_stays_zero(name: str) -> None:
    def body(comm: MemoryCommunicator) -> list[Tensor]:
        compressor = build(name, comm)
        reported = [torch.zeros(FLOATS) for _ in range(3)]
        for mean in reported:
            compressor.mean(mean, LR)
        return reported

    for reported in together(2, body):
        assert not torch.stack(reported).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shapes", [[Size([1])], [Size([])], [Size([2, 1]), Size([3])], [Size([33, 7])]])
def test_gradients_of_any_length(name: str, shapes: list[Size]) -> None:
    def body(comm: MemoryCommunicator) -> Tensor:
        mean = gradient(comm.rank, 0, shapes)
        COMPRESSIONS.parse(name).build(comm, shapes, RngFactory(0)).mean(mean, LR)
        return mean

    first, *others = together(3, body)
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("name", NAMES)
def test_compression_is_booked_as_compute(name: str) -> None:
    for _, compressor in means(name, 2, steps=1):
        compressor.comm.clock.stop()
        seconds = compressor.comm.clock.seconds
        assert seconds["compute"] > 0
        assert seconds["communicate"] > 0


# Training


@pytest.fixture(scope="module")
def accuracies() -> Callable[[str], float]:
    """Return a function that trains on digits with a compression, on two unequal parts: its accuracy."""
    reached: dict[str, float] = {}

    def train(name: str) -> float:
        fields: dict[str, Any] = {
            "dataset": "digits",
            "model": {"name": "mlp", "hidden": [32]},
            "epochs": 4,
        }
        strategy = {"name": "all_reduce", "compression": name}
        run = RunSpec.model_validate({**fields, "strategy": strategy, "transport": "memory", "nodes": 2})
        task = Task(run, Path())
        assert len(task.data.train.labels) % 2

        def body(comm: MemoryCommunicator) -> TrainResult:
            context = NodeContext(comm.rank, comm.size, "memory", Path())
            return train_rank(context, task, EventWriter("run", comm.rank, None, io.StringIO()), comm)

        first, second = together(2, body)
        assert first.weights_digest == second.weights_digest
        return float(first.accuracy)

    def accuracy(name: str) -> float:
        if name not in reached:
            reached[name] = train(name)
        return reached[name]

    return accuracy


@pytest.mark.parametrize("name", NAMES)
def test_accuracy_is_close_to_uncompressed_training(accuracies: Callable[[str], float], name: str) -> None:
    assert accuracies("none") > 0.85
    assert accuracies(name) > accuracies("none") - 0.1
