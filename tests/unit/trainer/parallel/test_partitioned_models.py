"""Pipeline equals serial and hybrid equals all_reduce: the same loss in each step, the same weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.unit.training import SMALL, Training, train
from trainer.parallel.pipeline_stage import PipelineStage
from trainer.spec.run_spec import RunSpec
from trainer.training.profile import BlockProfile, profile_blocks
from trainer.training.replica import Replica

LENET = {"name": "lenet", "dropout": 0.0}
# 120 samples in batches of 11: no batch is a multiple of the micro-batches, the last has 10. 55 steps.
STEPS: dict[str, Any] = {"model": LENET, "batch_size": 11, "epochs": 5, "optimizer": "momentum", "lr": 0.02}
SPLIT_POINTS = [
    ["pool1"],  # uneven
    ["conv2", "fc1"],
    ["pool1", "relu1", "conv2"],  # two stages without weights
    ["conv2", "log_softmax"],  # the last stage has none
]
Losses = list[float]


def with_losses(strategy: Any, ranks: int, **fields: Any) -> tuple[Training, Losses]:
    """Train. Also return the loss of every step."""
    losses: Losses = []
    step = Replica.step

    def recording_step(self: Replica) -> None:
        step(self)
        if self.loss is not None:
            losses.append(self.loss.item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "step", recording_step)
        return train(strategy, ranks, **fields), losses


@pytest.fixture(scope="module")
def serial() -> tuple[Training, Losses]:
    return with_losses("serial", 1, **STEPS)


def assert_same_training(training: Training, expected: Training) -> None:
    # 55 momentum steps with sums in another order. A wrong sum is off by 1e-3 or more.
    np.testing.assert_allclose(training.weights, expected.weights, rtol=1e-3, atol=2e-5)
    assert training.same_weights
    for mine, other in zip(training.of("epoch"), expected.of("epoch"), strict=True):
        assert mine.fields["accuracy"] == pytest.approx(other.fields["accuracy"], abs=1 / 40)
        assert mine.fields["test_loss"] == pytest.approx(other.fields["test_loss"], rel=1e-4)


# Pipeline


def test_default_split_points_weigh_time_and_bytes_of_a_micro_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def equally_fast(*arguments: Any, **options: Any) -> list[BlockProfile]:
        blocks = profile_blocks(*arguments, **options)
        return [replace(block, forward_s=1e-5, backward_s=1e-5) for block in blocks]

    monkeypatch.setattr("trainer.parallel.pipeline_stage.profile_blocks", equally_fast)
    training = train("pipeline", 2, model=LENET, batch_size=32, epochs=1)
    # relu2 | dropout would be 6 : 7 blocks, but sends 15 kB per micro-batch; after pool3 there are 4 kB.
    assert [(result.blocks or [])[0] for result in training.results] == ["conv1", "flatten"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split_points", "micro_batches"),
    [*((split_points, 3) for split_points in SPLIT_POINTS), (SPLIT_POINTS[1], 1), (SPLIT_POINTS[1], 4)],
    ids=str,
)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_pipeline_equals_serial_in_every_step(
    serial: tuple[Training, Losses], schedule: str, split_points: list[str], micro_batches: int
) -> None:
    expected, losses = serial
    pipeline = {
        "name": "pipeline",
        "schedule": schedule,
        "split_points": split_points,
        "micro_batches": micro_batches,
    }
    found, losses_found = with_losses(pipeline, len(split_points) + 1, **STEPS)
    assert len(losses) == 55
    np.testing.assert_allclose(losses_found, losses, rtol=1e-4, atol=1e-5)
    assert_same_training(found, expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_pipeline_equals_serial_with_every_optimizer(optimizer: str) -> None:
    fields = {**STEPS, "optimizer": optimizer, "lr": 0.01, "epochs": 2}
    assert_same_training(
        train({"name": "pipeline", "micro_batches": 2}, 3, **fields), train("serial", 1, **fields)
    )


def test_one_stage_and_one_micro_batch_equal_serial_bitwise_with_dropout() -> None:
    fields = {**STEPS, "model": "lenet", "epochs": 2}
    serial = train("serial", 1, **fields)
    alone = train({"name": "pipeline", "micro_batches": 1}, 1, **fields)
    np.testing.assert_array_equal(alone.weights, serial.weights)


def test_weights_of_stages_with_running_statistics_are_joined_in_model_order() -> None:
    """All parameters come before all statistics, so the digest equals serial's."""
    dataset = {**SMALL["dataset"], "height": 12, "width": 12}
    fields = {**STEPS, "model": {"name": "wide_resnet", "widen": 1}, "dataset": dataset, "epochs": 1}
    pipeline = {"name": "pipeline", "micro_batches": 1, "split_points": ["block2", "norm"]}
    serial, staged = train("serial", 1, **fields), train(pipeline, 3, **fields)
    assert staged.results[0].weights_digest == serial.results[0].weights_digest


