"""Mistakes in optimizers: formulas, the first step, decay, and state that ranks average or share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from trainer.core.clock import Clock
from trainer.spec.registries import OPTIMIZERS
from trainer.spec.run_spec import RunSpec
from trainer.training.replica import Replica
from trainer.training.task import Task

Floats = npt.NDArray[np.float64]

STEPS = 20
DATA = {"dataset": {"name": "synthetic", "samples": 9}, "model": {"name": "mlp", "hidden": [8]}}
ADAM = {"beta1": 0.5, "beta2": 0.9}


def gradients(step: int) -> list[Floats]:
    """Of two tensors; those of the second one are so small that ε counts."""
    rng = np.random.default_rng(step)
    return [rng.standard_normal((3, 4)) / (step + 1), 1e-7 * rng.standard_normal(5)]


def by_formula(form: dict[str, Any], w: Floats, at: int, lr: float) -> Floats:
    """The weights after all steps, in float64. The learning rate falls halfway, as after a warm-up."""
    name, mu = form["name"].removeprefix("textbook_"), form.get("momentum", 0.9)
    b1, b2, decay = (form.get(key) for key in ("beta1", "beta2", "weight_decay"))
    m = v = np.zeros_like(w)
    for t in range(1, STEPS + 1):
        g = gradients(t - 1)[at]
        rate = lr if t <= STEPS // 2 else lr / 3
        match name:
            case "sgd":
                step = g
            case "momentum":  # Sutskever et al. 2013, in the form of torch
                m = mu * m + g
                step = g + mu * m if form.get("nesterov") else m
            case "adam" | "adamw":
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
                step = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + 1e-8)
                step = step + (decay * w if name == "adamw" else 0)
            case _:  # NovoGrad: Ginsburg et al. 2019, Alg. 1
                v = np.sum(g**2) if t == 1 else b2 * v + (1 - b2) * np.sum(g**2)
                m = b1 * m + g / (np.sqrt(v) + 1e-8) + decay * w
                step = m
        w = w - rate * step
    return w


@pytest.mark.parametrize(
    "form",
    [
        *({"name": f"{prefix}sgd"} for prefix in ("", "textbook_")),
        *({"name": f"{prefix}momentum", "momentum": 0.5} for prefix in ("", "textbook_")),
        {"name": "momentum", "nesterov": True},
        *({"name": f"{prefix}adam", **ADAM} for prefix in ("", "textbook_")),
        {"name": "adamw", **ADAM, "weight_decay": 0.1},
        {"name": "novograd", "beta1": 0.9, "beta2": 0.5, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_weights_follow_the_formula_of_the_paper(form: dict[str, Any]) -> None:
    start = [np.linspace(-1, 2, each.size).reshape(each.shape) for each in gradients(0)]
    moved = [nn.Parameter(torch.from_numpy(each.copy())) for each in start]
    built = OPTIMIZERS.parse(form).build(moved, 0.01)
    for step in range(STEPS):
        if step == STEPS // 2:
            built.param_groups[0]["lr"] = 0.01 / 3
        for parameter, gradient in zip(moved, gradients(step), strict=True):
            parameter.grad = torch.from_numpy(gradient)
        built.step()
    for at, parameter in enumerate(moved):
        expected = by_formula(form, start[at], at, 0.01)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-9, atol=1e-11)


def test_novograd_keeps_one_second_moment_per_layer() -> None:
    of = Task(RunSpec.model_validate({"strategy": "serial", "optimizer": "novograd", **DATA}), Path())
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
