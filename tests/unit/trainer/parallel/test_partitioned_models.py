"""Mistakes of strategies that divide a model: other steps than those of whole replicas, bytes, memory."""

from __future__ import annotations

from math import ceil
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from tests.support.step_bytes import mean_step_bytes
from tests.unit.training import SMALL, train
from trainer.spec.run_spec import RunSpec

LENET = {"name": "lenet", "dropout": 0.0}
WINDOW, WIDTH = 12, 16
# 25 samples in batches of 9, the last of which has 7: parts, batches and micro-batches are unequal.
STEPS: dict[str, Any] = {"batch_size": 9, "epochs": 1, "optimizer": "momentum", "lr": 0.05}
TOKENS = {"name": "induction", "length": WINDOW - 1, "tokens": 15, "samples": 25, "test_samples": 20}
DIGITS = {"name": "synthetic", "samples": 25, "test_samples": 20, "noise": 1.0}
SMALL_IMAGES = {**DIGITS, "height": 12, "width": 9}
GPT = {"name": "gpt", "layers": 2, "width": WIDTH, "heads": 4}
LLAMA = {**GPT, "positions": "rope", "norm": "rms", "activation": "swiglu", "tied": True, "dropout": 0.1}
DEEP = {**GPT, "layers": 6}
MOE = {**GPT, "dropout": 0.1, "experts": 5}
MLP = {"name": "mlp", "hidden": [9, 8, 7, 6]}
VGG = {"name": "vgg_small", "width": 6, "hidden": 10, "norm": "group", "dropout": 0.0}
RESNET = {"name": "wide_resnet", "widen": 1}
EIGHT = {"data": 2, "pipeline": 2, "tensor": 2}
POINTS = ["block1", "block2", "head"]  # of four stages of GPT
ADAM, CLIPPED = {"optimizer": "adam", "lr": 0.002}, {"clip_norm": 0.3}


def pipeline(schedule: str, micro_batches: int, *split_points: str, **fields: Any) -> dict[str, Any]:
    points = {"split_points": [*split_points]} if split_points else {}
    return {"name": "pipeline", "schedule": schedule, "micro_batches": micro_batches, **points, **fields}


def hybrid(mesh: dict[str, int], **fields: Any) -> dict[str, Any]:
    return {"name": "hybrid", "mesh": mesh, **fields}


TENSOR, EXPERT = "tensor_parallel", "expert_parallel"
SEQUENCE = {"name": TENSOR, "sequence_parallel": True}
RING, ULYSSES = ({"name": "context_parallel", "attention": each} for each in ("ring", "ulysses"))
IMAGES = {"dataset": SMALL_IMAGES}

# Strategy, ranks, model, and other fields. Without a dataset it is DIGITS or TOKENS.
CASES: dict[str, tuple[Any, int, Any, dict[str, Any]]] = {
    "stages-without-weights": (pipeline("gpipe", 3, "pool1", "relu1", "conv2"), 4, LENET, ADAM),
    "no-weights-in-the-last-stage": (pipeline("1f1b", 4, "conv2", "log_softmax"), 3, LENET, {}),
    "statistics": (pipeline("1f1b", 1, "block2", "norm"), 3, RESNET, IMAGES),
    "eight-stages-on-two-ranks": (pipeline("interleaved", 8, chunks=4), 2, DEEP, CLIPPED),
    "more-micro-batches-than-samples": (pipeline("interleaved", 8), 2, GPT, {}),
    "zero_bubble": (pipeline("zero_bubble", 3, "flatten"), 2, {**VGG, "dropout": 0.3}, {**IMAGES, **ADAM}),
    "tensor-channel-dropout": (TENSOR, 3, "mnist_cnn", {}),
    "tensor-mlp": (TENSOR, 4, MLP, {**IMAGES, **ADAM}),
    "tensor-a-layer-alone": (TENSOR, 3, {"name": "mlp", "hidden": [9, 7]}, IMAGES),
    "tensor-batch-norm": (TENSOR, 3, {**VGG, "norm": "batch", "dropout": 0.3}, IMAGES),
    "tensor-vit": (TENSOR, 2, {**GPT, "name": "vit_small", "patch": 3, "dropout": 0.1}, IMAGES),
    "tensor-llama": (TENSOR, 3, LLAMA, CLIPPED),
    "sequence-gpt": (SEQUENCE, 4, {**GPT, "dropout": 0.1}, {}),
    "sequence-llama": (SEQUENCE, 3, LLAMA, ADAM),
    "ring-gpt": (RING, 3, {**GPT, "dropout": 0.1}, {}),
    "ring-llama": (RING, 4, LLAMA, ADAM),
    "ring-alone": (RING, 1, GPT, {}),
    "ulysses-gpt": (ULYSSES, 4, {**GPT, "dropout": 0.1}, {}),
    "ulysses-llama": (ULYSSES, 2, LLAMA, {}),
    "experts-alone": (EXPERT, 1, MOE, {}),
    "experts-without-limits": (EXPERT, 3, {**MOE, "capacity_factor": None, "balance": 0.0}, {}),
    "experts-in-balance": (EXPERT, 2, {**MOE, "balance": 0.5}, CLIPPED),
    "two-experts": (EXPERT, 4, {**LLAMA, "experts": 5, "top_k": 2, "capacity_factor": 0.6}, ADAM),
    "experts-join": (EXPERT, 3, MOE, {"partitioner": "quantity"}),
    "experts-pad": ({"name": EXPERT, "uneven": "pad"}, 3, MOE, {"partitioner": "quantity"}),
    "tied-replicas": (hybrid({"data": 2}, micro_batches=2), 2, {**GPT, "tied": True}, {}),
    "mesh-pipelines": (hybrid({"data": 2, "pipeline": 3}), 6, GPT, {**ADAM, "partitioner": "quantity"}),
    "mesh-drop": (hybrid({"data": 2, "pipeline": 2}, uneven="drop"), 4, VGG, IMAGES),
    "mesh-pad": (hybrid({"data": 3}, uneven="pad", micro_batches=2), 3, VGG, IMAGES),
    "mesh-replicated-dropout": (hybrid({"data": 2, "tensor": 2}, micro_batches=1), 4, LLAMA, CLIPPED),
    "mesh-images": (hybrid({"pipeline": 2, "tensor": 2}), 4, VGG, {**IMAGES, **CLIPPED}),
    "mesh-statistics": (hybrid(EIGHT, micro_batches=1), 8, {**VGG, "norm": "batch"}, IMAGES),
    "mesh-interleaved": (hybrid(EIGHT, schedule="interleaved", split_points=POINTS), 8, GPT, CLIPPED),
    "mesh-zero_bubble": (hybrid(EIGHT, schedule="zero_bubble", split_points=["block2"]), 8, GPT, {}),
}


