"""Optimizers: textbook versions against torch, NovoGrad and the decay of AdamW against their papers."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from tests.unit.training import SMALL, train
from trainer.core.clock import Clock
from trainer.spec.registries import OPTIMIZERS
from trainer.spec.run_spec import RunSpec
from trainer.training.replica import Replica
from trainer.training.task import Task

STEPS = 50
LR = {"novograd": 0.005}


def parameters() -> list[Tensor]:
    """Parameters of a convolution (channels_last, as in training) and a linear layer."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(4, 3, 5, 5), (4,), (6, 100), (6,)]
    made = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    made[0].data = made[0].data.contiguous(memory_format=torch.channels_last)
    return [*made]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(p.shape, generator=generator) / (step + 1) for p in parameters()]


def after_steps(optimizer: dict[str, Any], lr: float = 0.01) -> list[np.ndarray]:
    moved = parameters()
    built = OPTIMIZERS.parse(optimizer).build(moved, lr)
    for step in range(STEPS):
        for parameter, gradient in zip(moved, gradients(step), strict=True):
            parameter.grad = gradient
        if step == STEPS // 2:  # as in a warm-up
            built.param_groups[0]["lr"] = lr / 3
        built.step()
    return [parameter.detach().numpy() for parameter in moved]


@pytest.mark.parametrize(
    ("textbook", "torch_optimizer"),
    [
        ({"name": "textbook_sgd"}, {"name": "sgd"}),
        ({"name": "textbook_momentum"}, {"name": "momentum"}),
        ({"name": "textbook_momentum", "momentum": 0.5}, {"name": "momentum", "momentum": 0.5}),
        ({"name": "textbook_adam"}, {"name": "adam"}),
        (
            {"name": "textbook_adam", "beta1": 0.5, "beta2": 0.9},
            {"name": "adam", "beta1": 0.5, "beta2": 0.9},
        ),
    ],
)
def test_textbook_optimizer_equals_torch(textbook: dict[str, Any], torch_optimizer: dict[str, Any]) -> None:
    for mine, theirs in zip(after_steps(textbook), after_steps(torch_optimizer), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.001, 0.1])
def test_novograd_follows_the_paper(decay: float) -> None:
    """Ginsburg et al. 2019, Alg. 1, line by line, in double precision."""
    lr, beta1, beta2, epsilon = 0.01, 0.95, 0.98, 1e-8
    w = [p.detach().numpy().astype(float) for p in parameters()]
    g = [gradient.numpy().astype(float) for gradient in gradients(0)]
    v = [np.sum(each**2) for each in g]
    m = [g[at] / np.sqrt(v[at]) + decay * w[at] for at in range(4)]
    w = [w[at] - lr * m[at] for at in range(4)]
    for step in range(1, STEPS):
        g = [gradient.numpy().astype(float) for gradient in gradients(step)]
        rate = lr if step < STEPS // 2 else lr / 3
        for at in range(4):
            v[at] = beta2 * v[at] + (1 - beta2) * np.sum(g[at] ** 2)
            m[at] = beta1 * m[at] + (g[at] / (np.sqrt(v[at]) + epsilon) + decay * w[at])
            w[at] = w[at] - rate * m[at]
    for mine, theirs in zip(after_steps({"name": "novograd", "weight_decay": decay}), w, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("alike", "limit"), [(True, 1 / (1 - 0.95)), (False, 1 / sqrt(1 - 0.95**2))])
def test_length_of_a_step_of_novograd(scale: float, alike: bool, limit: float) -> None:
    """Of gradients of one length: all in one direction, or each orthogonal to the others."""
    lr, steps = 0.01, 200
    theta = torch.zeros(steps, requires_grad=True)
    optimizer = OPTIMIZERS.parse({"name": "novograd", "weight_decay": 0.0}).build([theta], lr)
    lengths = []
    for step in range(steps):
        before = theta.detach().clone()
        theta.grad = torch.zeros(steps)
        theta.grad[0 if alike else step] = scale
        optimizer.step()
        lengths.append((theta.detach() - before).norm().item())
    assert lengths[0] == pytest.approx(lr, rel=1e-3)
    assert lengths[-1] == pytest.approx(lr * limit, rel=1e-2)


