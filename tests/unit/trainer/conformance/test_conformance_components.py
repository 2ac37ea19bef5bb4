"""Conformance of components: rules for every registered one, and packages that load without torch."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.base import Runtime
from tests.unit.conftest import PROJECT
from trainer.aggregation.base import Aggregation
from trainer.comm.base import Communicator
from trainer.compression.base import Compression
from trainer.core.registry import Component
from trainer.core.strategy import ALL_TRANSPORTS, CPU_TRANSPORTS
from trainer.launch.environment import TOPOLOGIES
from trainer.parallel.mesh import Mesh
from trainer.spec.registries import (
    AGGREGATIONS,
    ATTACKS,
    COMPRESSIONS,
    REGISTRIES,
    STRATEGIES,
    TRANSPORTS,
)
from trainer.spec.run_spec import RunSpec

OF_COMPONENTS = {
    **REGISTRIES,
    "compression": COMPRESSIONS,
    "aggregation": AGGREGATIONS,
    "attack": ATTACKS,
}
ALL = {**OF_COMPONENTS, "transport": TRANSPORTS, "runtime": RUNTIMES}
ENTRIES = [(kind, name) for kind, registry in ALL.items() for name in registry.entries]
COMPONENTS = [(kind, name) for kind, name in ENTRIES if kind in OF_COMPONENTS]
PARAMETERS = [
    (kind, name, parameter)
    for kind, name in COMPONENTS
    for parameter in OF_COMPONENTS[kind].load(name).model_fields
]
# Suffixes of class names by kind, and files that hold several entries.
SUFFIXES = {
    "augmentation": "Augmentation",
    "compression": "Compression",
    "aggregation": "Aggregation",
    "transport": "Communicator",
    "runtime": "Runtime",
}
SHARED_FILES = {
    "fashion_mnist": "mnist",
    **dict.fromkeys(["iris", "wine", "breast_cancer"], "tables"),
    **dict.fromkeys(["pydoc_text", "tiny_shakespeare", "copy", "induction"], "text"),
}


def build(kind: str, name: str, **parameters: Any) -> Component:
    component: Component = OF_COMPONENTS[kind].parse({"name": name, **parameters})
    return component


def other_value(annotation: Any, default: Any) -> Any:
    """A valid value other than the default, as a YAML file would give it."""
    if annotation is bool:
        return not default
    if annotation in (int, int | None):
        return (default or 1) + 1
    if annotation in (float, float | None):
        return 0.5 if default != 0.5 else 0.25
    if get_origin(annotation) is Literal:
        return next(choice for choice in get_args(annotation) if choice != default)
    if annotation == list[str] | None:
        return ["flatten"]
    if annotation == Mesh | None:
        return {"data": 3}
    if get_origin(annotation) is list:
        return [*default, default[0]]
    if annotation is Compression:
        return {"name": "power_sgd", "rank": 3}
    if annotation is Aggregation:
        return {"name": "krum", "f": 2}
    return default  # for other types, only the default is tested


# Every entry


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_entry_loads_and_has_a_docstring(kind: str, name: str) -> None:
    loaded = ALL[kind].load(name)
    assert len(loaded.__dict__.get("__doc__") or "") > 10
    assert not inspect.isabstract(loaded)
    base = {"transport": Communicator, "runtime": Runtime}.get(kind, Component)
    assert issubclass(loaded, base)


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_name_is_snake_case_and_the_class_camel_case(kind: str, name: str) -> None:
    module, _, attribute = ALL[kind].entries[name].partition(":")
    assert name == name.lower()
    assert name.replace("_", "").isalnum()
    assert attribute[0].isupper()
    assert attribute.removesuffix(SUFFIXES.get(kind, "")).lower() == name.replace("_", "")
    assert SHARED_FILES.get(name, name) in module.split(".")[-2:]


@pytest.mark.parametrize("kind", ALL)
def test_unknown_name_lists_the_known_ones(kind: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        ALL[kind].load("no_such_thing")
    for name in ALL[kind].entries:
        assert name in str(caught.value)


@pytest.mark.parametrize("kind", OF_COMPONENTS)
def test_component_of_another_kind_is_rejected(kind: str) -> None:
    other = build("optimizer" if kind != "optimizer" else "model", "sgd" if kind != "optimizer" else "mlp")
    with pytest.raises(PydanticCustomError, match="not a registered"):
        OF_COMPONENTS[kind].parse(other)


# Parameters


@pytest.mark.parametrize(("kind", "name"), COMPONENTS)
def test_unknown_parameter_is_rejected(kind: str, name: str) -> None:
    with pytest.raises(ValidationError, match="no_such_parameter"):
        build(kind, name, no_such_parameter=1)


@pytest.mark.parametrize(("kind", "name", "parameter"), PARAMETERS)
def test_parameter_rejects_invalid_values(kind: str, name: str, parameter: str) -> None:
    annotation = OF_COMPONENTS[kind].load(name).model_fields[parameter].annotation
    bad: list[Any] = [float("nan"), float("inf"), -float("inf"), 1 if annotation is bool else True]
    if annotation in (int, float):
        bad += ["1", [1], None]
    if annotation is int:
        bad += [1.0]
    for value in bad:
        with pytest.raises(ValidationError) as caught:
            build(kind, name, **{parameter: value})
        assert caught.value.errors()[0]["loc"][0] == parameter


@pytest.mark.parametrize(("kind", "name", "parameter"), PARAMETERS)
def test_components_are_frozen(kind: str, name: str, parameter: str) -> None:
    component = build(kind, name)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(component, parameter, getattr(component, parameter))


# Serialization


OF_EXPERTS = ("top_k", "capacity_factor", "balance")  # have no effect without any


def forms(kind: str, name: str) -> Iterator[Component]:
    """The component with its defaults, then with each parameter changed in turn."""
    yield build(kind, name)
    for parameter, field in OF_COMPONENTS[kind].load(name).model_fields.items():
        others = {"experts": 4} if parameter in OF_EXPERTS else {}
        yield build(kind, name, **others, **{parameter: other_value(field.annotation, field.default)})


@pytest.mark.parametrize(("kind", "name"), COMPONENTS)
@pytest.mark.parametrize("brief", [False, True])
def test_dump_and_parse_round_trip(kind: str, name: str, brief: bool) -> None:
    registry = OF_COMPONENTS[kind]
    for component in forms(kind, name):
        dumped = registry.dump(component, exclude_defaults=brief)
        assert dumped["name"] == name
        assert registry.parse(json.loads(json.dumps(dumped))) == component
        assert registry.parse(component) == component
    assert registry.dump(build(kind, name), exclude_defaults=True) == {"name": name}


@pytest.mark.parametrize("kind", OF_COMPONENTS)
def test_schema_accepts_only_dumped_components(kind: str) -> None:
    registry = OF_COMPONENTS[kind]
    schema = Draft202012Validator(TypeAdapter(Annotated[Any, registry]).json_schema())
    for name in registry.entries:
        assert schema.is_valid(name)
        for component in forms(kind, name):
            written = registry.dump(component)
            assert schema.is_valid(written)
            assert not schema.is_valid({key: value for key, value in written.items() if key != "name"})
        assert not schema.is_valid({"name": name, "no_such_parameter": 1})
    assert not schema.is_valid("no_such_thing")
    assert not schema.is_valid({"name": "no_such_thing"})


# Strategies and transports


def test_lists_of_transports_have_the_registered_ones() -> None:
    assert set(ALL_TRANSPORTS) == set(TRANSPORTS.entries)
    assert set(CPU_TRANSPORTS) == set(ALL_TRANSPORTS) - {"nccl"}


@pytest.mark.parametrize("name", STRATEGIES.entries)
def test_strategy_declares_transports_and_numbers_of_nodes(name: str) -> None:
    strategy = STRATEGIES.load(name)
    assert strategy.transports
    assert set(strategy.transports) <= set(TRANSPORTS.entries)
    assert strategy.min_nodes >= 1
    assert strategy.max_nodes is None or strategy.max_nodes >= strategy.min_nodes
    run = RunSpec.model_validate({"strategy": name, "nodes": strategy.min_nodes})
    assert run.transport == strategy.transports[0]


@pytest.mark.parametrize("name", TRANSPORTS.entries)
def test_transport_declares_a_topology_and_has_a_strategy(name: str) -> None:
    assert TRANSPORTS.load(name).topology in TOPOLOGIES
    assert any(name in STRATEGIES.load(strategy).transports for strategy in STRATEGIES.entries)


# Imports


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after it runs `code`."""
    show = "\nimport sys; print('loaded:', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code + show], cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("loaded:")[2].split())


LOAD_ALL = """
from trainer.spec.registries import TRANSPORTS
from trainer.spec.registries import AGGREGATIONS, ATTACKS, COMPRESSIONS, REGISTRIES
from orchestrator.runtimes import RUNTIMES
for registry in (*REGISTRIES.values(), AGGREGATIONS, ATTACKS, COMPRESSIONS, TRANSPORTS, RUNTIMES):
    for name in registry.entries:
        registry.load(name)
"""
HELP = """
import runpy, sys
sys.argv = ["orchestrator", "--help"]
try:
    runpy.run_module("orchestrator", run_name="__main__")
except SystemExit as done:
    assert not done.code
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [LOAD_ALL, "import orchestrator.cli", HELP], ids=["all", "cli", "help"])
def test_sweeps_can_be_validated_without_torch_and_mpi(code: str) -> None:
    loaded = modules_after(code)
    assert loaded & {"pydantic"}
    assert not loaded & {"torch", "mpi4py", "torchvision", "sklearn", "altair", "docker"}
