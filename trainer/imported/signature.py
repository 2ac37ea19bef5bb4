"""The parameters of a user's class or function, checked as strictly as those of a registered component."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticSchemaGenerationError, TypeAdapter, create_model

from trainer.core.registry import Component
from trainer.imported.source import ImportFailure

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def checked(
    called: Callable[..., Any], parameters: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments to call a class or function with.

    Args:
        called: what to call.
        parameters: those of the sweep file, by name.
        given: arguments that the run itself can give, such as the number of classes; those that the
            signature names are passed.

    Raises:
        pydantic.ValidationError: A parameter is unknown, missing or of another type.
    """
    arguments = signature_of(called)
    names = {name for name, each in arguments.items() if each.kind is not each.VAR_KEYWORD}
    own = parameter_model(called, given).model_validate(dict(parameters))
    chosen = {name: getattr(own, name) for name in own.model_fields_set}
    return {name: value for name, value in given.items() if name in names} | chosen


def parameter_model(called: Callable[..., Any], given: Mapping[str, Any]) -> type[BaseModel]:
    """A pydantic model of the parameters that a sweep file may set."""
    arguments, hints = signature_of(called), _hints(called)
    fields: dict[str, Any] = {}
    free = False
    for name, argument in arguments.items():
        if argument.kind is argument.VAR_KEYWORD:
            free = True
        elif name not in given and argument.kind is not argument.VAR_POSITIONAL:
            default = ... if argument.default is argument.empty else argument.default
            fields[name] = (_checkable(hints.get(name, Any)), default)
    config = ConfigDict(**{**STRICT, "extra": "allow"}) if free else STRICT
    return create_model("Parameters", __config__=config, **fields)


def defaults_left_out(called: Callable[..., Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that differ from the defaults, so that a run that writes them has the same key."""
    if isinstance(called, type) and issubclass(called, Component):
        fields = called.model_fields
        return {k: v for k, v in parameters.items() if k not in fields or fields[k].default != v}
    arguments = signature_of(called)
    return {k: v for k, v in parameters.items() if k not in arguments or arguments[k].default != v}


def signature_of(called: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a class's constructor or of a function, without `self`. Raises ImportFailure."""
    try:
        return dict(inspect.signature(called).parameters)
    except (TypeError, ValueError) as error:
        raise ImportFailure(f"its parameters cannot be found out: {error}") from error


def _hints(called: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(vars(called).get("__init__") if isinstance(called, type) else called)
    except Exception:  # an annotation may name what exists only for type checkers: it is not checked then
        return {}


def _checkable(annotation: Any) -> Any:
    """The annotation if pydantic can check it, as it can check all that a sweep file can contain."""
    try:
        TypeAdapter(annotation)
    except PydanticSchemaGenerationError:
        return Any
    return annotation
