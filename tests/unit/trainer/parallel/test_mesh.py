"""Meshes equal all_reduce on as many replicas, or serial: the gradient, each loss, the final weights."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.unit.training import SMALL, Training, train
from trainer.parallel.mesh import Mesh
from trainer.spec.run_spec import RunSpec
from trainer.training.replica import Replica
from trainer.training.session import Session

GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4}
LLAMA = {"positions": "rope", "norm": "rms", "activation": "swiglu"}
TIED = {**GPT, **LLAMA, "tied": True, "dropout": 0.1}
# 23 samples in batches of 9 of a replica: replicas and batches are unequal, and so are micro-batches.
TOKENS: dict[str, Any] = {
    "dataset": {"name": "induction", "length": 7, "tokens": 9, "samples": 23, "test_samples": 20},
    "batch_size": 9,
    "epochs": 1,
    "optimizer": "adam",
    "lr": 0.002,
}
IMAGES: dict[str, Any] = {
    **TOKENS,
    "dataset": {**SMALL["dataset"], "samples": 23, "height": 12, "width": 9},  # type: ignore[dict-item]
}
VGG = {"name": "vgg_small", "width": 6, "hidden": 10, "norm": "group", "dropout": 0.0}
EIGHT = {"data": 2, "pipeline": 2, "tensor": 2}
Losses = dict[int, list[float]]


def with_losses(strategy: Any, ranks: int, **fields: Any) -> tuple[Training, Losses]:
    """Train. Also return the losses of all steps of each rank that knows them."""
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


def assert_equal_training(mesh: dict[str, int], parameters: dict[str, Any], **fields: Any) -> Training:
    """Train with a mesh, and compare with whole replicas."""
    own = Mesh(**mesh)
    reference = "all_reduce" if own.data > 1 else "serial"
    expected, losses = with_losses(reference, own.data, **fields)
    found, losses_found = with_losses({"name": "hybrid", "mesh": mesh, **parameters}, own.size, **fields)
    last = [rank for rank in range(own.size) if own.position(rank).pipeline == own.pipeline - 1]
    assert sorted(losses_found) == last
    for rank in last:
        replica = losses[own.position(rank).data]
        assert len(replica) > 0
        np.testing.assert_allclose(losses_found[rank], replica, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=1e-12)
    for mine, other in zip(found.of("epoch"), expected.of("epoch"), strict=True):
        assert mine.fields["accuracy"] == other.fields["accuracy"]
        assert mine.fields["test_loss"] == pytest.approx(other.fields["test_loss"], rel=1e-12)
    assert [each.samples for each in found.results if each.samples] == [
        each.samples for each in expected.results
    ]
    return found


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("mesh", "parameters", "fields"),
    [
        ({"data": 2}, {"micro_batches": 2}, {**TOKENS, "model": {**GPT, "tied": True}}),
        ({"data": 2, "tensor": 2}, {"micro_batches": 1}, {**TOKENS, "model": TIED, "clip_norm": 0.3}),
        ({"tensor": 3}, {"micro_batches": 1}, {**TOKENS, "model": TIED}),
        ({"tensor": 3}, {"micro_batches": 4}, {**IMAGES, "model": {"name": "mlp", "hidden": [7, 8, 9]}}),
        ({"pipeline": 2, "tensor": 2}, {}, {**TOKENS, "model": GPT, "clip_norm": 0.3}),
        ({"pipeline": 2, "tensor": 2}, {}, {**IMAGES, "model": VGG, "clip_norm": 0.3}),
        (EIGHT, {"schedule": "gpipe"}, {**IMAGES, "model": {"name": "mlp", "hidden": [7, 8, 9]}}),
        (EIGHT, {"schedule": "interleaved"}, {**TOKENS, "model": {**GPT, **LLAMA}, "clip_norm": 0.3}),
        (EIGHT, {"schedule": "zero_bubble"}, {**TOKENS, "model": GPT}),
    ],
    ids=str,
)
def test_a_mesh_equals_whole_replicas(
    mesh: dict[str, int], parameters: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert assert_equal_training(mesh, parameters, **fields).same_weights


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_the_gradient_of_each_parameter_is_that_of_whole_replicas(schedule: str) -> None:
    """One step of size 1."""
    fields = {**TOKENS, "dataset": {**TOKENS["dataset"], "samples": 11}, "optimizer": "sgd", "lr": 1.0}
    assert_equal_training(EIGHT, {"schedule": schedule}, **fields, model=GPT)