def run_of(model: Any, fields: dict[str, Any]) -> dict[str, Any]:
    of_tokens = not isinstance(model, str) and model["name"] == "gpt"
    return {**STEPS, "dataset": TOKENS if of_tokens else DIGITS, "model": model, **fields}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", CASES)
def test_a_divided_model_equals_whole_replicas_in_every_step(name: str) -> None:
    """Also which samples each replica sees, dropout, and what it answers."""
    strategy, ranks, model, fields = CASES[name]
    run = run_of(model, fields)
    spec = RunSpec.model_validate({**SMALL, **run, "strategy": strategy, "nodes": ranks})
    whole: Any = "serial"
    if spec.num_replicas > 1:
        whole = {"name": "all_reduce", "uneven": getattr(spec.strategy, "uneven", "join")}
    expected, found = train(whole, spec.num_replicas, **run), train(strategy, ranks, **run)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=1e-12)
    assert found.same_weights
    known = 0
    for rank in range(ranks):
        both = (found, rank), (expected, spec.strategy.replica_of(rank, ranks))
        mine, other = (each.of("epoch", at)[0].fields for each, at in both)
        assert mine["accuracy"] == other["accuracy"]
        for loss in ("loss", "test_loss"):
            assert mine[loss] is None or mine[loss] == pytest.approx(other[loss], rel=1e-12)
        known += mine["loss"] is not None
    assert known
    reported = [rank for rank in range(ranks) if spec.strategy.reports_samples(rank, ranks)]
    samples = [result.samples for result in found.results]
    assert [samples[rank] for rank in reported] == [result.samples for result in expected.results]
    assert sum(samples) == sum(samples[rank] for rank in reported)


