"""Values between the grader and the process that runs a student's code.

The process sends values, never verdicts, so there is nothing in it to forge. It is not trusted: the grader
limits the length of its messages, and decodes nothing that could run code.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from trainer.core.frames import ProtocolError

_DTYPE = re.compile(r"[<>|]?[biuf]\d{1,2}")


class Seed:
    """Stands for `numpy.random.default_rng(number)`, which is made where the student's code runs."""

    def __init__(self, number: int) -> None:
        self.number = number


Register = Callable[[Callable[..., Any]], int]
Proxy = Callable[[int], Callable[..., Any]]


def encode(value: Any, register: Register | None = None) -> Any:
    """The JSON form of a value.

    Args:
        value: None, numbers, strings, arrays (also torch's, on the CPU), lists, tuples, dictionaries, and
            SimpleNamespace of such values; with `register` also Seed and functions.
        register: returns the number under which the other side can call a function.

    Raises:
        ProtocolError: It has no such form.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [encode(item, register) for item in value]
        case dict():
            return {"dict": [[encode(key), encode(item, register)] for key, item in value.items()]}
        case Seed() if register:
            return {"seed": value.number}
        case SimpleNamespace():
            return {"object": {name: encode(item, register) for name, item in vars(value).items()}}
    if hasattr(value, "__array__"):
        return _array(np.asarray(value))
    if register and callable(value):
        return {"function": register(value)}
    raise ProtocolError(f"returned or sent a value of type {type(value).__name__}")


def _array(values: np.ndarray) -> Any:
    if values.dtype.kind not in "biuf":
        raise ProtocolError(f"returned or sent an array of type {values.dtype}")
    data = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
    return {"array": [values.dtype.str, list(values.shape), data]}


def decode(form: Any, proxy: Proxy | None = None) -> Any:
    """The value of a JSON form; arrays are new and writable.

    Args:
        form: the JSON form, as `encode` returns it.
        proxy: makes the function that calls the one with this number; None: there may be none.

    Raises:
        ProtocolError: The form is invalid.
    """
    try:
        return _decoded(form, proxy)
    except (ValueError, TypeError, RecursionError):
        raise ProtocolError("sent an invalid value") from None


def _decoded(form: Any, proxy: Proxy | None) -> Any:
    """Raises ValueError, TypeError or RecursionError."""
    if isinstance(form, list):
        return [_decoded(item, proxy) for item in form]
    if not isinstance(form, dict):
        return form
    ((kind, content),) = form.items()
    match kind:
        case "array":
            return _decoded_array(*content)
        case "dict":
            return {_decoded(key, None): _decoded(item, proxy) for key, item in content}
        case "object" if isinstance(content, dict):
            return SimpleNamespace(**{name: _decoded(item, proxy) for name, item in content.items()})
        case "seed" if proxy:
            return np.random.default_rng(content)
        case "function" if proxy:
            return proxy(content)
    raise ValueError(kind)


def _decoded_array(dtype: str, shape: list[int], data: str) -> np.ndarray:
    """Raises ValueError or TypeError."""
    if not _DTYPE.fullmatch(dtype) or any(not isinstance(n, int) or n < 0 for n in shape):
        raise ValueError(dtype)
    return np.frombuffer(base64.b64decode(data, validate=True), dtype).reshape(shape).copy()
