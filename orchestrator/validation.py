"""From pydantic's errors to one line each that says where, what, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

Location = tuple[int | str, ...]


def complaints(
    error: ValidationError,
    place: Callable[[Location], str],
    allowed: Callable[[Location], Sequence[str]] = lambda _: (),
) -> list[str]:
    """One line per mistake.

    place: names a location for the reader. allowed: the keys that may stand at a location.
    """
    return [
        f"{place(location)}: {_sentence(details, allowed(location[:-1]))}"
        for location, details in _flat(error, ())
    ]


def _flat(error: ValidationError, prefix: Location) -> Iterator[tuple[Location, dict[str, Any]]]:
    for details in error.errors(include_url=False):
        location = prefix + details["loc"]
        nested = details.get("ctx", {}).get("error")
        if isinstance(nested, ValidationError):
            yield from _flat(nested, location)
            continue
        # A check of the whole run names the field it is about in its type.
        if details["type"] in ("transport", "nodes"):
            location = (*location, details["type"])
        yield location, dict(details)


def _sentence(details: dict[str, Any], allowed: Sequence[str]) -> str:
    message = details["msg"]
    match details["type"]:
        case "extra_forbidden":
            known = f"; allowed: {', '.join(allowed)}" if allowed else ""
            return f"unknown key{known}"
        case "missing":
            return "is missing"
        case "transport" | "nodes":
            return str(message)
        case "value_error":
            message = str(details["ctx"]["error"])
    message = message.removeprefix("Input should be ")
    if message != details["msg"]:
        return f"{details['input']!r} is not allowed; it must be {message}"
    return f"{details['input']!r}: {message}"


def dotted(location: Location) -> str:
    """("blocks", 0, "axes") as blocks[0].axes."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
