"""Mistakes of strategies that divide a model: other steps than those of whole replicas, bytes, memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import ceil
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from tests.support.step_bytes import mean_step_bytes
from tests.unit.training import SMALL, Training, train
from trainer.parallel.pipeline_stage import PipelineStage
from trainer.spec.run_spec import RunSpec
from trainer.training.profile import BlockProfile, profile_blocks
from trainer.training.replica import Replica
from trainer.training.session import Session

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
ADAM, CLIPPED = {"optimizer": "adam", "lr": 0.002}, {"clip_norm": 0.3}
Losses = dict[int, list[float]]  # of all steps, by the ranks that know them


def with_losses_of_ranks(strategy: Any, ranks: int, **fields: Any) -> tuple[Training, Losses]:
    losses: Losses = defaultdict(list)
    start, step, rank_of = Session.start, Replica.step, {}

    def starting(self: Session, replica: Replica, *arguments: Any) -> None:
        rank_of[replica] = self.rank
        start(self, replica, *arguments)

    def recording(self: Replica) -> None:
        step(self)
        if self.loss is not None:
            losses[rank_of[self]].append(self.loss.item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "start", starting)
        patch.setattr(Replica, "step", recording)
        return train(strategy, ranks, **fields), losses


def with_losses(strategy: Any, ranks: int, **fields: Any) -> tuple[Training, list[float]]:
    """Train. Also return the losses of all steps of all ranks that know them."""
    training, losses = with_losses_of_ranks(strategy, ranks, **fields)
    return training, [loss for rank in sorted(losses) for loss in losses[rank]]


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
    "more-micro-batches-than-samples": (pipeline("interleaved", 9), 3, DEEP, {}),
    "zero_bubble": (pipeline("zero_bubble", 4), 3, DEEP, ADAM),
    "tensor-lenet": (TENSOR, 3, "lenet", {}),
    "tensor-channel-dropout": (TENSOR, 3, "mnist_cnn", {}),
    "tensor-mlp": (TENSOR, 4, MLP, {**IMAGES, **ADAM}),
    "tensor-a-layer-alone": (TENSOR, 3, {"name": "mlp", "hidden": [9, 7]}, IMAGES),
    "tensor-batch-norm": (TENSOR, 3, {**VGG, "norm": "batch", "dropout": 0.3}, IMAGES),
    "tensor-group-norm": (TENSOR, 2, {"name": "wide_resnet", "widen": 3, "norm": "group"}, IMAGES),
    "tensor-vit": (TENSOR, 2, {**GPT, "name": "vit_small", "patch": 3, "dropout": 0.1}, IMAGES),
    "tensor-llama": (TENSOR, 3, LLAMA, CLIPPED),
    "sequence-gpt": (SEQUENCE, 4, {**GPT, "dropout": 0.1}, {}),
    "sequence-llama": (SEQUENCE, 3, LLAMA, ADAM),
    "ring-gpt": (RING, 3, {**GPT, "dropout": 0.1}, {}),
    "ring-llama": (RING, 4, LLAMA, ADAM),
    "ulysses-gpt": (ULYSSES, 4, {**GPT, "dropout": 0.1}, {}),
    "ulysses-llama": (ULYSSES, 2, LLAMA, {}),
    "experts-without-limits": (EXPERT, 3, {**MOE, "capacity_factor": None, "balance": 0.0}, {}),
    "experts-in-balance": (EXPERT, 2, {**MOE, "balance": 0.5}, CLIPPED),
    "two-experts": (EXPERT, 4, {**LLAMA, "experts": 5, "top_k": 2, "capacity_factor": 0.6}, ADAM),
    **{
        f"experts-{uneven}": ({"name": EXPERT, "uneven": uneven}, 3, MOE, {"partitioner": "quantity"})
        for uneven in ("join", "drop", "pad")
    },
    "tied-replicas": (hybrid({"data": 2}, micro_batches=2), 2, {**GPT, "tied": True}, {}),
    "mesh-pipelines": (hybrid({"data": 2, "pipeline": 3}, micro_batches=3), 6, DEEP, ADAM),
    "mesh-drop": (hybrid({"data": 2, "pipeline": 2}, uneven="drop"), 4, VGG, IMAGES),
    "mesh-pad": (hybrid({"data": 3}, uneven="pad", micro_batches=2), 3, VGG, IMAGES),
    "mesh-replicated-dropout": (hybrid({"data": 2, "tensor": 2}, micro_batches=1), 4, LLAMA, CLIPPED),
    "mesh-images": (hybrid({"pipeline": 2, "tensor": 2}), 4, VGG, {**IMAGES, **CLIPPED}),
    "mesh-statistics": (hybrid(EIGHT, micro_batches=1), 8, {**VGG, "norm": "batch"}, IMAGES),
    "mesh-gpipe": (hybrid(EIGHT, schedule="gpipe"), 8, MLP, IMAGES),
    "mesh-interleaved": (hybrid(EIGHT, schedule="interleaved"), 8, {**DEEP, "layers": 4}, CLIPPED),
    "mesh-zero_bubble": (hybrid(EIGHT, schedule="zero_bubble"), 8, GPT, {}),
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
    expected, losses = with_losses_of_ranks(whole, spec.num_replicas, **run)
    found, losses_found = with_losses_of_ranks(strategy, ranks, **run)
    assert losses_found
    for rank, of_rank in losses_found.items():
        replica = spec.strategy.replica_of(rank, ranks)
        np.testing.assert_allclose(of_rank, losses[replica], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=1e-12)
    assert found.same_weights
    for mine, other in zip(found.of("epoch"), expected.of("epoch"), strict=True):
        assert mine.fields["accuracy"] == other.fields["accuracy"]
        assert mine.fields["test_loss"] == pytest.approx(other.fields["test_loss"], rel=1e-12)
    reported = [rank for rank in range(ranks) if spec.strategy.reports_samples(rank, ranks)]
    samples = [result.samples for result in found.results]
    assert [samples[rank] for rank in reported] == [result.samples for result in expected.results]
    assert sum(samples) == sum(samples[rank] for rank in reported)


@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        ({"name": "pipeline", "micro_batches": 1}, "lenet"),
        (TENSOR, "lenet"),
        (TENSOR, {"name": "mlp", "hidden": []}),  # without a pair
        (RING, {**GPT, "dropout": 0.1}),
        (EXPERT, MOE),
    ],
    ids=["pipeline", "tensor", "no-pair", "context", "expert"],
)
def test_one_rank_equals_serial_bitwise(strategy: Any, model: Any) -> None:
    serial, alone = (train(each, 1, **run_of(model, {})) for each in ("serial", strategy))
    np.testing.assert_array_equal(alone.weights, serial.weights)
    assert alone.results[0].bytes_sent == 0


def test_zero_bubble_has_the_weights_of_1f1b_bitwise() -> None:
    plain, split = (
        train(pipeline(schedule, 3, "block2", "norm"), 3, **run_of(RESNET, IMAGES))
        for schedule in ("1f1b", "zero_bubble")
    )
    np.testing.assert_array_equal(split.weights, plain.weights)


def test_weights_and_statistics_of_chunks_are_joined_in_model_order() -> None:
    points = ["block1", "block2", "block3"]
    two, four = (
        train(pipeline(schedule, 2, *points), ranks, **run_of(RESNET, IMAGES))
        for schedule, ranks in (("interleaved", 2), ("1f1b", 4))
    )
    assert two.results[0].weights_digest == four.results[0].weights_digest
    assert two.results[0].blocks == ["stem", "block2"]


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
    strategies = [
        (EXPERT, 2),
        ("all_reduce", 2),
        (pipeline("1f1b", 4, "block2"), 2),
        (hybrid({"data": 2, "pipeline": 2}, split_points=["block2"], micro_batches=4), 4),
        (SEQUENCE, 2),
        (RING, 2),
        (TENSOR, 2),
    ]
    for strategy, ranks in strategies:
        split = train(strategy, ranks, **run)
        np.testing.assert_allclose(split.weights, serial.weights, rtol=0, atol=1e-12, err_msg=str(strategy))


def test_a_batch_with_weight_0_does_not_change_the_loss() -> None:
    stage = PipelineStage.__new__(PipelineStage)
    stage._is_last, stage._loss_weight, stage._sends = True, 0.0, []
    stage._own_buffers, stage._before = [], []
    stage.loss = before = object()  # type: ignore[assignment]
    stage.finish_batch()
    assert stage.loss is before


def test_default_split_points_weigh_bytes_of_a_micro_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def equally_fast(*arguments: Any, **options: Any) -> list[BlockProfile]:
        blocks = profile_blocks(*arguments, **options)
        return [replace(block, forward_s=1e-5, backward_s=1e-5) for block in blocks]

    monkeypatch.setattr("trainer.parallel.pipeline_stage.profile_blocks", equally_fast)
    training = train("pipeline", 2, model=LENET, batch_size=32, epochs=1)
    # relu2 | dropout would be 6 : 7 blocks, but sends 15 kB per micro-batch; after pool3 there are 4 kB.
    assert [(result.blocks or [])[0] for result in training.results] == ["conv1", "flatten"]


# Bytes and memory


@pytest.mark.parametrize(
    ("strategy", "ranks", "points"),
    [
        (hybrid(EIGHT), 8, ["block2"]),
        ({"name": "pipeline", "schedule": "interleaved"}, 2, ["block1", "block2", "head"]),
        (SEQUENCE, 2, None),
        (TENSOR, 3, None),
        (RING, 2, None),
        (RING, 3, None),
        (ULYSSES, 2, None),
    ],
    ids=["hybrid", "interleaved", "sequence", "tensor", "ring-2", "ring-3", "ulysses"],
)
def test_the_bytes_of_a_step_are_those_of_the_formula(
    strategy: Any, ranks: int, points: list[str] | None
) -> None:
    """Of the docstring of the strategy."""
    strategy = {**strategy, "split_points": points} if points else strategy
    replicas = 2 if ranks == 8 else 1
    run = run_of(GPT, {"dataset": {**TOKENS, "samples": 18 * replicas}})
    training = train(strategy, ranks, **run)
    spec = RunSpec.model_validate({**run, "strategy": strategy, "nodes": ranks, "transport": "memory"})
    parameters = [result.parameters for result in training.results]
    whole = train("serial", 1, **run).results[0].parameters
    expected = mean_step_bytes(spec, 9 * replicas, parameters, whole)
    assert expected is not None
    if strategy in (SEQUENCE, RING, ULYSSES):
        expected += 2 * 4 * 2 * (ranks - 1) / ranks  # the loss and the accuracy
    assert {result.steps for result in training.results} == {2}
    assert fmean(result.bytes_sent for result in training.results) == pytest.approx(2 * expected)


def test_parameters_of_chunks_are_known_in_advance() -> None:
    points, mesh = ["block1", "block2", "head"], {"pipeline": 2, "tensor": 2}
    strategy = hybrid(mesh, schedule="interleaved", split_points=points)
    training = train(strategy, 4, **run_of(GPT, {}))
    spec = RunSpec.model_validate({**run_of(GPT, {}), "strategy": strategy, "nodes": 4})
    found = spec.strategy.parameters_by_rank(spec, points)  # type: ignore[attr-defined]
    assert found == [result.parameters for result in training.results]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_bytes_of_experts_are_those_of_the_formula(ranks: int) -> None:
    """With room for one token, every expert has one of every rank."""
    batch, experts, layers = 8, 5, 2
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


def test_a_stage_reports_its_blocks_state_and_traffic() -> None:
    """lenet split at flatten sends 30×2×2 activations per sample forward, and their gradients back."""
    gpipe = train(pipeline("gpipe", 4, "flatten"), 2, **{**run_of(LENET, {}), "epochs": 2})
    first, last = gpipe.results
    payload = 2 * 25 * 120 * 4  # epochs, samples, activations, bytes
    assert (first.bytes_to, last.bytes_to) == ([0, payload], [payload, 0])
    assert (first.bytes_sent, last.bytes_sent) == (payload, payload)
    assert first.blocks == ["conv1", "pool1", "relu1", "conv2", "pool2", "relu2", "dropout", "pool3"]
    assert last.blocks == ["flatten", "fc1", "relu3", "fc2", "log_softmax"]
    assert (first.parameters, last.parameters) == (7790, 7870)
    for stage in gpipe.results:
        held = dict.fromkeys(("weights", "gradient", "optimizer"), 4 * stage.parameters)
        assert (stage.state_bytes, stage.steps) == (held, 6)
    assert (first.weights_digest is None, last.weights_digest is None) == (False, True)
    assert [len(gpipe.of("partition", rank)) for rank in range(2)] == [2, 0]
    # Only the last stage knows the loss. All stages know the accuracy of the whole model.
    losses = [[event.fields["loss"] is None for event in gpipe.of("epoch", rank)] for rank in range(2)]
    assert losses == [[True] * 2, [False] * 2]
    assert first.accuracy == last.accuracy


def test_ranks_of_a_mesh_send_to_the_next_stage_of_their_shard() -> None:
    run = run_of(GPT, {"dataset": {**TOKENS, "samples": 36}})
    training = train(hybrid(EIGHT, split_points=["block2"]), 8, **run)
    for rank, result in enumerate(training.results):
        neighbour = rank + 2 if rank % 4 < 2 else rank - 2
        # Two steps of 9 samples; activations of the tokens of a sample between blocks, or their gradients.
        assert result.bytes_to == [2 * 4 * 9 * WINDOW * WIDTH * (to == neighbour) for to in range(8)]


def test_ranks_hold_their_shards_and_experts() -> None:
    tensor = train(TENSOR, 4, **run_of(LENET, {}))
    for channels, result in zip((3, 3, 2, 2), tensor.results, strict=True):
        conv1, conv2 = channels * (25 + 1), 30 * channels * 25 + 30
        fc1, fc2 = 15 * (120 + 1), 10 * 15 + 10
        assert result.parameters == conv1 + conv2 + fc1 + fc2
        held = dict.fromkeys(("weights", "gradient", "optimizer"), 4 * result.parameters)
        assert (result.state_bytes, result.blocks) == (held, None)
    assert [len(tensor.of("partition", rank)) for rank in range(4)] == [1, 0, 0, 0]
    assert len({result.accuracy for result in tensor.results}) == 1
    experts = train(EXPERT, 3, **run_of(MOE, {}))
    most, _, least = [result.parameters for result in experts.results]
    expert = 2 * (WIDTH * 64 + 64 + 64 * WIDTH + WIDTH)  # in both layers
    assert most - least == expert
    for result in experts.results:
        assert result.state_bytes["gradient"] == 4 * result.parameters
        assert result.state_bytes["weights"] == 4 * result.parameters + 2 * 16  # each layer counts choices
    assert len(experts.weights) == least + 4 * expert


def activation_bytes(strategy: Any, ranks: int, model: Any, samples: int) -> list[int]:
    """What each rank stores in a step, whose batch is the dataset."""
    dataset = {**(TOKENS if model is not LENET else DIGITS), "samples": samples}
    training = train(strategy, ranks, **run_of(model, {"dataset": dataset, "batch_size": samples}))
    return [result.activation_bytes or 0 for result in training.results]


def test_1f1b_stores_fewer_activations_than_gpipe() -> None:
    (gpipe_first, gpipe_last), (first, last) = (
        activation_bytes(pipeline(schedule, 8, "conv2"), 2, LENET, 24) for schedule in ("gpipe", "1f1b")
    )
    images = 24 * 28 * 28 * 4  # micro-batches are views of one storage
    assert first - images == pytest.approx((gpipe_first - images) * 2 / 8)
    assert last == pytest.approx(gpipe_last / 8, rel=0.01)


def test_all_ranks_of_zero_bubble_store_as_much_as_the_first_of_1f1b() -> None:
    plain, split = (
        activation_bytes(pipeline(schedule, 8, "block3", "block5"), 3, DEEP, 16)
        for schedule in ("1f1b", "zero_bubble")
    )
    assert split[0] == pytest.approx(plain[0], rel=0.05)
    # Two and one micro-batches, against three.
    assert split[1] / plain[1] == pytest.approx(3 / 2, rel=0.05)
    assert split[2] / plain[2] == pytest.approx(3, rel=0.1)


def test_ranks_with_some_of_the_tokens_store_fewer_activations() -> None:
    plain, divided = (activation_bytes(each, 2, GPT, 24)[0] for each in (TENSOR, SEQUENCE))
    assert 0 < divided < 0.9 * plain


def test_a_batch_per_run_gives_all_reduce_the_steps_of_serial() -> None:
    run: dict[str, Any] = {"batch_size": 12, "batch_per": "run"}
    serial, shared = train("serial", 1, **run), train("all_reduce", 2, **run)
    assert {result.steps for result in shared.results} == {serial.results[0].steps}
    assert sum(result.samples for result in shared.results) == serial.results[0].samples