def test_adamw_removes_a_share_of_weights_without_a_gradient() -> None:
    """Loshchilov & Hutter 2019, Alg. 2: the decay is no part of the gradient, which Adam divides."""
    theta = torch.tensor([4.0, -0.5], requires_grad=True)
    optimizer = OPTIMIZERS.parse({"name": "adamw", "weight_decay": 0.1}).build([theta], 0.01)
    theta.grad = torch.zeros(2)
    for _ in range(3):
        optimizer.step()
    torch.testing.assert_close(theta.detach(), torch.tensor([4.0, -0.5]) * (1 - 0.01 * 0.1) ** 3)


# In training


@pytest.mark.parametrize("name", OPTIMIZERS.entries)
@pytest.mark.parametrize(("strategy", "ranks"), [("serial", 1), ("all_reduce", 2)])
def test_every_optimizer_trains(name: str, strategy: str, ranks: int) -> None:
    easy = {"name": "synthetic", "samples": 120, "test_samples": 40, "noise": 0.1}
    lr = 0.2 if name in ("sgd", "textbook_sgd") else LR.get(name, 0.02)
    done = train(strategy, ranks, optimizer=name, dataset=easy, lr=lr, epochs=5)
    first, last = done.of("epoch")[0], done.of("epoch")[-1]
    assert last.fields["test_loss"] < 0.7 * first.fields["test_loss"]
    assert last.fields["accuracy"] > 0.5  # chance is 0.1
    assert done.same_weights


@pytest.mark.parametrize("name", OPTIMIZERS.entries)
def test_two_ranks_sharing_a_batch_equal_one_rank(name: str) -> None:
    one = train("serial", 1, optimizer=name, lr=LR.get(name, 0.02))
    two = train("parameter_server", 2, optimizer=name, lr=LR.get(name, 0.02))
    np.testing.assert_allclose(one.weights, two.weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", OPTIMIZERS.entries)
def test_optimizer_state_modes_differ(name: str) -> None:
    def weights(state: str, steps: int = 3) -> np.ndarray:
        strategy = {"name": "local_sgd", "local_steps": steps, "optimizer_state": state}
        done = train(strategy, 2, optimizer=name, lr=LR.get(name, 0.02))
        assert done.same_weights
        return done.weights

    kept, averaged, reset = (weights(state) for state in ("keep", "average", "reset"))
    has_state = name not in ("sgd", "textbook_sgd")
    assert np.array_equal(kept, averaged) != has_state
    assert np.array_equal(kept, reset) != has_state


def test_textbook_optimizer_equals_torch_in_local_sgd_that_averages_state() -> None:
    strategy = {"name": "local_sgd", "local_steps": 3, "optimizer_state": "average"}
    for name in ("sgd", "momentum", "adam"):
        mine, theirs = (train(strategy, 2, optimizer=each, lr=0.02) for each in (f"textbook_{name}", name))
        np.testing.assert_allclose(mine.weights, theirs.weights, rtol=1e-3, atol=1e-4)


def test_novograd_keeps_one_second_moment_per_layer() -> None:
    of = Task(RunSpec.model_validate({**SMALL, "strategy": "serial", "optimizer": "novograd"}), Path())
    replica = Replica(of.build_model(0), of, Clock())
    replica.set_gradient(torch.full((replica.parameter_count,), 2.0))
    replica.step()
    state, sizes = replica.optimizer_state(), [shape.numel() for shape in replica.shapes]
    assert len(state) == sum(sizes) + len(sizes)
    assert state[sizes[0]] == 4.0 * sizes[0]  # the squared norm of the first layer's gradient
    replica.set_optimizer_state(state / 2)
    assert torch.equal(replica.optimizer_state(), state / 2)


@pytest.mark.parametrize("strategy", ["fsdp", "tensor_parallel"])
def test_layerwise_optimizer_needs_full_gradients(strategy: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"strategy": strategy, "nodes": 2, "optimizer": "novograd"})
    (error,) = caught.value.errors()
    assert error["type"] == "optimizer"
    allowed = {name for name in OPTIMIZERS.entries if not OPTIMIZERS.load(name).layerwise}
    assert all(name in error["msg"] for name in {"novograd", strategy} | allowed)
