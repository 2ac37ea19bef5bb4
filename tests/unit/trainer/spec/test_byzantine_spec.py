"""Byzantine nodes and aggregations in a spec: their forms, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trainer.spec.byzantine import ranges
from trainer.spec.run_spec import RunSpec

MEDIAN = {"name": "local_sgd", "aggregation": "median"}


def spec(byzantine: list[int] | None = None, attack: Any = "sign_flip", **fields: Any) -> RunSpec:
    attackers = None if byzantine is None else {"nodes": byzantine, "attack": attack}
    values = {"strategy": MEDIAN, "nodes": 7, "byzantine": attackers, "transport": "gloo", **fields}
    return RunSpec.model_validate(values)


def refused(field: str, *parts: str, **fields: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**fields)
    (error,) = caught.value.errors()
    assert error["type"] == field
    assert [part for part in parts if part not in error["msg"]] == []


# Forms


def test_negative_numbers_count_from_the_last_node() -> None:
    run = spec([-1, 2])
    assert run.byzantine_nodes == [2, 6]
    assert run.byzantine_ranks == [2, 6]
    assert run.key == spec([6, 2]).key
    assert run.key != spec([1, 2]).key
    assert RunSpec.model_validate(run.model_dump(mode="json")) == run


def test_all_ranks_of_a_node_attack() -> None:
    run = spec([1], nodes=3, processes_per_node=2)
    assert run.byzantine_ranks == [2, 3]


def test_a_default_aggregation_and_honest_nodes_keep_the_key_of_a_run() -> None:
    plain = spec(strategy="local_sgd")
    assert plain.canonical() == {"strategy": {"name": "local_sgd"}, "transport": "gloo", "nodes": 7}
    assert spec(strategy={"name": "local_sgd", "aggregation": "mean"}).key == plain.key
    assert spec([0], strategy="local_sgd").canonical()["byzantine"] == {
        "nodes": [0],
        "attack": {"name": "sign_flip"},
    }


def test_the_label_names_nodes_and_attack() -> None:
    assert spec([-1, 1], {"name": "noise", "std": 2.0}).byzantine_label == (
        "Byzantine nodes 1 and 6: noise(std=2.0)"
    )
    assert spec([3]).byzantine_label == "Byzantine node 3: sign_flip"
    assert spec().byzantine_label == ""


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "3"), ([3, 4], "3 and 4"), ([0, 1, 2], "0 to 2"), ([0, 2, 5, 6, 7, 8], "0, 2 and 5 to 8")],
)
def test_ranges_of_numbers(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


# Refused


@pytest.mark.parametrize("node", [7, -8])
def test_a_node_that_does_not_exist(node: int) -> None:
    refused("byzantine", str(node), "0 to 6", byzantine=[node])


def test_a_node_that_is_named_twice() -> None:
    refused("byzantine", "-1 and 6 are the same", byzantine=[-1, 6])


def test_no_honest_node() -> None:
    refused("byzantine", "honest", byzantine=[0, 1], nodes=2, strategy="local_sgd")


@pytest.mark.parametrize("strategy", ["all_reduce", "gossip", "serial", "pipeline"])
def test_a_strategy_without_aggregation(strategy: str) -> None:
    nodes = 1 if strategy == "serial" else 2
    with pytest.raises(
        ValidationError, match="no aggregation to attack; allowed: null, or one of one_shot"
    ):
        RunSpec.model_validate(
            {"strategy": strategy, "nodes": nodes, "byzantine": {"nodes": [0], "attack": "noise"}}
        )


@pytest.mark.parametrize(
    ("rule", "most"),
    [
        ("median", 3),
        ("geometric_median", 3),
        ("trimmed_mean", 1),
        ("krum", 1),
        ({"name": "krum", "f": 2}, 2),
    ],
)
def test_more_byzantine_nodes_than_the_rule_stands(rule: Any, most: int) -> None:
    strategy = {"name": "fedopt", "aggregation": rule}
    assert spec([*range(most)], strategy=strategy).byzantine_nodes == [*range(most)]
    refused(
        "byzantine", f"{most + 1} of 7", f"at most {most}", byzantine=[*range(most + 1)], strategy=strategy
    )


def test_the_mean_may_have_any_number_of_byzantine_nodes() -> None:
    assert len(spec([*range(6)], strategy="diloco").byzantine_ranks) == 6


@pytest.mark.parametrize(
    ("name", "f"), [("trimmed_mean", 4), ("krum", 3), ("multi_krum", 3), ("bulyan", 2)]
)
def test_f_that_the_number_of_vectors_does_not_permit(name: str, f: int) -> None:
    strategy = {"name": "local_sgd", "aggregation": {"name": name, "f": f - 1}}
    assert spec(strategy=strategy).aggregation
    strategy["aggregation"] = {"name": name, "f": f}
    refused("strategy", name, f"f={f}", "7", strategy=strategy)


def test_a_round_has_fewer_vectors_than_the_run() -> None:
    """Of 7 ranks, 4 take part in each round, and of these 2 could be Byzantine."""
    rounds = {"name": "local_sgd", "participation": {"fraction": 0.5}}
    refused("strategy", "krum", "4", "each round", strategy={**rounds, "aggregation": "krum"})
    median = {**rounds, "aggregation": "median"}
    assert spec([0], strategy=median).byzantine_ranks == [0]
    refused("byzantine", "2 of 4", "at most 1", byzantine=[0, 1], strategy=median)
    refused("byzantine", "little_is_enough", "z", byzantine=[0], attack="little_is_enough", strategy=median)


def test_a_server_is_no_vector_and_not_byzantine() -> None:
    strategy = {"name": "parameter_server", "aggregation": {"name": "krum", "f": 2}}
    refused("strategy", "6 workers", strategy=strategy)
    strategy = {"name": "parameter_server", "aggregation": "krum"}
    assert spec([1], strategy=strategy).byzantine_ranks == [1]
    refused("byzantine", "node 0 is the server", byzantine=[0], strategy=strategy)


def test_a_lost_node() -> None:
    refused("on_loss", "median", "mean", on_loss="continue")
    refused("on_loss", "byzantine", byzantine=[0], strategy="local_sgd", on_loss="continue")
    assert spec(strategy="local_sgd", on_loss="continue").on_loss == "continue"


def test_checkpoints_lack_the_start_of_a_round() -> None:
    refused("byzantine", "checkpoint", byzantine=[0], checkpoint_epochs=1)
    assert spec(checkpoint_epochs=1).checkpoints  # honest nodes need no start
    gradients = {"name": "all_gather", "aggregation": "median"}
    assert spec([0], strategy=gradients, checkpoint_epochs=1).checkpoints


def test_labels_that_are_no_classes() -> None:
    assert spec([0], "label_flip").byzantine
    code = {"code": "0", "folder": "0", "module": "mine.py", "attribute": "Data", "data": "0"}
    sizes = {"train_samples": 100, "test_samples": 10, "shape": [4], "class_count": 1}
    dataset = {"name": "mine.py:Data", "imported": {**code, **sizes, "input_type": "float32"}}
    fields = {"dataset": dataset, "model": "mlp", "loss": "mse"}
    assert spec([0], **fields).byzantine
    refused("byzantine", "label_flip", "mse", byzantine=[0], attack="label_flip", **fields)


def test_an_attack_that_is_none() -> None:
    refused("byzantine", "little_is_enough", byzantine=[0], attack="little_is_enough")
    assert spec([0], {"name": "little_is_enough", "z": 1.0}).byzantine


def test_a_mean_of_optimizer_states() -> None:
    strategy = {**MEDIAN, "optimizer_state": "average"}
    refused("strategy", "optimizer_state", "keep", strategy=strategy)


@pytest.mark.parametrize(
    "bad",
    [
        {"nodes": [0]},
        {"attack": "noise"},
        {"nodes": [], "attack": "noise"},
        {"nodes": [0], "attack": "no_such"},
        {"nodes": [True], "attack": "noise"},
        {"nodes": [0], "attack": {"name": "noise", "std": 0}},
        {"nodes": [0], "attack": "noise", "more": 1},
    ],
)
def test_invalid_forms(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"strategy": MEDIAN, "nodes": 7, "byzantine": bad})
    assert caught.value.errors()[0]["loc"][0] == "byzantine"


# What is claimed


@pytest.mark.parametrize("name", ["all_gather", "parameter_server"])
def test_another_rule_than_the_mean_equals_no_strategy(name: str) -> None:
    assert spec(strategy=name).strategy.claimed_equal == "all_reduce"
    assert spec(strategy={"name": name, "aggregation": "median"}).strategy.claimed_equal is None
