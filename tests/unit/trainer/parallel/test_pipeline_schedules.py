"""Interleaved and zero-bubble pipelines equal serial: the loss of each step, the final weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.unit.trainer.parallel.test_partitioned_models import with_losses
from tests.unit.training import SMALL, train
from trainer.parallel.split_backward import SplitLayers
from trainer.spec.run_spec import RunSpec

TOKENS = {"name": "induction", "length": 11, "tokens": 15, "samples": 107, "test_samples": 20}
GPT = {"name": "gpt", "layers": 6, "width": 16, "heads": 4}
# Batches of 9 are no multiple of the micro-batches, and the last has 8 samples.
RUN: dict[str, Any] = {
    "model": GPT,
    "dataset": TOKENS,
    "batch_size": 9,
    "epochs": 1,
    "optimizer": "adam",
    "lr": 0.002,
}
IMAGES = {**SMALL["dataset"], "height": 12, "width": 12}  # type: ignore[dict-item]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("schedule", "ranks", "micro_batches", "chunks"),
    [
        ("interleaved", 2, 4, None),
        ("interleaved", 2, 8, 4),
        ("interleaved", 3, 9, 2),  # the last batch has fewer samples than micro-batches
        ("interleaved", 4, 4, 2),
        ("zero_bubble", 2, 4, None),
        ("zero_bubble", 3, 9, None),
        ("zero_bubble", 4, 5, None),
    ],
)
def test_a_schedule_equals_serial_in_every_step(
    schedule: str, ranks: int, micro_batches: int, chunks: int | None
) -> None:
    pipeline = {"name": "pipeline", "schedule": schedule, "micro_batches": micro_batches, "chunks": chunks}
    (serial, losses), (staged, found) = with_losses("serial", 1, **RUN), with_losses(pipeline, ranks, **RUN)
    assert len(losses) == len(found) == serial.results[0].steps == 12
    np.testing.assert_allclose(found, losses, rtol=0, atol=1e-12)
    np.testing.assert_allclose(staged.weights, serial.weights, rtol=0, atol=1e-12)
    for mine, other in zip(staged.of("epoch"), serial.of("epoch"), strict=True):
        assert mine.fields["test_loss"] == pytest.approx(other.fields["test_loss"], rel=1e-12)


@pytest.mark.parametrize("schedule", ["interleaved", "zero_bubble"])
def test_hybrid_with_a_schedule_equals_all_reduce(schedule: str) -> None:
    """Replicas have different numbers of samples, and one ends with batches of weight 0."""
    hybrid = {"name": "hybrid", "schedule": schedule, "micro_batches": 4}
    expected, found = train("all_reduce", 2, **RUN), train(hybrid, 4, **RUN)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-3, atol=2e-5)
    assert found.same_weights


def test_zero_bubble_has_the_weights_of_1f1b_bitwise() -> None:
    fields = {
        **RUN,
        "model": {"name": "wide_resnet", "widen": 1},
        "dataset": IMAGES,
        "optimizer": "momentum",
    }
    pipelines = [
        {"name": "pipeline", "schedule": schedule, "split_points": ["block2", "norm"], "micro_batches": 3}
        for schedule in ("1f1b", "zero_bubble")
    ]
    plain, split = (train(pipeline, 3, **fields) for pipeline in pipelines)
    np.testing.assert_array_equal(split.weights, plain.weights)


def test_weights_and_statistics_of_chunks_are_joined_in_model_order() -> None:
    fields = {**RUN, "model": {"name": "wide_resnet", "widen": 1}, "dataset": IMAGES, "epochs": 1}
    points = ["block1", "block2", "block3"]
    four = train({"name": "pipeline", "split_points": points, "micro_batches": 2}, 4, **fields)
    chunks = {"name": "pipeline", "split_points": points, "micro_batches": 2, "schedule": "interleaved"}
    two = train(chunks, 2, **fields)
    assert two.results[0].weights_digest == four.results[0].weights_digest
    assert two.results[0].blocks == ["stem", "block2"]
    # Activations cross all three split points, and gradients come back.
    assert sum(result.bytes_sent for result in two.results) == sum(r.bytes_sent for r in four.results)


def test_all_ranks_of_zero_bubble_store_as_much_as_the_first_of_1f1b() -> None:
    fields = {**RUN, "batch_size": 16, "dataset": {**TOKENS, "samples": 16}}

    def stored(schedule: str) -> list[int]:
        pipeline = {"name": "pipeline", "schedule": schedule, "micro_batches": 8}
        training = train({**pipeline, "split_points": ["block3", "block5"]}, 3, **fields)
        return [result.activation_bytes or 0 for result in training.results]

    plain, split = stored("1f1b"), stored("zero_bubble")
    assert split[0] == pytest.approx(plain[0], rel=0.05)
    # Two and one micro-batches, against three.
    assert split[1] / plain[1] == pytest.approx(3 / 2, rel=0.05)
    assert split[2] / plain[2] == pytest.approx(3, rel=0.1)


def test_a_split_backward_pass_computes_the_gradient_of_weights_last() -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(3, 3), nn.Flatten(), nn.Linear(12, 4))

    plain, split = model(), model()
    layers = SplitLayers(split)
    inputs = [torch.randn(5, 2, 4, 4).requires_grad_() for _ in range(2)]
    passes = []
    for x in inputs:
        split(x).square().sum().backward()
        assert split[0].weight.grad is None  # both passes come first
        passes.append(layers.take())
    found = [x.grad for x in inputs]
    for each in passes:
        layers.run(each)
    for x, gradient in zip(inputs, found, strict=True):
        x.grad = None
        plain(x).square().sum().backward()
        torch.testing.assert_close(gradient, x.grad, rtol=0, atol=0)
    for mine, other in zip(split.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("strategy", "nodes", "facts"),
    [
        ({"schedule": "interleaved", "micro_batches": 5}, 2, ["multiple", "(2)", "not 5", "2, 4, 6, …"]),
        ({"schedule": "interleaved"}, 1, ["two stages", "allowed: schedule 1f1b"]),
        ({"chunks": 2}, 2, ["chunks: 2", "interleaved", "1f1b"]),
        ({"schedule": "interleaved", "chunks": 5}, 2, ["10 stages", "8 blocks"]),
        ({"schedule": "interleaved", "split_points": ["block2"]}, 2, ["stages: 4", "needed: 3"]),
        ({"schedule": "zero_bubble", "micro_batches": 2}, 3, ["(3), not 2", "3 to 9"]),
    ],
    ids=str,
)
def test_invalid_schedules_are_refused(strategy: dict[str, Any], nodes: int, facts: list[str]) -> None:
    fields = {**SMALL, **RUN, "strategy": {"name": "pipeline", **strategy}, "nodes": nodes}
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(fields)
    (error,) = caught.value.errors()
    assert [fact for fact in facts if fact not in error["msg"]] == []