@pytest.mark.usefixtures("double")
def test_every_strategy_weighs_the_balance_loss_as_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean over tokens, in place of the balance loss, does not depend on how tokens are divided."""

    def mean_over_tokens(probabilities: Tensor) -> Tensor:
        return probabilities[:, 0].mean()

    monkeypatch.setattr("trainer.models.layers.experts.balance_loss", mean_over_tokens)
    model = {**MOE, "dropout": 0.0, "capacity_factor": None, "balance": 5.0}
    step = {"dataset": {**TOKENS, "samples": 22}, "optimizer": "sgd", "lr": 1.0, "batch_size": 22}
    run = run_of(model, {**step, "batch_per": "run"})
    serial = train("serial", 1, **run)
    mesh = hybrid({"data": 2, "pipeline": 2}, split_points=["block2"], micro_batches=4)
    stages = pipeline("1f1b", 4, "block2")
    strategies = (EXPERT, 2), ("all_reduce", 2), (stages, 2), (mesh, 4), (SEQUENCE, 2), (RING, 2)
    for strategy, ranks in strategies:
        split = train(strategy, ranks, **run)
        np.testing.assert_allclose(split.weights, serial.weights, rtol=0, atol=1e-12, err_msg=str(strategy))


# Bytes and memory


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        (hybrid(EIGHT, schedule="interleaved", split_points=POINTS), 8),
        (pipeline("interleaved", 4, *POINTS), 2),
        (SEQUENCE, 2),
        (TENSOR, 3),
        (RING, 3),
        (ULYSSES, 2),
    ],
    ids=["hybrid", "interleaved", "sequence", "tensor", "ring", "ulysses"],
)
def test_the_bytes_of_a_step_are_those_of_the_formula(strategy: Any, ranks: int) -> None:
    """Of the docstring of the strategy."""
    replicas = 2 if ranks == 8 else 1
    run = run_of(GPT, {"dataset": {**TOKENS, "samples": 18 * replicas}})
    results = train(strategy, ranks, **run).results
    spec = RunSpec.model_validate({**run, "strategy": strategy, "nodes": ranks, "transport": "memory"})
    parameters = [result.parameters for result in results]
    whole = train("serial", 1, **run).results[0].parameters
    expected = mean_step_bytes(spec, 9 * replicas, parameters, whole)
    assert expected is not None
    if strategy in (SEQUENCE, RING, ULYSSES):
        expected += 2 * 4 * 2 * (ranks - 1) / ranks  # the loss and the accuracy
    if ranks == 8:
        assert parameters == spec.strategy.parameters_by_rank(spec, POINTS)  # type: ignore[attr-defined]
    assert {result.steps for result in results} == {2}
    assert fmean(result.bytes_sent for result in results) == pytest.approx(2 * expected)


def test_the_bytes_of_experts_are_those_of_the_formula() -> None:
    """With room for one token, every expert has one of every rank."""
    batch, experts, layers, ranks = 8, 5, 2, 3
    model = {**MOE, "capacity_factor": 0.05, "layers": layers}
    fields = {"batch_size": batch, "dataset": {**TOKENS, "samples": batch * ranks * 2}}
    result = train(EXPERT, ranks, **run_of(model, fields)).results[0]
    longest = ceil(0.05 * batch * WINDOW / experts) * ceil(experts / ranks)
    tokens = 4 * experts * (ranks - 1) + 4 * 4 * WIDTH * longest * (ranks - 1)
    expert = WIDTH * 64 + 64 + 64 * WIDTH + WIDTH
    copies = result.parameters - layers * ceil(experts / ranks) * expert
    summed = 2 * 4 * copies * (ranks - 1) / ranks
    assert result.steps == 2
    assert result.bytes_sent == pytest.approx(2 * (layers * tokens + summed))


def test_ranks_report_their_blocks_state_and_traffic() -> None:
    """lenet split at flatten sends 30×2×2 activations per sample forward, and their gradients back."""
    run = run_of(LENET, {})
    gpipe, tensor = train(pipeline("gpipe", 4, "flatten"), 2, **run), train(TENSOR, 4, **run)
    payload = 25 * 120 * 4  # samples, activations, bytes
    assert [each.bytes_to for each in gpipe.results] == [[0, payload], [payload, 0]]
    assert [(each.blocks or [])[0] for each in gpipe.results] == ["conv1", "flatten"]
    assert [each.weights_digest is None for each in gpipe.results] == [False, True]
    shards = [26 * each + (30 * 25 * each + 30) + 15 * 121 + (10 * 15 + 10) for each in (3, 3, 2, 2)]
    for training, parameters in ((gpipe, [7790, 7870]), (tensor, shards)):
        assert [result.parameters for result in training.results] == parameters
        assert [len(training.of("partition", rank)) for rank in (0, 1)] == [1, 0]
        for result in training.results:
            held = dict.fromkeys(("weights", "gradient", "optimizer"), 4 * result.parameters)
            assert result.state_bytes == held
    experts = train(EXPERT, 3, **run_of(MOE, {}))
    most, _, least = [result.parameters for result in experts.results]
    expert = 2 * (WIDTH * 64 + 64 + 64 * WIDTH + WIDTH)  # in both layers
    assert (most - least, len(experts.weights)) == (expert, least + 4 * expert)
    for result in experts.results:
        state = result.state_bytes or {}
        assert state["gradient"] == 4 * result.parameters
        assert state["weights"] == 4 * result.parameters + 2 * 16  # each layer counts choices


def test_ranks_store_the_activations_of_the_micro_batches_in_flight() -> None:
    def stored(strategy: Any) -> list[int]:
        run = run_of(GPT, {"dataset": {**TOKENS, "samples": 24}, "batch_size": 24})
        return [result.activation_bytes or 0 for result in train(strategy, 2, **run).results]

    gpipe, plain, split = (stored(pipeline(each, 8, "block2")) for each in ("gpipe", "1f1b", "zero_bubble"))
    assert [plain[0] / gpipe[0], plain[1] / gpipe[1]] == pytest.approx([2 / 8, 1 / 8], rel=0.05)
    # As many on all ranks as on the first of 1f1b.
    assert [split[0] / plain[0], split[1] / plain[1]] == pytest.approx([1, 2], rel=0.1)
    assert 0 < stored(SEQUENCE)[0] < 0.9 * stored(TENSOR)[0]
