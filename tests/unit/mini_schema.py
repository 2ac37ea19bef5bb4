"""The part of JSON Schema that our schemas use. An unknown keyword is an error, never passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
SAYS_NOTHING = {"$schema", "$defs", "title", "description", "default"}
LIMITS = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
    "minItems": lambda value, limit: len(value) >= limit,
    "maxItems": lambda value, limit: len(value) <= limit,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
    "const": lambda value, wanted: value == wanted,
    "enum": lambda value, wanted: value in wanted,
}


def mistakes(value: Any, schema: Schema, root: Schema | None = None, at: str = "$") -> Iterator[str]:
    """What is wrong with `value`; nothing if the schema accepts it."""
    root = schema if root is None else root
    if "type" in schema:
        right = isinstance(value, TYPES[schema["type"]])
        if not right or (isinstance(value, bool) and schema["type"] != "boolean"):
            yield f"{at}: {value!r} is no {schema['type']}"
            return
    for keyword, argument in schema.items():
        if keyword in SAYS_NOTHING or keyword == "type":
            continue
        if keyword in LIMITS:
            if not LIMITS[keyword](value, argument):
                yield f"{at}: {value!r} breaks {keyword} {argument!r}"
        elif keyword == "$ref":
            yield from mistakes(value, resolved(root, argument), root, at)
        elif keyword == "anyOf":
            if all(list(mistakes(value, form, root, at)) for form in argument):
                yield f"{at}: {value!r} fits no form"
        elif keyword == "items":
            for index, item in enumerate(value):
                yield from mistakes(item, argument, root, f"{at}[{index}]")
        elif keyword == "required":
            yield from (f"{at}: lacks {name}" for name in argument if name not in value)
        elif keyword == "properties":
            yield from _members(value, schema, root, at)
        elif keyword not in ("patternProperties", "additionalProperties"):
            raise AssertionError(f"{at}: mini_schema does not know the keyword {keyword}")
    if "properties" not in schema and {"patternProperties", "additionalProperties"} & schema.keys():
        yield from _members(value, schema, root, at)


def _members(value: dict[str, Any], schema: Schema, root: Schema, at: str) -> Iterator[str]:
    for name, item in value.items():
        forms = [form for key, form in schema.get("properties", {}).items() if key == name]
        forms += [f for key, f in schema.get("patternProperties", {}).items() if re.search(key, name)]
        rest = schema.get("additionalProperties", True)
        if not forms and rest is False:
            yield f"{at}: unknown key {name}"
        if not forms and isinstance(rest, dict):
            forms = [rest]
        for form in forms:
            yield from mistakes(item, form, root, f"{at}.{name}")


def resolved(root: Schema, reference: str) -> Schema:
    """The schema that `#/$defs/Name` names. Raises KeyError if there is none."""
    schema = root
    for part in reference.removeprefix("#/").split("/"):
        schema = schema[part]
    return schema
