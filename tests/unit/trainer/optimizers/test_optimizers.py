"""Mistakes in optimizers: formulas, the first step, decay, and state that ranks average or share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn, optim

from tests.unit.training import train
from trainer.core.clock import Clock
from trainer.optimizers.muon import hidden_matrices
from trainer.parallel.sharding import owners
from trainer.spec.registries import MODELS, OPTIMIZERS
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


class Lars(optim.Optimizer):
    """You et al. 2017, Alg. 1, with trust 0.02, momentum 0.8 and decay 0.1."""

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for w in self.param_groups[0]["params"]:
            local = 0.02 * w.norm() / (w.grad.norm() + 0.1 * w.norm())
            moved = self.param_groups[0]["lr"] * local * (w.grad + 0.1 * w)
            self.state[w]["v"] = 0.8 * self.state[w].get("v", torch.zeros_like(w)) + moved
            w -= self.state[w]["v"]


class Lamb(optim.Optimizer):
    """You et al. 2020, Alg. 2, with decay 0.1: the direction is that of torch's Adam."""

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        super().__init__(weights, {"lr": lr})
        self.free = [nn.Parameter(torch.zeros_like(each)) for each in weights]
        self.adam = optim.Adam(self.free, lr=1.0, betas=(0.5, 0.9))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        weights = self.param_groups[0]["params"]
        for w, free in zip(weights, self.free, strict=True):
            free.zero_()
            free.grad = w.grad
        self.adam.step()
        for w, free in zip(weights, self.free, strict=True):
            r = 0.1 * w - free
            w -= self.param_groups[0]["lr"] * w.norm() / r.norm() * r


class Lion(optim.Optimizer):
    """Chen et al. 2023, Alg. 2, with β₁ 0.5, β₂ 0.9 and λ 0.1."""

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for w in self.param_groups[0]["params"]:
            m = self.state[w].get("m", torch.zeros_like(w))
            w -= self.param_groups[0]["lr"] * (torch.sign(m / 2 + w.grad / 2) + 0.1 * w)
            self.state[w]["m"] = 0.9 * m + 0.1 * w.grad


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
    (
        {"name": "momentum", "weight_decay": 0.1, "nesterov": True},
        partial(optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    ({"name": "lars", "trust": 0.02, "momentum": 0.8, "weight_decay": 0.1}, Lars),
    ({"name": "lamb", **ADAM, "weight_decay": 0.1}, Lamb),
    ({"name": "lion", **ADAM, "weight_decay": 0.1}, Lion),
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


def weights_after(steps: int, **form: Any) -> list[nn.Parameter]:
    """A matrix and a vector, in float64."""
    weights = [nn.Parameter(torch.ones_like(each)) for each in gradients(0)]
    built = OPTIMIZERS.parse(form).build(weights, 0.01)
    for step in range(steps):
        for weight, gradient in zip(weights, gradients(step), strict=True):
            weight.grad = gradient
        built.step()
    return weights


DECAYING = [name for name in OPTIMIZERS.entries if "weight_decay" in OPTIMIZERS.load(name).model_fields]


@pytest.mark.parametrize("name", DECAYING)
def test_vectors_can_be_left_out_of_weight_decay(name: str) -> None:
    all_decay, none = (weights_after(3, name=name, weight_decay=decay) for decay in (0.1, 0.0))
    found = weights_after(3, name=name, weight_decay=0.1, decay_vectors=False)
    assert torch.equal(found[0], all_decay[0])
    assert torch.equal(found[1], none[1])
    assert not torch.equal(none[0], all_decay[0])
    assert not torch.equal(none[1], all_decay[1])
    with pytest.raises(ValidationError, match="no effect with weight_decay: 0"):
        OPTIMIZERS.parse({"name": name, "weight_decay": 0, "decay_vectors": False})


def test_ranks_with_a_part_of_a_tensor_leave_out_the_same_weights() -> None:
    optimizer = {"name": "momentum", "weight_decay": 1.0, "decay_vectors": False}
    whole, parts = (train(strategy, 2, optimizer=optimizer).weights for strategy in ("all_reduce", "zero2"))
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_a_tensor_of_zeros_moves(name: str) -> None:
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([1.0, -2.0, 0.0])
    OPTIMIZERS.parse(name).build([weight], 0.01).step()
    assert torch.equal(weight.sign(), -weight.grad.sign())


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


def gpt(**parameters: Any) -> nn.Module:
    blocks = MODELS.parse({"name": "gpt", "width": 8, "layers": 1, **parameters}).blocks
    return nn.Sequential(OrderedDict(blocks((6,), 5, torch.Generator()))).double()


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_orthogonalises_the_momentum_of_hidden_matrices_alone(nesterov: bool) -> None:
    """In float64, with torch's AdamW for the rest. torch's Newton-Schulz has the rounding of bfloat16."""
    of = {"name": "muon", "momentum": 0.5, "nesterov": nesterov, "rate": 0.25, "weight_decay": 0.5, **ADAM}
    model, expected = gpt(), gpt()
    expected.load_state_dict(model.state_dict())
    built = OPTIMIZERS.parse(of).of_model(model, 0.02)
    names = dict(expected.named_parameters())
    hidden = [name for name in names if ".block1." in f".{name}" and names[name].dim() == 2]
    adamw = optim.AdamW([names[name] for name in names if name not in hidden], **BETAS, weight_decay=0.5)
    momenta = {name: torch.zeros_like(names[name]) for name in hidden}
    for step in range(4):
        lr = 0.02 if step < 2 else 0.01
        for group in built.param_groups:
            group["lr"] *= lr / 0.02 if step == 2 else 1.0
        adamw.param_groups[0]["lr"] = lr / 4
        generator = torch.Generator().manual_seed(step)
        for name, each in model.named_parameters():
            each.grad = torch.randn(each.shape, generator=generator).double()
            names[name].grad = each.grad.clone()
        if step == 3:  # from a restored state
            state = deepcopy(built.state_dict())
            built = OPTIMIZERS.parse(of).of_model(model, 0.02)
            built.load_state_dict(state)
        built.step()
        adamw.step()
        with torch.no_grad():
            for name, u in momenta.items():
                w, g = names[name], names[name].grad
                u.mul_(0.5).add_(g / 2)
                x = (u + g) / 2 if nesterov else u.clone()
                x = x.T if len(x) > len(x.T) else x
                x = x / x.norm()
                for _ in range(5):
                    square = x @ x.T
                    x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
                x = x if x.shape == w.shape else x.T
                w.copy_((1 - lr / 2) * w - 0.2 * lr * max(w.shape) ** 0.5 * x)
    assert len(hidden) == 4
    for name, each in model.named_parameters():
        atol = 2e-3 if name in hidden else 1e-12
        torch.testing.assert_close(each, names[name], rtol=0, atol=atol, msg=name)


def test_muon_finds_the_hidden_matrices_of_models() -> None:
    """Not those of embeddings, of the first layer and of the last, also if the head is the embedding."""
    for name in MODELS.entries:
        model = MODELS.parse(name)
        shape = (6,) if model.takes_tokens else (1, 28, 28)
        with torch.device("meta"):
            whole = nn.Sequential(OrderedDict(model.blocks(shape, 5, torch.Generator())))
        assert bool(hidden_matrices(whole)) == model.hidden_matrices, name
    for parameters in ({}, {"tied": True}, {"positions": "rope"}):
        assert len(hidden_matrices(gpt(**parameters))) == 4
    whole = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2))
    assert hidden_matrices(whole)[0] is whole[1].weight
    assert len(hidden_matrices(whole)) == 1


