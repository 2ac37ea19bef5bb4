"""Mistakes in components: parameters without effect, defaults in keys, hints, which rank has which copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from trainer.core import strategy
from trainer.core.registry import shortened, suggestion
from trainer.spec.registries import MODELS, PARTITIONERS, REGISTRIES, STRATEGIES
from trainer.strategies.fedopt import FedOpt

WITHOUT_EFFECT: list[tuple[Any, dict[str, Any], str, str]] = [
    (STRATEGIES, {"name": "fedopt", "server": "momentum", "beta2": 0.5}, "beta2", "server: momentum"),
    (STRATEGIES, {"name": "fedopt", "server": "adagrad", "beta2": 0.5}, "beta2", "server: adagrad"),
    (STRATEGIES, {"name": "fedopt", "server": "momentum", "tau": 0.5}, "tau", "server: momentum"),
    (MODELS, {"name": "gpt", "top_k": 2}, "top_k", "experts: 0"),
    (MODELS, {"name": "gpt", "capacity_factor": None}, "capacity_factor", "experts: 0"),
    (MODELS, {"name": "gpt", "experts": 1, "balance": 0.0}, "balance", "experts: 1"),
    (
        PARTITIONERS,
        {"name": "dirichlet", "equal_sizes": True, "min_samples": 2},
        "min_samples",
        "equal_sizes",
    ),
]


def test_a_parameter_without_effect_is_refused() -> None:
    for registry, form, parameter, beside in WITHOUT_EFFECT:
        with pytest.raises(ValidationError) as caught:
            registry.parse(form)
        (error,) = caught.value.errors()
        assert error["type"] == "without_effect"
        for each in (parameter, str(form[parameter]), beside):
            assert each in error["msg"]


def test_no_default_is_without_effect() -> None:
    for registry in REGISTRIES.values():
        for name in registry.entries:
            component = registry.parse(name)
            assert {*component.without_effect} <= {*type(component).model_fields}


@pytest.mark.parametrize("server", ["momentum", "adagrad", "yogi", "adam"])
def test_a_parameter_of_fedopt_has_an_effect_unless_it_says_so(server: Any) -> None:
    plain = FedOpt(server=server)
    for parameter in ("beta1", "beta2", "tau"):
        steps = []
        for each in (plain, plain.model_copy(update={parameter: 0.5})):
            x, m, v = torch.ones(3), torch.ones(3), torch.full((3,), each.tau**2)
            each.server_step(x, torch.arange(3.0) * 5, m, v)
            steps.append(x)
        assert torch.equal(*steps) == (parameter in plain.without_effect)


def test_forms_and_labels_leave_defaults_out_if_wanted() -> None:
    plain = STRATEGIES.parse("all_reduce")
    assert STRATEGIES.dump(plain, exclude_defaults=True) == {"name": "all_reduce"}
    assert STRATEGIES.dump(plain)["compression"] == {"name": "none"}
    form = {"name": "all_reduce", "compression": {"name": "top_k"}}
    compressed = STRATEGIES.parse(form)
    assert STRATEGIES.dump(compressed, exclude_defaults=True) == form
    assert STRATEGIES.parse(STRATEGIES.dump(compressed)) == compressed
    assert MODELS.label(MODELS.parse("mlp"), exclude_defaults=True) == "mlp"
    assert (
        MODELS.label(MODELS.parse({"name": "mlp", "hidden": [8]}), exclude_defaults=True)
        == "mlp(hidden=[8])"
    )


def test_a_misspelt_name_gets_a_suggestion() -> None:
    known = ["serial", "all_reduce", "gossip"]
    for name in ("seral", "SERIAL", "serial_"):
        assert "'serial'" in suggestion(name, known)
    assert suggestion("xyz", known) == suggestion("", known) == ""
    names = [f"name{number}" for number in range(10)]
    assert shortened(names[:8]) == ", ".join(names[:8])
    assert shortened(names[:9]) == ", ".join(names[:8]) + " and 1 more"
    assert "name9" in shortened(names, near="name9")


def test_each_rank_has_a_copy_and_reports_its_samples_unless_it_is_a_server() -> None:
    served = STRATEGIES.parse("parameter_server")
    assert (served.servers, served.replicas(4)) == (1, 3)
    assert [served.replica_of(rank, 4) for rank in range(4)] == [3, 0, 1, 2]
    assert [served.reports_samples(rank, 4) for rank in range(4)] == [False, True, True, True]
    assert [served.sees_inputs(rank, 4) for rank in range(4)] == [False, True, True, True]
    cut = STRATEGIES.parse("pipeline")
    assert (cut.replicas(4), [cut.replica_of(rank, 4) for rank in range(4)]) == (1, [0] * 4)
    assert [cut.reports_samples(rank, 4) for rank in range(4)] == [True, False, False, False]


def test_a_strategy_runs_on_its_least_and_its_largest_number_of_ranks() -> None:
    class Bounded(strategy.Strategy):
        min_nodes, max_nodes = 2, 4

        def train(self, session: Any) -> None: ...

    assert [ranks for ranks in range(7) if strategy.runs_on(Bounded(), ranks)] == [2, 3, 4]
    assert strategy.runs_on(STRATEGIES.parse("all_reduce"), 1024)
