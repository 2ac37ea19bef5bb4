"""Mistakes in the published JSON Schemas: out of date, or other than what the orchestrator accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.shipped import SWEEPS
from orchestrator.sweeps.load import load_sweep
from orchestrator.sweeps.schema import schema_files
from tests.unit.conftest import PROJECT
from trainer.spec.run_spec import RunSpec


@pytest.fixture(scope="module")
def validators() -> dict[str, Draft202012Validator]:
    return {
        name.partition(".")[0]: Draft202012Validator(json.loads(text))
        for name, text in schema_files().items()
    }


def test_schemas_are_valid_up_to_date_and_define_and_describe_each_field_once(
    validators: dict[str, Draft202012Validator],
) -> None:
    for name, validator in validators.items():
        validator.check_schema(validator.schema)
        published = PROJECT / "schemas" / f"{name}.schema.json"
        assert json.loads(published.read_text()) == validator.schema, "run `make docs`"
    text = json.dumps(validators["sweep"].schema)
    fields = validators["run"].schema["properties"]
    assert [name for name, field in fields.items() if text.count(json.dumps(field)) != 1] == []
    undescribed = {name for name, field in fields.items() if "description" not in field}
    assert undescribed <= {"dataset", "model", "optimizer"}  # their names are self-explanatory


def test_shipped_sweeps_fit_and_name_their_schema(validators: dict[str, Draft202012Validator]) -> None:
    for path in SWEEPS.rglob("*.yml"):
        text = path.read_text()
        validators["sweep"].validate(yaml.safe_load(text))
        schema = text.partition("\n")[0].removeprefix("# yaml-language-server: $schema=")
        assert (path.parent / schema).resolve() == PROJECT / "schemas" / "sweep.schema.json"


RUNS = """
- {strategy: serial}
- {strategy: {name: one_shot, init: independent}, nodes: 2, transport: gloo}
- {strategy: ddp, model: {name: mlp, hidden: [3]}, optimizer: {name: adam, beta1: 0}}
- {strategy: ddp, dataset: {name: synthetic, samples: 5, noise: 2}, lr: 1}
- {strategy: {name: all_reduce, compression: sign}}
- {strategy: {name: all_reduce, compression: {name: top_k, ratio: 0.5}}}
- {strategy: {name: ddp, compression: {name: power_sgd, rank: 4}}}
- {}
- {strategy: {name: all_reduce, compression: {name: top_k, ratio: 0}}}
- {strategy: {name: all_reduce, compression: {ratio: 0.5}}}
- {strategy: {name: ddp, compression: top_k}}
- {strategy: {name: one_shot, compression: none}}
- {strategy: no_such}
- {strategy: {name: one_shot, init: no_such}}
- {strategy: {init: broadcast}}
- {strategy: serial, learning_rate: 1}
- {strategy: serial, lr: '0.1'}
- {strategy: serial, lr: 0}
- {strategy: serial, seed: 1.5}
- {strategy: serial, seed: 4294967296}
- {strategy: serial, epochs: true}
- {strategy: serial, transport: tcp}
- {strategy: serial, model: {name: mlp, hidden: [0]}}
- {strategy: serial, model: {name: lenet, dropout: 1}}
- {strategy: serial, save_weights: 1}
- {strategy: ddp, cpus: equal}
"""
VALID = 7  # so many of them


def test_the_schema_of_a_run_accepts_what_a_run_accepts(
    validators: dict[str, Draft202012Validator],
) -> None:
    def accepted(run: dict[str, Any]) -> bool:
        try:
            RunSpec.model_validate(run)
        except ValidationError:
            return False
        return True

    runs = yaml.safe_load(RUNS)
    assert [accepted(run) for run in runs] == [number < VALID for number in range(len(runs))]
    assert [run for run in runs if validators["run"].is_valid(run)] == runs[:VALID]


BLOCKS = """
- [{}]
- [{base: {strategy.init: independent}}]
- [{axes: {nodes: [1, 2], strategy.init: [broadcast]}}]
- [{axes: {strategy: [{name: one_shot}, ddp]}, skip: [{strategy: ddp, nodes: [1, 2]}]}]
- [{skip: [{strategy.init: broadcast}]}, {base: {nodes: 2}}]
- [{base: {cpus: equal}}]
- [{axes: {cpus: [equal, 1]}}]
- []
- [{axis: {}}]
- [{base: {lrr: 1}}]
- [{base: {lr.x: 1}}]
- [{base: {lr: x}}]
- [{base: 1}]
- [{axes: {lr: 0.1}}]
- [{axes: {lr: []}}]
- [{axes: {strategy.init: []}}]
- [{axes: {lr: [0.1, -1]}}]
- [{axes: {cpus: [even, 1]}}]
- [{skip: [{lrr: 1}]}]
- [{skip: {lr: 1}}]
- {}
"""


def test_the_schema_of_a_sweep_accepts_what_a_sweep_accepts(
    validators: dict[str, Draft202012Validator], tmp_path: Path
) -> None:
    def loads(sweep: dict[str, Any]) -> bool:
        (tmp_path / "s.yml").write_text(json.dumps(sweep))
        try:
            load_sweep(tmp_path / "s.yml", cores=lambda _: 2.0)
        except InputError:
            return False
        return True

    sweeps = [
        {"name": "s", "base": {"strategy": "one_shot"}, "blocks": blocks}
        for blocks in yaml.safe_load(BLOCKS)
    ]
    assert [loads(sweep) for sweep in sweeps] == [number < VALID for number in range(len(sweeps))]
    assert [sweep for sweep in sweeps if validators["sweep"].is_valid(sweep)] == sweeps[:VALID]