@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [8]}, {"name": "wide_resnet"}])
def test_muon_needs_a_hidden_matrix(model: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"strategy": "serial", "optimizer": "muon", "model": model})
    (error,) = caught.value.errors()
    assert error["type"] == "optimizer"
    assert model["name"] in error["msg"]


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "fsdp", "tensor_parallel", "pipeline"])
def test_muon_needs_whole_gradients_and_the_whole_model(strategy: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"strategy": strategy, "nodes": 2, "optimizer": "muon"})
    (error,) = caught.value.errors()
    assert error["type"] == "optimizer"
    assert all(name in error["msg"] for name in ("muon", strategy))


def test_muon_steps_the_tensors_that_a_rank_of_zero1_owns() -> None:
    start, ends = gpt().state_dict(), list[dict[str, Tensor]]()
    for rank in (None, 0, 1):
        model = gpt()
        model.load_state_dict(start)
        built = OPTIMIZERS.parse("muon").of_model(model, 0.01)
        shares = owners(built, {*map(id, model.parameters())}, 2)
        own = {id(each) for number, share in enumerate(shares) if rank in (None, number) for each in share}
        for group in built.param_groups:
            group["params"] = [each for each in group["params"] if id(each) in own]
        for each in model.parameters():
            each.grad = torch.ones_like(each).tril() if each.dim() == 2 else torch.ones_like(each)
        built.step()
        ends.append({n: p.detach() for n, p in model.named_parameters() if id(p) in own})
    whole, first, second = ends
    assert len(whole) == len(first) + len(second)
    assert all(torch.equal(each, whole[name]) for name, each in {**first, **second}.items())


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "fsdp", "tensor_parallel"])
@pytest.mark.parametrize("optimizer", ["novograd", "lars", "lamb"])
def test_a_layerwise_optimizer_needs_full_gradients(strategy: str, optimizer: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"strategy": strategy, "nodes": 2, "optimizer": optimizer})
    (error,) = caught.value.errors()
    assert error["type"] == "optimizer"
    allowed = {name for name in OPTIMIZERS.entries if not OPTIMIZERS.load(name).layerwise}
    assert all(name in error["msg"] for name in {optimizer, strategy} | allowed)


@pytest.mark.parametrize("name", OPTIMIZERS.entries)
def test_state_has_the_names_by_which_a_plan_counts_its_bytes(name: str) -> None:
    weights = [nn.Parameter(torch.ones(shape)) for shape in ((2, 3), (3,))]
    component = OPTIMIZERS.parse(name)
    optimizer = component.build(weights, 0.1)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    found = [
        {
            name
            for name, value in optimizer.state[weight].items()
            if getattr(value, "shape", ()) == weight.shape
        }
        for weight in weights
    ]
    assert max(found, key=len) == {*component.state_names}
