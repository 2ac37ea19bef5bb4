"""Mistakes in the published JSON Schemas: other than what the orchestrator accepts."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.shipped import SWEEPS
from orchestrator.sweeps.load import load_sweep
from orchestrator.sweeps.schema import schema_files
from tests.unit.conftest import PROJECT
from trainer.spec.run_spec import RunSpec


@cache
def validators() -> dict[str, Draft202012Validator]:
    return {name: Draft202012Validator(json.loads(text)) for name, text in schema_files().items()}


def test_schemas_are_valid_and_define_and_describe_each_field_once() -> None:
    run, sweep = (validator.schema for validator in validators().values())
    for validator in validators().values():
        validator.check_schema(validator.schema)
    text, fields = json.dumps(sweep), run["properties"]
    assert [name for name, field in fields.items() if text.count(json.dumps(field)) != 1] == []
    undescribed = {name for name, field in fields.items() if "description" not in field}
    assert undescribed <= {"dataset", "model", "optimizer"}  # their names are self-explanatory


def test_shipped_sweeps_fit_and_name_their_schema() -> None:
    for path in SWEEPS.rglob("*.yml"):
        text = path.read_text()
        validators()["sweep.schema.json"].validate(yaml.safe_load(text))
        schema = text.partition("\n")[0].removeprefix("# yaml-language-server: $schema=")
        assert (path.parent / schema).resolve() == PROJECT / "schemas" / "sweep.schema.json"


RUNS = """
- {strategy: {name: one_shot, init: independent}, nodes: 2, transport: gloo}
- {strategy: ddp, model: {name: mlp, hidden: [3]}, optimizer: {name: adam, beta1: 0}, lr: 1}
- {strategy: {name: all_reduce, compression: sign}, dataset: {name: synthetic, samples: 5, noise: 2}}
- {strategy: {name: all_reduce, compression: {name: top_k, ratio: 0.5}}}
- {}
- {strategy: {name: all_reduce, compression: {ratio: 0.5}}}
- {strategy: {name: ddp, compression: top_k}}
- {strategy: no_such}
- {strategy: {name: one_shot, init: no_such}}
- {strategy: {init: broadcast}}
- {strategy: serial, learning_rate: 1}
- {strategy: serial, lr: '0.1'}
- {strategy: serial, seed: 4294967296}
- {strategy: serial, epochs: true}
- {strategy: serial, transport: tcp}
- {strategy: serial, model: {name: mlp, hidden: [0]}}
- {strategy: ddp, cpus: equal}
"""
BLOCKS = """
- [{base: {strategy.init: independent}}]
- [{axes: {nodes: [1, 2], strategy.init: [broadcast], cpus: [equal, 1]}}]
- [{axes: {strategy: [{name: one_shot}, ddp]}, skip: [{strategy: ddp, nodes: [1, 2]}]}]
- [{skip: [{strategy.init: broadcast}]}, {base: {nodes: 2, cpus: equal}}]
- []
- [{axis: {}}]
- [{base: {lrr: 1}}]
- [{base: {lr.x: 1}}]
- [{axes: {lr: 0.1}}]
- [{axes: {lr: []}}]
- [{axes: {lr: [0.1, -1]}}]
- [{axes: {cpus: [even, 1]}}]
- [{skip: [{lrr: 1}]}]
- [{skip: {lr: 1}}]
- {}
"""
VALID = 4  # of each: the first ones


def test_schemas_accept_what_runs_and_sweeps_accept(tmp_path: Path) -> None:
    def accepted(load: Callable[[Any], object], documents: list[Any]) -> list[Any]:
        found = []
        for each in documents:
            with suppress(InputError, ValidationError):
                load(each)
                found.append(each)
        return found

    def load(sweep: Any) -> object:
        return load_sweep(tmp_path, text=json.dumps(sweep), cores=lambda _: 2.0)

    base = {"name": "s", "base": {"strategy": "one_shot"}}
    sweeps = [{**base, "blocks": blocks} for blocks in yaml.safe_load(BLOCKS)]
    runs = yaml.safe_load(RUNS)
    assert accepted(RunSpec.model_validate, runs) == runs[:VALID]
    assert accepted(load, sweeps) == sweeps[:VALID]
    for validator, documents in zip(validators().values(), (runs, sweeps), strict=True):
        assert [each for each in documents if validator.is_valid(each)] == documents[:VALID]