def test_a_stage_reports_its_blocks_state_and_traffic() -> None:
    """lenet split at flatten sends 30×2×2 activations per sample forward, and their gradients back."""
    gpipe = train({"name": "pipeline", "split_points": ["flatten"], "schedule": "gpipe"}, 2, **STEPS)
    first, last = gpipe.results
    payload = 5 * 120 * 120 * 4  # epochs, samples, activations, bytes
    assert (first.bytes_to, last.bytes_to) == ([0, payload], [payload, 0])
    assert (first.bytes_sent, last.bytes_sent) == (payload, payload)
    assert first.blocks == ["conv1", "pool1", "relu1", "conv2", "pool2", "relu2", "dropout", "pool3"]
    assert last.blocks == ["flatten", "fc1", "relu3", "fc2", "log_softmax"]
    assert (first.parameters, last.parameters) == (7790, 7870)
    for stage in gpipe.results:
        assert stage.state_bytes == dict.fromkeys(
            ("weights", "gradient", "optimizer"), 4 * stage.parameters
        )
        assert stage.steps == 55
    assert (first.samples, last.samples) == (600, 0)
    assert (first.weights_digest is None, last.weights_digest is None) == (False, True)
    assert [len(gpipe.of("partition", rank)) for rank in range(2)] == [5, 0]
    # Only the last stage knows the loss. All stages know the accuracy of the whole model.
    losses = [[event.fields["loss"] is None for event in gpipe.of("epoch", rank)] for rank in range(2)]
    assert losses == [[True] * 5, [False] * 5]
    assert first.accuracy == last.accuracy


def test_1f1b_stores_fewer_activations_than_gpipe() -> None:
    def activation_bytes(schedule: str) -> list[int]:
        pipeline = {"name": "pipeline", "split_points": ["conv2"], "schedule": schedule, "micro_batches": 8}
        training = train(pipeline, 2, **{**STEPS, "batch_size": 24, "epochs": 1})
        return [result.activation_bytes or 0 for result in training.results]

    (gpipe_first, gpipe_last), (first, last) = activation_bytes("gpipe"), activation_bytes("1f1b")
    images = 24 * 28 * 28 * 4  # micro-batches are views of one storage
    assert first - images == pytest.approx((gpipe_first - images) * 2 / 8)
    assert last == pytest.approx(gpipe_last / 8, rel=0.01)


# Hybrid


@pytest.mark.slow
@pytest.mark.parametrize("uneven", ["join", "drop", "pad"])
@pytest.mark.parametrize(
    ("replicas", "stages", "split_points"), [(2, 2, ["flatten"]), (3, 1, []), (2, 3, None)]
)
def test_hybrid_equals_all_reduce(replicas: int, stages: int, split_points: list[str], uneven: str) -> None:
    odd = {"dataset": {"name": "synthetic", "samples": 121, "test_samples": 40, "noise": 1.0}}
    fields = {**STEPS, **odd, "epochs": 2}
    expected = train({"name": "all_reduce", "uneven": uneven}, replicas, **fields)
    hybrid = {
        "name": "hybrid",
        "mesh": {"data": replicas, "pipeline": stages},
        "split_points": split_points,
        "micro_batches": 3,
        "uneven": uneven,
    }
    found = train(hybrid, replicas * stages, **fields)
    assert_same_training(found, expected)
    samples = [result.samples for result in found.results]
    assert samples[::stages] == [result.samples for result in expected.results]
    assert sum(samples) == sum(samples[::stages])
    digests = [result.weights_digest for result in found.results]
    assert all(digests[::stages])


