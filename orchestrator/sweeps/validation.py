"""Format pydantic's errors: one line each with location, value and what is allowed."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from trainer.core.registry import suggestion
from trainer.spec.checks import CHECK_ERROR_TYPES

Location = tuple[int | str, ...]

_EXCERPT = reprlib.Repr()
_EXCERPT.maxstring = _EXCERPT.maxlong = _EXCERPT.maxother = 80


def error_lines(
    error: ValidationError,
    place: Callable[[Location], str],
    allowed: Callable[[Location], Sequence[str]] = lambda _: (),
    about: str | None = None,
) -> list[str]:
    """One line per error.

    Args:
        place: formats a location.
        allowed: the keys that are allowed at a location.
        about: report only errors inside this field.
    """
    details: list[dict[str, Any]] = [{**each} for each in error.errors(include_url=False)]
    return detail_lines(
        [each for each in details if about is None or each["loc"][:1] == (about,)], place, allowed
    )


def detail_lines(
    errors: Sequence[dict[str, Any]],
    place: Callable[[Location], str],
    allowed: Callable[[Location], Sequence[str]] = lambda _: (),
) -> list[str]:
    """One line per error of pydantic. Arguments are those of `error_lines`."""
    lines = []
    for details in errors:
        if _is_misspelt(details, errors):
            continue
        location: Location = tuple(details["loc"])
        if details["type"] in CHECK_ERROR_TYPES:
            location = (*location, details["type"])
        lines.append(f"{place(location)}: {_message(details, allowed(location[:-1]))}")
    return lines


def _is_misspelt(missing: dict[str, Any], errors: Sequence[dict[str, Any]]) -> bool:
    """Whether a key is missing because an unknown one is a misspelling of it, whose line says so."""
    if missing["type"] != "missing":
        return False
    *inside, name = missing["loc"]
    unknown = [each["loc"] for each in errors if each["type"] == "extra_forbidden"]
    return any([*loc[:-1]] == inside and suggestion(str(loc[-1]), [str(name)]) for loc in unknown)


def excerpt(value: Any) -> str:
    """The value as in Python, shortened: a value of a file may be as long as the file."""
    return _EXCERPT.repr(value)


def _message(details: dict[str, Any], allowed: Sequence[str]) -> str:
    message = details["msg"]
    match details["type"]:
        case "extra_forbidden":
            known = f"; allowed: {', '.join(allowed)}" if allowed else ""
            return f"unknown key{suggestion(str(details['loc'][-1]), allowed)}{known}"
        case "missing":
            return "is missing"
        case validation_error if validation_error in CHECK_ERROR_TYPES:
            return str(message)
        case "value_error":
            message = str(details.get("ctx", {}).get("error", message))
        case "dict_type" | "model_type":
            message = "Input should be a mapping, as in `key: value`"
        case "int_parsing":
            message = "Input should be a whole number"
    required = message.removeprefix("Input should be ")
    if required != message:
        return f"{excerpt(details['input'])} is not allowed; it must be {required}"
    return f"{excerpt(details['input'])}: {message}"


def dotted(location: Location, start: str = "") -> str:
    """A key path such as blocks[0].axes, appended to `start`."""
    text = start
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
