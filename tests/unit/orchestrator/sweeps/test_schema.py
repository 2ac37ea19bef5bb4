"""The published JSON Schemas: up to date, and consistent with what the orchestrator accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.sweeps.load import load_sweep
from orchestrator.sweeps.schema import run_schema, schema_files, sweep_schema
from tests.unit.conftest import PROJECT
from trainer.spec.run_spec import RunSpec

SWEEPS = sorted((PROJECT / "sweeps").rglob("*.yml"))
RUN, SWEEP = Draft202012Validator(run_schema()), Draft202012Validator(sweep_schema())


@pytest.mark.parametrize("schema", [RUN.schema, SWEEP.schema], ids=["run", "sweep"])
def test_the_schema_itself_is_valid(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)


def test_a_field_of_a_run_is_defined_once_in_the_sweep_schema() -> None:
    text = json.dumps(SWEEP.schema)
    for name, field in RUN.schema["properties"].items():
        assert text.count(json.dumps(field)) == 1, name


def test_schemas_in_the_repository_are_up_to_date() -> None:
    files = schema_files()
    assert sorted(files) == ["run.schema.json", "sweep.schema.json"]
    for name, made in files.items():
        published = PROJECT / "schemas" / name
        assert json.loads(published.read_text()) == json.loads(made), "run `make docs`"


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_shipped_sweeps_fit_their_schema(path: Path) -> None:
    SWEEP.validate(yaml.safe_load(path.read_text()))
    first = path.read_text().splitlines()[0]
    schema = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / schema).resolve() == PROJECT / "schemas" / "sweep.schema.json"


def accepted(run: dict[str, Any]) -> bool:
    try:
        RunSpec.model_validate(run)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    "run",
    [
        {"strategy": "serial"},
        {"strategy": {"name": "one_shot", "init": "independent"}, "nodes": 2, "transport": "gloo"},
        {
            "strategy": "ddp",
            "model": {"name": "mlp", "hidden": [3]},
            "optimizer": {"name": "adam", "beta1": 0},
        },
        {"strategy": "ddp", "dataset": {"name": "synthetic", "samples": 5, "noise": 2}, "lr": 1},
        {"strategy": {"name": "all_reduce", "compression": "sign"}},
        {"strategy": {"name": "all_reduce", "compression": {"name": "top_k", "ratio": 0.5}}},
        {"strategy": {"name": "ddp", "compression": {"name": "power_sgd", "rank": 4}}},
        {},
        {"strategy": {"name": "all_reduce", "compression": {"name": "top_k", "ratio": 0}}},
        {"strategy": {"name": "all_reduce", "compression": {"ratio": 0.5}}},
        {"strategy": {"name": "ddp", "compression": "top_k"}},
        {"strategy": {"name": "one_shot", "compression": "none"}},
        {"strategy": "no_such"},
        {"strategy": {"name": "one_shot", "init": "no_such"}},
        {"strategy": {"init": "broadcast"}},
        {"strategy": "serial", "learning_rate": 1},
        {"strategy": "serial", "lr": "0.1"},
        {"strategy": "serial", "lr": 0},
        {"strategy": "serial", "seed": 1.5},
        {"strategy": "serial", "seed": 2**32},
        {"strategy": "serial", "epochs": True},
        {"strategy": "serial", "transport": "tcp"},
        {"strategy": "serial", "model": {"name": "mlp", "hidden": [0]}},
        {"strategy": "serial", "model": {"name": "lenet", "dropout": 1}},
        {"strategy": "serial", "save_weights": 1},
    ],
    ids=repr,
)
def test_run_schema_agrees_with_run_spec(run: dict[str, Any]) -> None:
    assert RUN.is_valid(run) == accepted(run)


@pytest.mark.parametrize(
    "blocks",
    [
        "[{}]",
        "[{base: {strategy.init: independent}}]",
        "[{axes: {nodes: [1, 2], strategy.init: [broadcast]}}]",
        "[{axes: {strategy: [{name: one_shot}, ddp]}, skip: [{strategy: ddp, nodes: [1, 2]}]}]",
        "[{skip: [{strategy.init: broadcast}]}, {base: {nodes: 2}}]",
        "[]",
        "[{axis: {}}]",
        "[{base: {lrr: 1}}]",
        "[{base: {lr.x: 1}}]",
        "[{base: {lr: x}}]",
        "[{base: 1}]",
        "[{axes: {lr: 0.1}}]",
        "[{axes: {lr: []}}]",
        "[{axes: {strategy.init: []}}]",
        "[{axes: {lr: [0.1, -1]}}]",
        "[{skip: [{lrr: 1}]}]",
        "[{skip: {lr: 1}}]",
        "{}",
    ],
)
def test_sweep_schema_agrees_with_load_sweep(tmp_path: Path, blocks: str) -> None:
    path = tmp_path / "s.yml"
    path.write_text(f"name: s\nbase: {{strategy: one_shot}}\nblocks: {blocks}\n")
    try:
        load_sweep(path)
        loads = True
    except InputError:
        loads = False
    assert SWEEP.is_valid(yaml.safe_load(path.read_text())) == loads


@pytest.mark.parametrize("fields", ["base: {cpus: equal}", "axes: {cpus: [equal, 1]}"])
def test_equal_quotas_fit_the_schema_of_a_sweep_only(tmp_path: Path, fields: str) -> None:
    path = tmp_path / "s.yml"
    path.write_text(f"name: s\nblocks: [{{{fields}}}]\nbase: {{strategy: ddp}}\n")
    assert load_sweep(path, cores=lambda _: 2.0).equal_cpus
    assert SWEEP.is_valid(yaml.safe_load(path.read_text()))
    path.write_text(path.read_text().replace("equal", "even"))
    with pytest.raises(InputError, match="cpus"):
        load_sweep(path, cores=lambda _: 2.0)
    assert not SWEEP.is_valid(yaml.safe_load(path.read_text()))
    assert not RUN.is_valid({"strategy": "ddp", "cpus": "equal"})


def test_every_field_has_a_description() -> None:
    fields = run_schema()["properties"]
    assert fields["nodes"] == {
        "default": 1,
        "description": "number of nodes",
        "maximum": 16384,
        "minimum": 1,
        "title": "Nodes",
        "type": "integer",
    }
    undescribed = {name for name, field in fields.items() if "description" not in field}
    assert undescribed <= {"dataset", "model", "optimizer"}  # their names are self-explanatory
