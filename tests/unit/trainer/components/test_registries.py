"""Mistakes in registries: names, parameters, what a file can hold of a component, and imports of torch."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Annotated, Any, get_args

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.base import Runtime
from tests.unit.conftest import PROJECT
from trainer.comm.base import Communicator
from trainer.core.registry import Component, ComponentRegistry
from trainer.spec.registries import AGGREGATIONS, ATTACKS, COMPRESSIONS, REGISTRIES, TRANSPORTS

OF_COMPONENTS = {**REGISTRIES, "compression": COMPRESSIONS, "aggregation": AGGREGATIONS, "attack": ATTACKS}
ALL = {**OF_COMPONENTS, "transport": TRANSPORTS, "runtime": RUNTIMES}


def build(kind: str, name: str, **parameters: Any) -> Component:
    component: Component = OF_COMPONENTS[kind].parse({"name": name, **parameters})
    return component


@pytest.mark.parametrize("kind", ALL)
def test_entries_load_and_are_documented_and_unknown_ones_are_told_all_names(kind: str) -> None:
    for name in ALL[kind].entries:
        loaded = ALL[kind].load(name)
        assert name.isidentifier()
        assert name == name.lower()
        assert len(loaded.__dict__.get("__doc__") or "") > 10
        assert not inspect.isabstract(loaded)
        assert issubclass(loaded, {"transport": Communicator, "runtime": Runtime}.get(kind, Component))
    with pytest.raises(PydanticCustomError) as caught:
        ALL[kind].load("no_such_thing")
    assert [name for name in ALL[kind].entries if name not in str(caught.value)] == []


@pytest.mark.parametrize("kind", OF_COMPONENTS)
def test_parameters_reject_other_values_and_cannot_be_changed(kind: str) -> None:
    for name in OF_COMPONENTS[kind].entries:
        with pytest.raises(ValidationError, match="no_such_parameter"):
            build(kind, name, no_such_parameter=1)
        component = build(kind, name)
        for parameter, field in type(component).model_fields.items():
            bad: list[Any] = [float("nan"), float("inf"), 1 if field.annotation is bool else True]
            bad += ["1", [1], None] * (field.annotation in (int, float)) + [1.0] * (field.annotation is int)
            for value in bad:
                with pytest.raises(ValidationError) as caught:
                    build(kind, name, **{parameter: value})
                assert caught.value.errors()[0]["loc"][0] == parameter
            with pytest.raises(ValidationError, match="frozen"):
                setattr(component, parameter, getattr(component, parameter))
    other = build("optimizer", "sgd") if kind != "optimizer" else build("model", "mlp")
    with pytest.raises(PydanticCustomError, match="not a registered"):
        OF_COMPONENTS[kind].parse(other)


def changed_once(kind: str, name: str) -> Iterator[tuple[set[str], Component]]:
    """The component, then with another value of each parameter that can change alone; and its keys."""
    yield {"name"}, build(kind, name)
    for parameter, field in OF_COMPONENTS[kind].load(name).model_fields.items():
        inside = [each.entries for each in field.metadata if isinstance(each, ComponentRegistry)]
        choices = [get_args(each) for each in (field.annotation, *get_args(field.annotation))]
        for value in (*chain(*inside, *choices), not field.default, 1, 2, 3, 0.25, 1.5, [3], ["flatten"]):
            with suppress(ValidationError):
                component = build(kind, name, **{parameter: value})
                if value != field.default:
                    yield {"name", parameter}, component
                    break


@pytest.mark.parametrize("kind", OF_COMPONENTS)
def test_a_file_and_its_schema_hold_every_component_and_each_parameter_of_it(kind: str) -> None:
    registry = OF_COMPONENTS[kind]
    schema = Draft202012Validator(TypeAdapter(Annotated[Any, registry]).json_schema())
    for name in registry.entries:
        for keys, component in changed_once(kind, name):
            forms = registry.dump(component, exclude_defaults=True), registry.dump(component)
            assert {*forms[0]} == keys
            assert registry.parse(component) is component
            for form in forms:
                assert registry.parse(json.loads(json.dumps(form))) == component
                assert schema.is_valid(form)
        assert schema.is_valid(name)
        nameless = {key: value for key, value in forms[1].items() if key != "name"}
        for wrong in (nameless, {"name": name, "no_such": 1}, "no_such", {"name": "no_such"}):
            assert not schema.is_valid(wrong)


LOAD_ALL = """
import runpy, sys
from trainer.spec.registries import AGGREGATIONS, ATTACKS, COMPRESSIONS, REGISTRIES, TRANSPORTS
from orchestrator.runtimes import RUNTIMES
for registry in (*REGISTRIES.values(), AGGREGATIONS, ATTACKS, COMPRESSIONS, TRANSPORTS, RUNTIMES):
    for name in registry.entries:
        registry.load(name)
sys.argv = ["orchestrator", "--help"]
try:
    runpy.run_module("orchestrator", run_name="__main__")
except SystemExit as done:
    assert not done.code
print("loaded:", *sys.modules)
"""


@pytest.mark.slow
def test_components_load_and_commands_start_without_torch_and_mpi() -> None:
    command = [sys.executable, "-c", LOAD_ALL]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = {*done.stdout.rpartition("loaded:")[2].split()}
    assert loaded & {"pydantic"}
    assert not loaded & {"torch", "mpi4py", "torchvision", "sklearn", "vl_convert", "docker"}
