"""Components and registries: a name in a sweep file becomes a frozen, checked object.

A registry is a literal dict, name -> "module:Class", and loads a class only when its name is used.
A component's parameters are its pydantic fields; its capabilities are class variables. Component files
import torch inside the methods that use it, so that the orchestrator can check a sweep on a machine without
torch; a test enforces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from inspect import isclass
from typing import Any, Generic, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    SerializationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Component(BaseModel):
    """A named part of a run. Frozen; unknown, mistyped, nan and infinite parameters are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @property
    def without_effect(self) -> dict[str, str]:
        """Parameters that change nothing beside the others, and beside which, such as `experts: 0`."""
        return {}

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        for parameter, beside in self.without_effect.items():
            value, default = getattr(self, parameter), type(self).model_fields[parameter].default
            if value != default:
                raise PydanticCustomError(
                    "without_effect",
                    "{parameter}: {value} has no effect with {beside}; allowed: {default}, the default",
                    {"parameter": parameter, "value": value, "beside": beside, "default": default},
                )
        return self

    def form(self, exclude_defaults: bool = False) -> dict[str, Any]:
        """The parameters as a sweep file has them."""
        parameters = self.model_dump(mode="json", exclude_defaults=exclude_defaults)
        if exclude_defaults:  # pydantic does not equate a default name with its component
            for parameter, field in type(self).model_fields.items():
                if parameters.get(parameter) == {"name": field.default}:
                    del parameters[parameter]
        return parameters


IMPORTED = "imported"  # the key of a component's form that holds what is known of a user's code


class ImportedComponent(Component):
    """A component from an import path, without its code: that is loaded when a node uses it.

    name: its name in reports, such as `mine.py:Net`. parameters: those of the sweep file. Subclasses have
    the field `imported`: where the code is, and what a spec must know about the component.
    """

    name: str
    parameters: dict[str, JsonValue] = {}
    imported: Any

    def form(self, exclude_defaults: bool = False) -> dict[str, Any]:
        """The parameters, with what is known; without defaults, only what identifies the component."""
        if exclude_defaults:
            name = f"{self.imported.module}:{self.imported.attribute}"  # wherever the file lies
            return {"name": name, **self.parameters, IMPORTED: self.imported.key_fields}
        return {**self.parameters, IMPORTED: self.imported.model_dump(mode="json", exclude_unset=True)}


SHOWN_NAMES = 8  # of what a module defines, in a message
IMPORT_PATTERN = r"^.+:[A-Za-z_][A-Za-z0-9_]*$"


def is_import_path(name: str) -> bool:
    """Whether a component's name is an import path: `./mine.py:Net`, `package.module:Net`."""
    return ":" in name