def test_hybrid_of_one_replica_equals_pipeline() -> None:
    pipeline = train({"name": "pipeline", "split_points": ["flatten"]}, 2, **STEPS)
    hybrid = train({"name": "hybrid", "mesh": {"pipeline": 2}, "split_points": ["flatten"]}, 2, **STEPS)
    np.testing.assert_array_equal(hybrid.weights, pipeline.weights)
    assert [each.bytes_to for each in hybrid.results] == [each.bytes_to for each in pipeline.results]


def test_a_batch_with_weight_0_does_not_change_the_loss() -> None:
    stage = PipelineStage.__new__(PipelineStage)
    stage._is_last, stage._loss_weight, stage._sends = True, 0.0, []
    stage._own_buffers, stage._before = [], []
    stage.loss = before = object()  # type: ignore[assignment]
    stage.finish_batch()
    assert stage.loss is before


# batch_per: run


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_batch_per_run_gives_all_reduce_the_steps_of_serial(ranks: int) -> None:
    run: dict[str, Any] = {**STEPS, "batch_size": 12, "batch_per": "run"}
    serial = train("serial", 1, **run)
    shared = train("all_reduce", ranks, **run)
    assert {result.steps for result in shared.results} == {serial.results[0].steps}
    assert sum(result.samples for result in shared.results) == serial.results[0].samples


# Validation


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        (
            {"strategy": "pipeline", "nodes": 14},
            ["pipeline", "lenet", "14 nodes", "13 blocks: conv1, pool1"],
        ),
        (
            {"strategy": {"name": "pipeline", "split_points": ["fc9"]}, "nodes": 2},
            ["'fc9'", "allowed: pool1, relu1"],
        ),
        (
            {"strategy": {"name": "pipeline", "split_points": ["flatten"]}, "nodes": 3},
            ["stages: 3", "split points: 1", "pool1, relu1"],
        ),
        (
            {"strategy": {"name": "pipeline", "micro_batches": 33}, "nodes": 2},
            ["33", "allowed: 1 to 32"],
        ),
        (
            {"strategy": {"name": "hybrid", "mesh": {"data": 2, "pipeline": 3}}, "nodes": 4},
            ["mesh {data: 2, pipeline: 3}", "6 ranks", "allowed: {data: 4}, {data: 2, pipeline: 2}, "],
        ),
        (
            {"strategy": "hybrid", "nodes": 5},
            ["mesh {data: 2, pipeline: 2}", "allowed: {data: 5}, {pipeline: 5}, {tensor: 5}"],
        ),
        ({"strategy": "hybrid", "nodes": 17}, ["16 ranks", "allowed: {data: 17}"]),
        (
            {"strategy": {"name": "pipeline", "split_points": ["fc1"]}},
            ["stages: 1", "split points: 1", "pool1"],
        ),
        (
            {"strategy": "pipeline", "nodes": 2, "model": {"name": "wide_resnet", "norm": "sync_batch"}},
            ["pipeline", "sync_batch", "allowed: all_reduce"],
        ),
        (
            {"strategy": "one_shot", "nodes": 2, "model": {"name": "wide_resnet", "norm": "sync_batch"}},
            ["one_shot", "sync_batch", "allowed: all_reduce"],
        ),
        (
            {"strategy": {"name": "hybrid", "micro_batches": 4}, "nodes": 4, "batch_size": 3},
            ["4", "allowed: 1 to 3"],
        ),
        (
            {"strategy": {"name": "pipeline_torch", "micro_batches": 3}, "nodes": 4},
            ["1f1b", "3", "allowed: 4 to 32 micro-batches, or schedule gpipe"],
        ),
        (
            {"strategy": {"name": "pipeline_torch", "micro_batches": 3}, "nodes": 14},
            ["13 blocks"],
        ),
        (
            {"strategy": "all_reduce", "nodes": 3, "batch_per": "run"},
            ["32", "3"],
        ),
    ],
)
def test_invalid_partitions_are_refused(fields: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({**SMALL, "batch_size": 32, "model": "lenet", **fields})
    (error,) = caught.value.errors()
    assert [fact for fact in facts if fact not in error["msg"]] == []
