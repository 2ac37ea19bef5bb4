"""Parameters that change nothing beside others are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from trainer.spec.registries import MODELS, PARTITIONERS, REGISTRIES, STRATEGIES
from trainer.strategies.fedopt import FedOpt


@pytest.mark.parametrize(
    ("registry", "form", "parameter", "beside"),
    [
        (STRATEGIES, {"name": "fedopt", "server": "momentum", "beta2": 0.5}, "beta2", "server: momentum"),
        (STRATEGIES, {"name": "fedopt", "server": "adagrad", "beta2": 0.5}, "beta2", "server: adagrad"),
        (STRATEGIES, {"name": "fedopt", "server": "momentum", "tau": 0.5}, "tau", "server: momentum"),
        (MODELS, {"name": "gpt", "top_k": 2}, "top_k", "experts: 0"),
        (MODELS, {"name": "gpt", "capacity_factor": None}, "capacity_factor", "experts: 0"),
        (MODELS, {"name": "gpt", "balance": 0.0}, "balance", "experts: 0"),
        (MODELS, {"name": "gpt", "experts": 1, "balance": 0.0}, "balance", "experts: 1"),
        (
            PARTITIONERS,
            {"name": "dirichlet", "equal_sizes": True, "min_samples": 2},
            "min_samples",
            "equal_sizes: true",
        ),
    ],
    ids=str,
)
def test_a_parameter_without_effect_is_refused(
    registry: Any, form: dict[str, Any], parameter: str, beside: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        registry.parse(form)
    (error,) = caught.value.errors()
    assert error["type"] == "without_effect"
    for each in (parameter, str(form[parameter]), beside):
        assert each in error["msg"]


@pytest.mark.parametrize("server", ["momentum", "adagrad", "yogi", "adam"])
@pytest.mark.parametrize("parameter", ["beta1", "beta2", "tau"])
def test_a_parameter_of_fedopt_has_an_effect_unless_it_says_so(server: Any, parameter: str) -> None:
    plain = FedOpt(server=server)
    steps = []
    for strategy in (plain, plain.model_copy(update={parameter: 0.5})):
        x, m, v = torch.ones(3), torch.ones(3), torch.full((3,), strategy.tau**2)
        strategy.server_step(x, torch.arange(3.0) * 5, m, v)
        steps.append(x)
    assert torch.equal(*steps) == (parameter in plain.without_effect)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_no_default_is_refused(kind: str) -> None:
    for name in REGISTRIES[kind].entries:
        component = REGISTRIES[kind].parse(name)
        assert {*component.without_effect} <= {*type(component).model_fields}
