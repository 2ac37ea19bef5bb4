"""Mistakes in bf16: what is computed, stored, exchanged and evaluated in which type, and who may use it."""

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


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("serial", 1), ("zero2", 2), ({"name": "pipeline", "split_points": ["block1"]}, 2)],
    ids=["serial", "zero2", "pipeline"],
)
def test_only_layers_compute_in_bf16(strategy: Any, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, gradients and evaluation are float32, as are the activations that stages exchange."""
    gradients, evaluated, step, predict = set[torch.dtype](), set[bool](), Replica.step, Replica.predict

    def stepping(replica: Replica) -> None:
        gradients.update(each.grad.dtype for each in replica.model.parameters() if each.grad is not None)
        step(replica)

    def predicting(replica: Replica, inputs: torch.Tensor) -> torch.Tensor | None:
        evaluated.add(torch.is_autocast_enabled("cpu"))
        return predict(replica, inputs)

    monkeypatch.setattr(Replica, "step", stepping)
    monkeypatch.setattr(Replica, "predict", predicting)
    single, half = (train(strategy, ranks, precision=each, **RUN) for each in ("float32", "bf16"))
    assert 1e-5 < np.abs(half.weights - single.weights).max() < 5e-3  # bf16 has 8 bits
    assert half.same_weights
    assert gradients <= {torch.float32}
    assert evaluated <= {False}
    stored, before = (sum(each.activation_bytes or 0 for each in t.results) for t in (half, single))
    assert stored < 0.7 * before
    for mine, other in zip(half.results, single.results, strict=True):
        assert (mine.state_bytes, mine.bytes_sent) == (other.state_bytes, other.bytes_sent)


def test_stages_exchange_float32() -> None:
    stages = {"name": "pipeline", "split_points": ["output"]}  # after a layer whose output is bf16
    single, half = (train(stages, 2, precision=each, epochs=1) for each in ("float32", "bf16"))
    assert [each.bytes_sent for each in half.results] == [each.bytes_sent for each in single.results]


def test_exchanges_in_a_forward_pass_are_refused() -> None:
    sync = {"dataset": "digits", "model": {"name": "wide_resnet", "norm": "sync_batch"}}
    splits: dict[str, dict[str, Any]] = {
        name: {"strategy": name, **fields_for(name)}
        for name in ("tensor_parallel", "context_parallel", "expert_parallel")
    }
    for named, fields in {**splits, "wide_resnet with sync_batch": sync}.items():
        run = {**ON_TOKENS, "strategy": "all_reduce", "nodes": 2, "precision": "bf16", **fields}
        with pytest.raises(ValidationError) as caught:
            RunSpec.model_validate(run)
        (error,) = caught.value.errors()
        assert error["type"] == "precision"
        assert named in error["msg"]
        assert "allowed: float32" in error["msg"]
