"""Mistakes in what strategies claim before a run: what they accept, equal and send, and places of ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainer.core.strategy import Strategy
from trainer.parallel.mesh import Mesh
from trainer.spec.registries import MODELS, STRATEGIES
from trainer.strategies.fault_injection import FaultInjection, InjectedFault
from trainer.strategies.hybrid import Hybrid

GPT = {"name": "gpt", "heads": 4}
EXPERTS = {**GPT, "experts": 4}


def parsed(form: Any) -> Strategy:
    strategy: Strategy = STRATEGIES.parse(form)
    return strategy


# Strategy, model, the largest number of ranks or batch that is allowed, and what is refused beyond it.
ACCEPTED: list[tuple[Any, Any, int, int, str | None]] = [
    ("expert_parallel", EXPERTS, 4, 8, None),
    ("expert_parallel", EXPERTS, 5, 8, "1 to 4 ranks"),
    ("expert_parallel", GPT, 2, 8, "gpt with experts"),
    ("expert_parallel", "mlp", 1, 8, None),
    ({"name": "context_parallel", "attention": "ulysses"}, GPT, 2, 8, None),
    ({"name": "context_parallel", "attention": "ulysses"}, GPT, 4, 8, None),
    ({"name": "context_parallel", "attention": "ulysses"}, GPT, 3, 8, "4 is no multiple of 3"),
    ({"name": "context_parallel", "attention": "ulysses"}, GPT, 8, 8, "4 is no multiple of 8"),
    ({"name": "context_parallel", "attention": "ring"}, GPT, 3, 8, None),
    ("context_parallel", "mlp", 2, 8, "other inputs"),
    ("tensor_parallel", {"name": "mlp", "hidden": [6]}, 6, 8, None),
    ("tensor_parallel", {"name": "mlp", "hidden": [6]}, 7, 8, "1 to 6 ranks"),
    ("tensor_parallel", {"name": "mlp", "hidden": [9, 8, 5]}, 6, 8, "1 to 5 ranks"),
    ("tensor_parallel", {"name": "mlp", "hidden": []}, 2, 8, "no pair"),
    ({"name": "tensor_parallel", "sequence_parallel": True}, "mlp", 2, 8, "other inputs"),
    ({"name": "pipeline_torch", "micro_batches": 3}, "lenet", 3, 8, None),
    ({"name": "pipeline_torch", "micro_batches": 2}, "lenet", 3, 8, "3 to 8 micro-batches, or schedule"),
    ({"name": "pipeline_torch", "micro_batches": 2}, "lenet", 3, 2, "allowed: schedule gpipe"),
    ({"name": "pipeline_torch", "micro_batches": 2, "schedule": "gpipe"}, "lenet", 3, 8, None),
    ({"name": "rpc_split", "split_points": ["conv2", "fc1"]}, "lenet", 4, 8, None),
    ({"name": "rpc_split", "split_points": ["conv2", "fc1"]}, "lenet", 3, 8, "split"),
    ({"name": "gossip", "graph": "ring", "participation": {"fraction": 0.5}}, "mlp", 4, 8, None),
    ({"name": "gossip", "graph": "complete", "participation": {"fraction": 0.5}}, "mlp", 4, 8, None),
    (
        {"name": "gossip", "graph": "exponential", "participation": {"fraction": 0.5}},
        "mlp",
        4,
        8,
        "allowed: ring, complete",
    ),
    ({"name": "gossip", "graph": "exponential"}, "mlp", 4, 8, None),
    ({"name": "local_sgd", "optimizer_state": "average"}, "mlp", 4, 8, None),
    (
        {"name": "local_sgd", "optimizer_state": "average", "participation": {"fraction": 0.5}},
        "mlp",
        4,
        8,
        "allowed: keep, reset",
    ),
    (
        {"name": "local_sgd", "optimizer_state": "average", "aggregation": "median"},
        "mlp",
        4,
        8,
        "aggregation: mean",
    ),
    ({"name": "hybrid", "mesh": {"data": 2, "pipeline": 2}}, "lenet", 4, 8, None),
    (
        {"name": "hybrid", "mesh": {"data": 2, "pipeline": 2}},
        "lenet",
        6,
        8,
        "has 4 ranks; allowed: {data: 6}",
    ),
]


@pytest.mark.parametrize(
    ("form", "model", "ranks", "batch", "refused"),
    ACCEPTED,
    ids=[f"{n}-{form if isinstance(form, str) else form['name']}" for n, (form, *_) in enumerate(ACCEPTED)],
)
def test_what_a_strategy_accepts(
    form: Any, model: Any, ranks: int, batch: int, refused: str | None
) -> None:
    error = parsed(form).validation_error(MODELS.parse(model), ranks, batch)
    assert (error is None) == (refused is None)
    assert (refused or "") in (error or "")


def test_equality_bytes_and_checkpoints_are_claimed_with_the_plain_mean_alone() -> None:
    for name in ("all_gather", "parameter_server"):
        assert parsed(name).claimed_equal == "all_reduce"
        assert parsed({"name": name, "aggregation": "median"}).claimed_equal is None
    for name in ("all_reduce", "ddp"):
        compressed = parsed({"name": name, "compression": "power_sgd"})
        assert compressed.step_bytes(100, 0, 2) is None
        assert (parsed(name).not_checkpointed, compressed.not_checkpointed is None) == (None, False)


@pytest.mark.parametrize(
    ("form", "whole"),
    [
        ({"name": "local_sgd", "local_steps": 1}, True),
        ({"name": "local_sgd", "local_steps": 2}, False),
        ({"name": "local_sgd", "local_steps": None}, False),
        *(({"name": name, "local_steps": steps}, steps == 1)
          for name in ("diloco", "fedopt", "fedprox") for steps in (1, 2)),
        ({"name": "gossip", "graph": "complete", "order": "step_then_mix"}, True),
        ({"name": "gossip", "graph": "complete", "order": "mix_then_step"}, False),
        ({"name": "gossip", "graph": "ring", "order": "step_then_mix"}, False),
        ("one_shot", False),
        ("async_parameter_server", False),
        ("hogwild", False),
        ("all_reduce", True),
    ],
    ids=str,
)  # fmt: skip
def test_whether_an_update_uses_the_samples_of_all_ranks(form: Any, whole: bool) -> None:
    assert parsed(form).updates_use_global_batch is whole


@pytest.mark.parametrize(
    ("server", "beside"),
    [("momentum", {"beta2", "tau"}), ("adagrad", {"beta2"}), ("yogi", set()), ("adam", set())],
)
def test_parameters_without_effect_on_a_server(server: str, beside: set[str]) -> None:
    assert {*parsed({"name": "fedopt", "server": server}).without_effect} == beside


# Meshes


def test_the_default_mesh_has_two_stages_and_as_many_replicas_as_ranks_allow() -> None:
    assert [Hybrid().mesh_of(ranks) for ranks in (2, 3, 4, 6)] == [
        Mesh(data=data, pipeline=2) for data in (1, 1, 2, 3)
    ]
    assert Hybrid(mesh=Mesh(tensor=2)).mesh_of(4) == Mesh(tensor=2)


def test_places_of_ranks_on_a_mesh() -> None:
    mesh, ranks = parsed({"name": "hybrid", "mesh": {"data": 2, "pipeline": 3, "tensor": 2}}), range(12)
    assert mesh.replicas(12) == 2
    assert [mesh.replica_of(rank, 12) for rank in ranks] == [0] * 6 + [1] * 6
    assert [rank for rank in ranks if mesh.reports_samples(rank, 12)] == [0, 6]
    assert [rank for rank in ranks if mesh.sees_inputs(rank, 12)] == [0, 1, 6, 7]


def test_layouts_are_meshes_of_several_dimensions() -> None:
    two, stages = {"data": 2, "pipeline": 2}, {"pipeline": 2, "tensor": 2}
    assert {(str(each["mesh"]), each["micro_batches"]) for each in Hybrid.layouts_on(4)} == {
        (str(two), 4),
        (str(two), 8),
        (str({"data": 2, "tensor": 2}), 1),
        (str(stages), 4),
        (str(stages), 8),
    }
    assert Hybrid.layouts_on(2) == []


# Faults


def test_a_fault_is_that_of_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        session: Any = SimpleNamespace(rank=rank, start=lambda: None)
        FaultInjection(fault="flood", rank=1, lines=3).train(session)
        if rank == 1:
            with pytest.raises(InjectedFault):
                FaultInjection(fault="crash", rank=1).train(session)
        else:
            FaultInjection(fault="crash", rank=1).train(session)
        assert len(capsys.readouterr().out.splitlines()) == (3 if rank == 1 else 0)
