"""Mistakes in Byzantine nodes of a spec: which ranks they are, how many a rule stands, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trainer.spec.byzantine import ranges
from trainer.spec.run_spec import RunSpec

MEDIAN = {"name": "local_sgd", "aggregation": "median"}
MEAN, SERVER = {"strategy": "local_sgd"}, "parameter_server"
ROUNDS = {"name": "local_sgd", "participation": {"fraction": 0.5}}


def spec(byzantine: list[int] | None = None, attack: Any = "sign_flip", **fields: Any) -> RunSpec:
    attackers = None if byzantine is None else {"nodes": byzantine, "attack": attack}
    values = {"strategy": MEDIAN, "nodes": 7, "byzantine": attackers, "transport": "gloo", **fields}
    return RunSpec.model_validate(values)


def of_rule(rule: Any, strategy: str = "local_sgd") -> dict[str, Any]:
    return {"strategy": {"name": strategy, "aggregation": rule}}


def test_numbers_name_nodes_whose_ranks_all_attack() -> None:
    run = spec([-1, 2], processes_per_node=2)
    assert run.byzantine_nodes == [2, 6]
    assert run.byzantine_ranks == [4, 5, 12, 13]
    assert spec([-7, 6]).byzantine_nodes == [0, 6]
    assert spec([-1, 2]).key == spec([6, 2]).key != spec([1, 2]).key
    assert RunSpec.model_validate(run.model_dump(mode="json")) == run


def test_a_default_aggregation_and_honest_nodes_keep_the_key_of_a_run() -> None:
    plain = spec(**MEAN)
    assert plain.canonical() == {"strategy": {"name": "local_sgd"}, "transport": "gloo", "nodes": 7}
    assert spec(**of_rule("mean")).key == plain.key
    attack = {"nodes": [0], "attack": {"name": "sign_flip"}}
    assert spec([0], **MEAN).canonical()["byzantine"] == attack
    assert [run.aggregates_by_value for run in (plain, spec(), spec([0], **MEAN))] == [False, True, True]
    for name in ("all_gather", "parameter_server"):  # another rule than the mean equals no strategy
        claims = [spec(**of_rule(rule, name)).strategy.claimed_equal for rule in ("mean", "median")]
        assert claims == ["all_reduce", None]


def test_the_label_names_nodes_and_attack() -> None:
    noise = spec([-1, 1], {"name": "noise", "std": 2.0})
    assert noise.byzantine_label == "Byzantine nodes 1 and 6: noise(std=2.0)"
    texts = {"3": [3], "3 and 4": [3, 4], "0 to 2": [0, 1, 2], "0, 2 and 5 to 8": [0, 2, 5, 6, 7, 8]}
    assert [*map(ranges, texts.values())] == [*texts]


IMPORTED = {
    "dataset": {"name": "mine.py:Data", "imported": {
        **dict.fromkeys(("code", "folder", "attribute", "data"), "0"), "module": "mine.py",
        "train_samples": 100, "test_samples": 100, "shape": [4], "class_count": 1, "input_type": "float32",
    }},
    "model": "mlp", "loss": "mse",
}  # fmt: skip
ROUNDS_OF_MEDIAN = {"strategy": {**ROUNDS, "aggregation": "median"}, "byzantine": [0]}
TWO_CLASSES = {"dataset": "breast_cancer", "model": "mlp"}
ZERO, FLIP, LITTLE = {"byzantine": [0]}, {"attack": "label_flip"}, {"attack": "little_is_enough"}


def test_what_cannot_be_is_refused_and_what_is_near_it_is_not() -> None:
    for fits, change, field, named in (
        ({"byzantine": [6]}, {"byzantine": [7]}, "byzantine", "node 7 .*0 to 6"),
        ({"byzantine": [0, 1, 2]}, {"byzantine": [0, 1, 2, 3]}, "byzantine", "4 of 7 .*at most 3"),
        ({**MEAN, "byzantine": [*range(6)]}, {"byzantine": [*range(7)]}, "byzantine", "honest"),
        (of_rule({"name": "krum", "f": 2}), of_rule({"name": "krum", "f": 3}), "strategy", "krum.*f=3.* 7"),
        # Of 7 ranks, 4 take part in each round, and of these 2 could be Byzantine.
        ({"strategy": ROUNDS}, {"strategy": {**ROUNDS, "aggregation": "krum"}}, "strategy", "each round"),
        (ROUNDS_OF_MEDIAN, {"byzantine": [0, 1]}, "byzantine", "2 of 4"),
        (ROUNDS_OF_MEDIAN, LITTLE, "byzantine", "little_is_enough.*z"),
        # A server is no vector.
        (of_rule("krum", SERVER), of_rule({"name": "krum", "f": 2}, SERVER), "strategy", "6 workers"),
        ({"byzantine": [1], **of_rule("krum", SERVER)}, ZERO, "byzantine", "node 0 is the server"),
        ({**MEAN, "on_loss": "continue"}, {"strategy": MEDIAN}, "on_loss", "median.*mean"),
        ({**MEAN, "on_loss": "continue"}, ZERO, "on_loss", "byzantine"),
        # Checkpoints lack the start of a round, which honest nodes do not need.
        ({"checkpoint_epochs": 1}, ZERO, "byzantine", "checkpoint"),
        ({**of_rule("median", "all_gather"), **ZERO, "checkpoint_epochs": 1}, {"strategy": MEDIAN},
         "byzantine", "checkpoint"),
        ({**ZERO, **FLIP, **TWO_CLASSES}, IMPORTED, "byzantine", "label_flip .*mse"),
        ({**ZERO, "attack": {"name": "little_is_enough", "z": 1.0}}, LITTLE, "byzantine", "little_is"),
        ({}, {"strategy": {**MEDIAN, "optimizer_state": "average"}}, "strategy", "optimizer_state.*keep"),
        ({}, {**ZERO, "strategy": "gossip"}, "byzantine", "no aggregation to attack; .*one_shot"),
    ):  # fmt: skip
        spec(**fits)
        with pytest.raises(ValidationError, match=named) as caught:
            spec(**{**fits, **change})
        assert [error["type"] for error in caught.value.errors()] == [field]
