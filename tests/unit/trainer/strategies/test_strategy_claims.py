"""Mistakes in what strategies claim before a run: what they accept, equal and send, and places of ranks."""

from __future__ import annotations

from typing import Any

from trainer.core.strategy import Strategy
from trainer.parallel.mesh import Mesh
from trainer.spec.registries import MODELS, STRATEGIES
from trainer.strategies.hybrid import Hybrid


def parsed(form: Any) -> Strategy:
    strategy: Strategy = STRATEGIES.parse(form)
    return strategy


HALF = {"fraction": 0.5}
AVERAGE = {"name": "local_sgd", "optimizer_state": "average"}


def torchs(micro_batches: int, **others: Any) -> dict[str, Any]:
    return {"name": "pipeline_torch", "micro_batches": micro_batches, **others}


def gossip(graph: str, participation: Any = None) -> dict[str, Any]:
    return {"name": "gossip", "graph": graph, "participation": participation}


def stages(entries: list[tuple[int, int | None]]) -> dict[str, Any]:
    schedule = [{"steps": steps, "until": until} for steps, until in entries]
    return {"name": "local_sgd", "local_steps": schedule}


# Strategy, number of ranks, and why they are refused; empty if they are not. How ranks divide models is in
# test_partition_errors.py.
ACCEPTED: list[tuple[Any, int, str]] = [
    ({"name": "tensor_parallel", "sequence_parallel": True}, 2, "other inputs"),
    (torchs(3), 3, ""),
    (torchs(2), 3, "3 to 8 micro-batches, or schedule"),
    (torchs(2), 9, "allowed: schedule gpipe"),  # more ranks than samples in a batch
    (torchs(2, schedule="gpipe"), 3, ""),
    (gossip("ring", HALF), 4, ""),
    (gossip("complete", HALF), 4, ""),
    (gossip("exponential", HALF), 4, "allowed: ring, complete"),
    (gossip("exponential"), 4, ""),
    (AVERAGE, 4, ""),
    ({**AVERAGE, "participation": HALF}, 4, "allowed: keep, reset"),
    ({**AVERAGE, "aggregation": "median"}, 4, "aggregation: mean"),
    ({"name": "diloco", "compression": "int4"}, 4, ""),
    ({"name": "diloco", "aggregation": "median"}, 4, ""),
    ({"name": "diloco", "compression": "int4", "aggregation": "median"}, 4, "aggregation: mean"),
    (stages([(1, 3), (4, None)]), 4, ""),
    (stages([]), 4, "none in the last entry"),
    (stages([(1, 3)]), 4, "none in the last entry"),
    (stages([(1, 3), (4, 3), (8, None)]), 4, "ascending epochs"),
    (stages([(1, None), (4, None)]), 4, "ascending epochs"),
    ({**stages([(1, None)]), "participation": HALF}, 4, "allowed: one H"),
]


def test_what_a_strategy_accepts() -> None:
    for form, ranks, refused in ACCEPTED:
        error = parsed(form).validation_error(MODELS.parse("lenet"), ranks, batch_size=8) or ""
        assert (bool(error), refused in error) == (bool(refused), True), f"{form}, {ranks} ranks: {error}"


def test_equality_bytes_and_checkpoints_are_claimed_with_the_plain_mean_alone() -> None:
    for name in ("all_gather", "parameter_server"):
        assert parsed(name).claimed_equal == "all_reduce"
        assert parsed({"name": name, "aggregation": "median"}).claimed_equal is None
    for name in ("all_reduce", "ddp"):
        compressed = parsed({"name": name, "compression": "power_sgd"})
        assert compressed.step_bytes(100, 0, 2) is None
        assert (parsed(name).not_checkpointed, compressed.not_checkpointed is None) == (None, False)


def test_whether_an_update_uses_the_samples_of_all_ranks() -> None:
    in_steps = ("local_sgd", "diloco", "fedopt", "fedprox")
    gossips = {"name": "gossip", "graph": "complete", "order": "step_then_mix"}
    both = [{"name": "local_sgd", "local_steps": [{"steps": 1, "until": 2}, {"steps": n}]} for n in (1, 2)]
    whole = ["all_reduce", gossips, both[0], *({"name": name, "local_steps": 1} for name in in_steps)]
    others = ["one_shot", "async_parameter_server", "hogwild", {"name": "local_sgd", "local_steps": None}]
    others += [both[1], *({"name": name, "local_steps": 2} for name in in_steps)]
    others += [{**gossips, "order": "mix_then_step"}, {**gossips, "graph": "ring"}]
    assert [form for form in [*whole, *others] if parsed(form).updates_use_global_batch] == whole


def test_parameters_without_effect_on_a_server() -> None:
    beside = {"momentum": {"beta2", "tau"}, "adagrad": {"beta2"}, "yogi": set(), "adam": set()}
    for server, names in beside.items():
        assert {*parsed({"name": "fedopt", "server": server}).without_effect} == names


# Meshes


def test_places_of_ranks_on_a_mesh_and_the_default_one() -> None:
    mesh, ranks = parsed({"name": "hybrid", "mesh": {"data": 2, "pipeline": 3, "tensor": 2}}), range(12)
    assert mesh.replicas(12) == 2
    assert [mesh.replica_of(rank, 12) for rank in ranks] == [0] * 6 + [1] * 6
    assert [rank for rank in ranks if mesh.reports_samples(rank, 12)] == [0, 6]
    assert [rank for rank in ranks if mesh.sees_inputs(rank, 12)] == [0, 1, 6, 7]
    # By default it has two stages, and as many replicas as ranks allow.
    defaults = [Mesh(data=data, pipeline=2) for data in (1, 1, 2, 3)]
    assert [Hybrid().mesh_of(number) for number in (2, 3, 4, 6)] == defaults


def test_layouts_are_meshes_of_several_dimensions() -> None:
    layouts = {(str(Mesh(**each["mesh"])), each["micro_batches"]) for each in Hybrid.layouts_on(4)}
    two, stages = (str(Mesh(pipeline=2, **{other: 2})) for other in ("data", "tensor"))
    assert layouts == {
        *((each, count) for each in (two, stages) for count in (4, 8)),
        (str(Mesh(data=2, tensor=2)), 1),
    }
    assert Hybrid.layouts_on(2) == []
