"""Records: what ranks and orchestrator exchange or store, defined once and checked where it enters."""

from __future__ import annotations

import json
import unicodedata
from itertools import chain
from math import isfinite
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema

MAX_EXCERPT = 60  # characters of a rejected value in an error message
MAX_DEPTH = 100  # of lists and objects in each other
MAX_KEYS = 2**16  # of an object; an error of each unknown one takes 1 KB


def _stop_at_first(schema: Any) -> None:
    """Stop at the first wrong value of each list and mapping: an error has 200 times its bytes."""
    if isinstance(schema, list):
        for each in schema:
            _stop_at_first(each)
    elif isinstance(schema, dict):
        if schema.get("type") in ("list", "dict"):
            schema["fail_fast"] = True
        for name, each in schema.items():
            if name != "metadata":
                _stop_at_first(each)


class Record(BaseModel):
    """A frozen, checked record. An unknown, missing or mistyped field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first(handler.resolve_ref_schema(schema))
        return schema


def printable(text: str) -> str:
    r"""The text with visible escapes (\x1b) for what controls a terminal or ends a line.

    Newline and tab stay. Escaped are control and format characters, such as those that reverse the
    direction of writing, line and paragraph separators, and halves of surrogate pairs, which UTF-8 cannot
    encode.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def one_line(text: str) -> str:
    """The text with visible escapes also for newlines and tabs: nothing in it looks like another line."""
    return printable(text).replace("\n", r"\n").replace("\t", r"\t")


def cut(text: str, length: int) -> str:
    """The text, without its middle if it is longer: errors start with a place and end with a reason."""
    if len(text) <= length:
        return text
    half = (length - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def _escaped(character: str) -> str:
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return ascii(character)[1:-1] if hidden and character not in "\n\t" else character


# Ranges include everything that a run can measure, and nothing that overflows in a sum or a chart.
Count = Annotated[int, Field(ge=0, le=2**53)]
Amount = Annotated[float, Field(ge=0, le=1e15)]
Share = Annotated[float, Field(ge=0, le=1)]
Real = Annotated[float, Field(ge=-3.5e38, le=3.5e38)]  # every finite float32
Rank = Annotated[int, Field(ge=0, lt=2**16)]
Text = Annotated[str, AfterValidator(one_line)]
Lines = Annotated[str, AfterValidator(printable)]

R = TypeVar("R", bound=Record)


def parse_object(text: str | bytes, what: str) -> dict[str, Any]:
    """The JSON object in `text`. Raises ValueError for anything else; the message starts with `what`."""
    try:
        value = json.loads(text, parse_constant=_reject, parse_float=_finite)
    except RecursionError:
        raise ValueError(f"{what}: nested too deeply: {_excerpt(text)}") from None
    except ValueError as error:
        raise ValueError(f"{what}: not JSON ({error}): {_excerpt(text)}") from None
    if wrong := _wrong_shape(value):
        raise ValueError(f"{what}: {wrong}: {_excerpt(text)}")
    if not isinstance(value, dict):
        raise ValueError(f"{what}: not a JSON object: {_excerpt(value)}")
    return value


def checked(model: type[R], fields: dict[str, Any], what: str) -> R:
    """The record with these fields; numbers and strings are not converted into each other.

    Raises ValueError: the message starts with `what` and names the first wrong field.
    """
    try:
        return model.model_validate(fields, strict=True)
    except ValidationError as error:
        raise ValueError(f"{what}: {first_error(error)}") from None


def first_error(error: ValidationError) -> str:
    """The first wrong field, what it must be, and an excerpt of what it is, in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part)[:MAX_EXCERPT] for part in first["loc"])
    wrong = "" if first["type"] == "missing" else f", not {_excerpt(first['input'])}"
    return one_line(f"{field}: {first['msg'].removeprefix('Value error, ')}{wrong}")


def _wrong_shape(value: Any) -> str:
    """Why a value has a shape that no record has; empty if it may have."""
    level = [value]
    for _ in range(MAX_DEPTH):
        objects = [each for each in level if isinstance(each, dict)]
        if any(len(each) > MAX_KEYS for each in objects):
            return f"an object with more than {MAX_KEYS:,} keys"
        lists = [each for each in level if isinstance(each, list)]
        inner = chain.from_iterable((*lists, *(each.values() for each in objects)))
        if not (level := [each for each in inner if isinstance(each, list | dict)]):
            return ""
    return "nested too deeply"


def _finite(number: str) -> float:
    value = float(number)
    return value if isfinite(value) else _reject(number)


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant[:MAX_EXCERPT]} is not a finite number")


def _excerpt(value: object) -> str:
    if isinstance(value, list | dict):  # which may be nested too deeply for `repr`
        return f"a {type(value).__name__}"
    text = value[:MAX_EXCERPT] if isinstance(value, str | bytes) else value
    return printable(repr(text)[:MAX_EXCERPT])
