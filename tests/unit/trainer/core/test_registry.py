"""Mistakes in components: parameters without effect, long lists of names."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from trainer.core.registry import shortened
from trainer.spec.registries import MODELS, PARTITIONERS, STRATEGIES
from trainer.strategies.fedopt import FedOpt

FEDOPT = {"name": "fedopt", "server": "momentum"}
WITHOUT_EFFECT: list[tuple[Any, dict[str, Any], str, str]] = [
    (STRATEGIES, {**FEDOPT, "beta2": 0.5}, "beta2: 0.5 ", "server: momentum"),
    (MODELS, {"name": "gpt", "capacity_factor": None}, "capacity_factor: None ", "experts: 0"),
    (MODELS, {"name": "gpt", "experts": 1, "balance": 0.0}, "balance: 0.0 ", "experts: 1"),
    (PARTITIONERS, {"name": "dirichlet", "equal_sizes": True, "min_samples": 2}, "min_sam", "equal_sizes"),
]


def test_a_parameter_without_effect_is_refused() -> None:
    for registry, form, parameter, beside in WITHOUT_EFFECT:
        with pytest.raises(ValidationError) as caught:
            registry.parse(form)
        (error,) = caught.value.errors()
        assert error["type"] == "without_effect"
        assert error["msg"].startswith(parameter)
        assert beside in error["msg"]


def test_a_parameter_of_fedopt_has_an_effect_unless_it_says_so() -> None:
    for server, parameter in product(("momentum", "adagrad", "yogi", "adam"), ("beta1", "beta2", "tau")):
        plain, steps = FedOpt(server=server), []  # type: ignore[arg-type]
        for each in (plain, plain.model_copy(update={parameter: 0.5})):
            x, m, v = torch.ones(3), torch.ones(3), torch.full((3,), each.tau**2)
            each.server_step(x, torch.arange(3.0) * 5, m, v)
            steps.append(x)
        assert torch.equal(*steps) == (parameter in plain.without_effect)


def test_a_message_lists_a_few_of_many_names() -> None:
    names = [f"name{number}" for number in range(10)]
    assert shortened(names[:8]) == ", ".join(names[:8])
    assert shortened(names[:9]) == ", ".join(names[:8]) + " and 1 more"
    assert "name9" in shortened(names, near="name9")