def suggestion(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'serial'?)` for a misspelt name; empty if no known name is similar."""
    similar = get_close_matches(name.lower()[:100], known, n=1, cutoff=0.7)
    return f" (did you mean {similar[0]!r}?)" if similar else ""


def shortened(names: Sequence[str], near: str = "") -> str:
    """Names for a message: all of a few, or those that are most similar to `near`."""
    if len(names) <= SHOWN_NAMES:
        return ", ".join(names)
    shown = get_close_matches(near, names, SHOWN_NAMES, cutoff=0.0) if near else names[:SHOWN_NAMES]
    return f"{', '.join(shown)} and {len(names) - len(shown)} more"


T = TypeVar("T")
C = TypeVar("C", bound=Component)


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Known classes of one kind, by name."""

    kind: str
    entries: Mapping[str, str]

    @property
    def known(self) -> str:
        """What an error lists as allowed."""
        return ", ".join(self.entries)

    def load(self, name: str) -> type[T]:
        """Import and return the class behind `name`; an unknown name lists the known ones."""
        if name not in self.entries:
            raise PydanticCustomError(
                "unknown_name",
                "unknown {kind}{suggestion}; known: {known}",
                {"kind": self.kind, "suggestion": suggestion(name, self.entries), "known": self.known},
            )
        loaded: type[T] = load_attribute(self.entries[name])
        return loaded


def load_attribute(path: str) -> Any:
    """Import `module:attribute`."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def _inlined(schema: Any, definitions: Mapping[str, JsonSchemaValue]) -> Any:
    """A JSON Schema with its definitions in place of the references, which are relative to a whole file."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}


@dataclass(frozen=True)
class ComponentRegistry(Registry[C]):
    """Known components of one kind, and those of users.

    imported: the class that wraps a user's component, as "module:Class". paths: names for import paths.

    Used as the metadata of an `Annotated` field it makes pydantic accept `name`,
    `{name: name, parameter: value, ...}` or an instance, and write the second form. A parameter may be a
    component itself; its default is a name.
    """

    imported: str = ""
    paths: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> str:
        return ", ".join([*self.entries, *self.paths]) + (", FILE.py:NAME" if self.imported else "")

    @property
    def wrapper(self) -> Any:
        """The class that wraps a user's component."""
        return load_attribute(self.imported)

    def parse(self, value: Any) -> C:
        """Build the component that a spec's value describes."""
        if isinstance(value, Component):
            self.name_of(value)
            return value  # type: ignore[return-value]
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise PydanticCustomError(
                "component_form",
                "write the {kind} as its name or as a mapping with the key 'name'; known: {known}",
                {"kind": self.kind, "known": self.known},
            )
        parameters = {key: item for key, item in value.items() if key not in ("name", IMPORTED)}
        if IMPORTED in value and self.imported:
            wrapped = {"name": value["name"], "parameters": parameters, IMPORTED: value[IMPORTED]}
            found: C = self.wrapper.model_validate(wrapped, strict=False)
            return found
        return self.load(value["name"]).model_validate(parameters)

    def name_of(self, component: Component) -> str:
        """The name under which the component's class is registered; of a user's, the name in reports."""
        if isinstance(component, ImportedComponent):
            return component.name
        path = f"{type(component).__module__}:{type(component).__qualname__}"
        for name, target in self.entries.items():
            if target == path:
                return name
        raise PydanticCustomError("unregistered", f"{path} is not a registered {self.kind}")

    def dump(self, component: C, *, exclude_defaults: bool = False) -> dict[str, Any]:
        """The mapping form: `{"name": ..., parameter: value, ...}`."""
        return {"name": self.name_of(component), **component.form(exclude_defaults)}

    def label(self, component: C, *, exclude_defaults: bool = False) -> str:
        """`krum(f=2)`: the component with its parameters, which are plain values."""
        form = self.dump(component, exclude_defaults=exclude_defaults)
        name = form.pop("name")
        written = ", ".join(f"{parameter}={value}" for parameter, value in form.items())
        return f"{name}({written})" if written else str(name)

    def parameters(self, form: Any, *path: str | int) -> list[str]:
        """Keys allowed in a component's mapping form, or in that of the component inside it at `path`."""
        fields = self.load(form["name"] if isinstance(form, Mapping) else form).model_fields
        if not path:
            return list(fields)
        field = fields[str(path[0])]
        inside = (item for item in field.metadata if isinstance(item, ComponentRegistry))
        nested = (
            kind for kind in get_args(field.annotation) if isclass(kind) and issubclass(kind, BaseModel)
        )
        keys = (list(kind.model_fields) for kind in nested)
        return next((registry.parameters(form[path[0]], *path[1:]) for registry in inside), next(keys, []))

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.parse,
            serialization=core_schema.plain_serializer_function_ser_schema(self._serialize, info_arg=True),
        )

    def _serialize(self, component: C, info: SerializationInfo) -> dict[str, Any]:
        return self.dump(component, exclude_defaults=info.exclude_defaults)

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> JsonSchemaValue:
        """JSON Schema of the field: a bare name, or a mapping per component with its parameters."""
        path = {"type": "string", "pattern": IMPORT_PATTERN}
        forms: list[JsonSchemaValue] = [{"enum": [*self.entries, *self.paths]}]
        for name in self.entries:
            form = self.load(name).model_json_schema()
            form = _inlined(form, form.pop("$defs", {}))
            form["title"] = name
            form["properties"] = {"name": {"const": name}, **form.get("properties", {})}
            form["required"] = ["name", *form.get("required", [])]
            forms.append(form)
        if self.imported:
            named = {"anyOf": [path, {"enum": list(self.paths)}]} if self.paths else path
            properties = {"name": named}
            forms.append(path)
            forms.append({"type": "object", "properties": properties, "required": ["name"]})
        return {"anyOf": forms}
