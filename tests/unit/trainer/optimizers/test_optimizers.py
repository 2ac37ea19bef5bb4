"""Mistakes in optimizers: formulas, the first step, decay, and state that ranks average or share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn, optim

from trainer.core.clock import Clock
from trainer.spec.registries import OPTIMIZERS
from trainer.spec.run_spec import RunSpec
from trainer.training.replica import Replica
from trainer.training.task import Task

STEPS = 20


def gradients(step: int) -> list[Tensor]:
    """Of two tensors; those of the second one are so small that ε counts."""
    rng = np.random.default_rng(step)
    drawn = rng.standard_normal((3, 4)) / (step + 1), 1e-7 * rng.standard_normal(5)
    return [torch.from_numpy(each) for each in drawn]


class NovoGrad(optim.Optimizer):
    """Ginsburg et al. 2019, Alg. 1, with β₁ 0.9, β₂ 0.5 and decay 0.1."""

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for w in self.param_groups[0]["params"]:
            square, state = w.grad.square().sum(), self.state[w]
            state["v"] = 0.5 * state["v"] + 0.5 * square if state else square
            change = w.grad / (state["v"].sqrt() + 1e-8) + 0.1 * w
            state["m"] = 0.9 * state.get("m", torch.zeros_like(w)) + change
            w -= self.param_groups[0]["lr"] * state["m"]


ADAM, BETAS = {"beta1": 0.5, "beta2": 0.9}, {"betas": (0.5, 0.9)}
PAIRS: list[tuple[dict[str, Any], Callable[..., optim.Optimizer]]] = [
    ({"name": "textbook_sgd"}, optim.SGD),
    ({"name": "momentum", "momentum": 0.5}, partial(optim.SGD, momentum=0.5)),
    ({"name": "momentum", "nesterov": True}, partial(optim.SGD, momentum=0.9, nesterov=True)),
    ({"name": "textbook_momentum", "momentum": 0.5}, partial(optim.SGD, momentum=0.5)),
    ({"name": "adam", **ADAM}, partial(optim.Adam, **BETAS)),
    ({"name": "textbook_adam", **ADAM}, partial(optim.Adam, **BETAS)),
    ({"name": "adamw", **ADAM, "weight_decay": 0.1}, partial(optim.AdamW, **BETAS, weight_decay=0.1)),
    ({"name": "novograd", "beta1": 0.9, "beta2": 0.5, "weight_decay": 0.1}, NovoGrad),
]


@pytest.mark.parametrize(("form", "reference"), PAIRS, ids=[str(form) for form, _ in PAIRS])
def test_weights_follow_the_formula_of_the_paper(form: dict[str, Any], reference: Any) -> None:
    """In float64. The learning rate falls halfway, as after a warm-up."""
    ends = []
    for build in (OPTIMIZERS.parse(form).build, reference):
        weights = [
            nn.Parameter(torch.linspace(-1, 2, each.numel()).view_as(each).double())
            for each in gradients(0)
        ]
        built = build(weights, 0.01)
        for step in range(STEPS):
            built.param_groups[0]["lr"] = 0.01 if step < STEPS // 2 else 0.003
            for weight, gradient in zip(weights, gradients(step), strict=True):
                weight.grad = gradient
            built.step()
        ends.append(weights)
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-11)


def test_novograd_keeps_one_second_moment_per_layer() -> None:
    data = {"dataset": {"name": "synthetic", "samples": 9}, "model": {"name": "mlp", "hidden": [8]}}
    of = Task(RunSpec.model_validate({"strategy": "serial", "optimizer": "novograd", **data}), Path())
    replica = Replica(of.build_model(0), of, Clock())
    replica.set_gradient(torch.full((replica.parameter_count,), 2.0))
    replica.step()
    state, sizes = replica.optimizer_state(), [shape.numel() for shape in replica.shapes]
    assert len(state) == sum(sizes) + len(sizes)
    assert state[sizes[0]] == 4.0 * sizes[0]  # the squared norm of the first layer's gradient
    replica.set_optimizer_state(state / 2)
    assert torch.equal(replica.optimizer_state(), state / 2)


@pytest.mark.parametrize("strategy", ["fsdp", "tensor_parallel"])
def test_a_layerwise_optimizer_needs_full_gradients(strategy: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"strategy": strategy, "nodes": 2, "optimizer": "novograd"})
    (error,) = caught.value.errors()
    assert error["type"] == "optimizer"
    allowed = {name for name in OPTIMIZERS.entries if not OPTIMIZERS.load(name).layerwise}
    assert all(name in error["msg"] for name in {"novograd", strategy} | allowed)
