"""Training in bf16: layers compute in it; weights, gradients, exchanges and evaluation are float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.unit.training import ON_TOKENS, fields_for, train
from trainer.spec.run_spec import RunSpec
from trainer.training.replica import Replica

RUN: dict[str, Any] = {**ON_TOKENS, "batch_size": 13, "epochs": 1, "lr": 0.5}
PIPELINE: dict[str, Any] = {"name": "pipeline", "split_points": ["block1"]}


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("serial", 1),
        ("all_reduce", 2),
        ("zero2", 2),
        (PIPELINE, 2),
        ({**PIPELINE, "schedule": "zero_bubble"}, 2),
    ],
    ids=str,
)
def test_weights_are_near_those_of_float32(strategy: Any, ranks: int) -> None:
    single, half = (train(strategy, ranks, precision=each, **RUN) for each in ("float32", "bf16"))
    distance = np.abs(half.weights - single.weights).max()
    assert 1e-5 < distance < 5e-3  # bf16 has 8 bits: the steps of both differ, and not by much
    assert half.same_weights


def test_layers_store_less_and_gradients_stay_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    types, step = set[torch.dtype](), Replica.step

    def watched(replica: Replica) -> None:
        types.update(each.grad.dtype for each in replica.model.parameters() if each.grad is not None)
        step(replica)

    monkeypatch.setattr(Replica, "step", watched)
    single, half = (train("serial", 1, precision=each, **RUN) for each in ("float32", "bf16"))
    assert types == {torch.float32}
    stored, before = (each.results[0].activation_bytes or 0 for each in (half, single))
    assert stored < 0.7 * before
    assert half.results[0].state_bytes == single.results[0].state_bytes


def test_stages_exchange_float32() -> None:
    stages = {"name": "pipeline", "split_points": ["output"]}  # after a layer whose output is bf16
    single, half = (train(stages, 2, precision=each) for each in ("float32", "bf16"))
    assert [each.bytes_sent for each in half.results] == [each.bytes_sent for each in single.results]


def test_the_model_is_evaluated_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    types, predict = set[bool](), Replica.predict

    def watched(replica: Replica, inputs: torch.Tensor) -> torch.Tensor | None:
        types.add(torch.is_autocast_enabled("cpu"))
        return predict(replica, inputs)

    monkeypatch.setattr(Replica, "predict", watched)
    train("serial", 1, precision="bf16", **RUN)
    assert types == {False}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"strategy": "tensor_parallel"}, "tensor_parallel"),
        ({"strategy": "context_parallel"}, "context_parallel"),
        ({"strategy": "expert_parallel", **fields_for("expert_parallel")}, "expert_parallel"),
        (
            {"dataset": "digits", "model": {"name": "wide_resnet", "norm": "sync_batch"}},
            "wide_resnet with sync_batch",
        ),
    ],
    ids=str,
)
def test_exchanges_in_a_forward_pass_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(
            {**ON_TOKENS, "strategy": "all_reduce", "nodes": 2, "precision": "bf16", **fields}
        )
    (error,) = caught.value.errors()
    assert error["type"] == "precision"
    assert named in error["msg"]
    assert "allowed: float32" in error["msg"]
