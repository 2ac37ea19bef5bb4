"""Mistakes in laws and facts of optimizers, and in what is refused of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.laws import assert_faults, declaring, failing, findings, imported
from tests.unit import written_components
from trainer.components.facts import Source
from trainer.components.kind import On
from trainer.components.optimizer import ImportedOptimizer, OptimizerKind
from trainer.components.parameters import ParameterFailure
from trainer.spec.registries import OPTIMIZERS

TOGETHER = ("layerwise", "couples_tensors", "groups_by_place")


class Sgd(torch.optim.Optimizer):
    """Subclasses change the step. skips: weights without a gradient."""

    skips = True

    def __init__(self, weights: Any, lr: float) -> None:
        super().__init__(weights, {"lr": lr})
        self.taken, self.first = 0, lr

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.taken += 1
        for group in self.param_groups:
            for number, weight in enumerate(group["params"]):
                if weight.grad is not None or not self.skips:
                    weight -= self.change(group["lr"], weight, number)

    def change(self, lr: float, weight: Any, number: int) -> Any:
        return lr * weight.grad


def of(called: Any, on: On | None = None, **parameters: Any) -> OptimizerKind:
    """A user's class or function on trial."""
    return OptimizerKind(OptimizerKind.adapt(called, parameters, Source()), on)


def stepping(
    change: Callable[..., Any], equals: str = "", given: str = "", **members: Any
) -> OptimizerKind:
    """An optimizer on trial. change: what a step subtracts. members: other members of torch's class."""
    return of(declaring(Sgd, change=change, equals=equals, **members), On(equals=given))


def drawn(lr: float, weight: Any) -> Any:
    return lr * (weight.grad + torch.randn_like(weight))


def in_groups(first_lr: dict[str, float]) -> Callable[..., Any]:
    """An optimizer with a group of its own for the first weight."""

    def made(weights: Any, lr: float) -> torch.optim.Optimizer:
        first, *others = weights
        return torch.optim.SGD([{"params": [first], **first_lr}, {"params": others}], lr=lr)

    return made


FAULTS = {
    "runs: 1 step.*is as before": stepping(lambda self, lr, weight, _: 0 * weight.grad),
    "runs: 1 step.*nan": stepping(lambda self, lr, weight, _: weight.grad * np.nan),
    "curve: 1 step": stepping(lambda self, lr, weight, _: 2 * lr * weight.grad, equals="sgd"),
    "curve: ^1 step": stepping(Sgd.change, equals="sgd", given="adam"),  # what is given comes first
    "descends: 20 steps": stepping(lambda self, lr, weight, _: -lr * weight.grad),
    "zero: 1 step": stepping(lambda self, lr, weight, _: lr * (weight.grad - 0.1 * weight)),
    "zero: 1 step.*: nan": stepping(lambda self, lr, weight, _: lr * weight.grad / weight.grad.norm()),
    "skips: 1 step.*moved": stepping(lambda self, lr, *_: lr, skips=False),
    "rate: 1 step.*param_groups": stepping(lambda self, lr, weight, _: self.first * weight.grad),
    "rate: 1 step.*build groups from the lr that is given": of(in_groups({"lr": 0.1})),
    "rate: 1 step.*by": stepping(lambda self, lr, weight, _: 0.01 * weight.grad),
    "state: 1 step": stepping(lambda self, lr, weight, _: lr / self.taken * weight.grad),
    "order: 1 step": stepping(lambda self, lr, weight, number: lr * (1 + number) * weight.grad),
    "layers: layerwise": stepping(lambda self, lr, weight, _: lr * weight.grad / weight.grad.norm()),
    "seeded: 1 step.*global random state": stepping(lambda self, lr, weight, _: drawn(lr, weight)),
}


def test_every_law_has_faults_that_break_it_alone() -> None:
    assert_faults(FAULTS, unbroken={"written"})


def test_the_compared_optimizer_has_the_parameters_of_both() -> None:
    for kind in (
        stepping(Sgd.change, equals="sgd"),
        OptimizerKind(OPTIMIZERS.parse({"name": "momentum", "momentum": 0.5}), On(equals="momentum")),
        of(torch.optim.SGD, On(equals="momentum", parameters={"momentum": 0.5}), momentum=0.5),
    ):
        assert findings(kind, "curve")["curve"].status == "ok"
    assert "--equals" in findings(of(torch.optim.SGD), "curve")["curve"].reason


def half_a_rate(weights: Any, lr: float) -> Any:
    made = in_groups({})(weights, lr)
    del made.param_groups[1]["lr"]
    return made


def test_optimizers_that_cannot_step_are_refused() -> None:
    noisy = declaring(Sgd, change=lambda self, lr, weight, _: drawn(lr, weight))
    cases = {
        "lr": lambda weights: torch.optim.SGD(weights, 0.1),
        "groups of parameters have no lr": half_a_rate,
        "method step": declaring(torch.optim.Optimizer),
        "closure": lambda weights, lr: torch.optim.LBFGS(weights, lr),
        "global random state | torch.Generator": lambda weights, lr: noisy(weights, lr),
        "finite weights | nan": lambda weights, lr: torch.optim.SGD(weights, lr=float("inf")),
        "float | torch.optim.Optimizer": lambda weights, lr: lr,
    }
    assert failing(cases, lambda called: of(called, On(loading=True)).load()) == {}


def test_parameters_are_those_beside_weights_and_lr() -> None:
    assert of(torch.optim.SGD, momentum=0.5).built([torch.zeros(1)]).param_groups[0]["momentum"] == 0.5
    for wrong in ("lr", "params"):
        with pytest.raises(ParameterFailure):
            of(torch.optim.SGD, **{wrong: 0.1})


def test_what_an_optimizer_must_have_together_is_found() -> None:
    for called, expected in (
        (written_components.decays, []),
        (written_components.by_dimensions, []),
        (torch.optim.Adagrad, []),  # it makes its state when it is built
        (written_components.two_rates, ["groups_by_place"]),
        (written_components.only_the_last, ["groups_by_place"]),  # it is not refused for the others
        (torch.optim.Adafactor, ["layerwise"]),
        (declaring(torch.optim.SGD, layerwise=True), ["layerwise"]),
        (written_components.Clipped, [*TOGETHER]),
    ):
        kind = of(called, On(loading=True))
        kind.load()
        known = kind.facts()
        assert [name for name in TOGETHER if known[name]] == expected, called
        own = imported(ImportedOptimizer, known)
        assert {name: getattr(own, name) for name in known} == known
