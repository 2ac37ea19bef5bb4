"""Mistakes of registered compressions: agreement of ranks, error feedback, bytes, and odd shapes."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Size, Tensor

from tests.unit.threads import together
from trainer.comm.base import Communicator
from trainer.compression.base import Compressor
from trainer.core.rng import RngFactory
from trainer.spec.registries import COMPRESSIONS

# A convolution, a layer with its bias, a scalar: 5 tensors of 901 values (odd), 866 of them in matrices.
SHAPES = (Size([6, 3, 5, 5]), Size([6]), Size([16, 26]), Size([28]), Size([]))
FLOATS = 901
LR = 0.1
STEPS = 20
# What the formulas of the bytes that a rank sends per step contain, by the words of docs/sweeps.md.
QUANTITIES = {"n": FLOATS, "L": 5, "k": 9, "v": 6 + 28 + 1, "m": (6 + 75) + (16 + 26), "rank": 2}


def gradient(rank: int, step: int, shapes: tuple[Size, ...] = SHAPES) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(sum(shape.numel() for shape in shapes), generator=generator)


def stated_bytes(name: str, ranks: int) -> float:
    """The bytes that one of the ranks sends per step, by the formula that the documentation shows."""
    headline = (COMPRESSIONS.load(name).__doc__ or "").splitlines()[0]
    formula = headline.split(": ")[1].split(" bytes")[0]
    formula = re.sub("⌈([^⌉]+)/([^⌉]+)⌉", r"(-(-\1//\2))", formula).replace("−", "-").replace("·", "*")
    factors = " ".join(re.findall(r"\d+|[A-Za-z]+|//|\S", formula))
    stated: float = eval(re.sub(r"(?<=[\w)]) (?=[\w(])", "*", factors), {"P": ranks, **QUANTITIES})
    return stated


def compressed(
    name: str, size: int, steps: int, shapes: tuple[Size, ...] = SHAPES, scale: float = 1.0
) -> list[tuple[list[Tensor], Compressor]]:
    """For each rank, the mean gradients that it computes in so many steps, and its compressor."""

    def body(comm: Communicator) -> tuple[list[Tensor], Compressor]:
        compressor = COMPRESSIONS.parse(name).build(comm, [*shapes], RngFactory(0))
        reported = [scale * gradient(comm.rank, step, shapes) for step in range(steps)]
        for mean in reported:
            compressor.mean(mean, LR)
        comm.clock.stop()
        return reported, compressor

    return together(size, body)


@pytest.mark.parametrize("name", COMPRESSIONS.entries)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_agree_lose_nothing_and_send_what_the_formula_says(name: str, size: int) -> None:
    (means, _), *others = outcomes = compressed(name, size, STEPS)
    for reported, _ in [*others, *compressed(name, size, steps=3)]:  # in a second run, too
        assert all(torch.equal(*both) for both in zip(reported, means, strict=False))
    nothing = torch.zeros(FLOATS)
    kept = [getattr(compressor, "residual", nothing) for _, compressor in outcomes]
    wanted = sum((gradient(rank, step) for rank in range(size) for step in range(STEPS)), nothing) / size
    # fp16 has no error feedback: it loses the rounding errors.
    loss = STEPS * 2**-10 if name == "fp16" else 1e-4
    torch.testing.assert_close(sum(means, nothing) + sum(kept, nothing) / size, wanted, rtol=0, atol=loss)
    for _, compressor in outcomes:
        sent = compressor.comm.traffic.bytes_sent
        assert sent == pytest.approx(STEPS * stated_bytes(name, size))
        assert name == "none" or sent < 0.51 * STEPS * stated_bytes("none", size)
        assert min(compressor.comm.clock.seconds[each] for each in ("compute", "communicate")) > 0


@pytest.mark.parametrize("name", COMPRESSIONS.entries)
def test_single_ranks_zeros_and_gradients_of_any_length(name: str) -> None:
    ((alone, compressor),) = compressed(name, 1, steps=3)
    assert all(torch.equal(mean, gradient(0, step)) for step, mean in enumerate(alone))
    assert compressor.comm.traffic.bytes_sent == stated_bytes(name, 1) == 0
    for reported, _ in compressed(name, 2, steps=3, scale=0.0):
        assert not torch.stack(reported).any()
    for shapes in ((Size([1]),), (Size([]),), (Size([2, 1]), Size([3])), (Size([33, 7]),)):
        (first, _), *others = compressed(name, 3, 1, shapes)
        assert first[0].isfinite().all()
        assert all(torch.equal(first[0], other[0]) for other, _ in others)
