"""The parameters of a user's class or function, checked as strictly as those of a registered component."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import to_json

from trainer.core.record import cut, one_line, printable
from trainer.core.registry import Component
from trainer.core.user_code import ImportFailure

C = TypeVar("C", bound=Component)

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
MAX_MESSAGE = 1000  # characters of what is wrong with a parameter
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ParameterFailure(Exception):
    """Parameters of a user's component are wrong.

    errors: pydantic's errors, in values that JSON can hold. allowed: the names of its parameters.
    """

    def __init__(self, error: ValidationError, allowed: Iterable[str]) -> None:
        super().__init__(str(error))
        self.errors: list[dict[str, Any]] = []
        for each in error.errors(include_url=False):
            context: Any = each.get("ctx", {})
            given = printable(each["input"]) if isinstance(each["input"], str) else each["input"]
            texts = {name: _shown(value) for name, value in context.items()}
            self.errors.append({**each, "msg": _shown(each["msg"]), "input": given, "ctx": texts})
        self.allowed = list(allowed)


def _shown(value: object) -> str:
    """A text that a user's check may have written, as one line of limited length."""
    return cut(one_line(str(value)), MAX_MESSAGE)


def configured(component: type[C], parameters: Mapping[str, Any]) -> C:
    """A user's component that is written against our interface.

    Raises:
        ImportFailure: It does not define all that the interface requires, or has an __init__ of its own.
        ParameterFailure: A parameter is unknown, missing or of another type.
    """
    own = inspect.signature(component.__init__).parameters
    if taken := [each.name for each in own.values() if each.kind is not each.VAR_KEYWORD][1:]:
        raise ImportFailure(
            f"{component.__name__}.__init__ takes {', '.join(taken)}; parameters of a component are "
            f"annotated attributes of its class, as in `{taken[0]}: int = 1`, and it has no __init__"
        )
    if lack := lacking(component):
        raise ImportFailure(f"it {lack}")
    try:
        return component.model_validate_json(_as_json(parameters))
    except ValidationError as error:
        raise ParameterFailure(error, component.model_fields) from error


def is_class(called: Any, base: type) -> bool:
    """Whether it is a subclass of `base`."""
    return isinstance(called, type) and issubclass(called, base)


def lacking(component: type) -> str | None:
    """What a class must define, as `does not define the method blocks`; None if it lacks nothing."""
    missing = sorted(getattr(component, "__abstractmethods__", ()))
    return f"does not define the method{'s' * (len(missing) > 1)} {', '.join(missing)}" if missing else None


def bound(
    called: Callable[..., Any], parameters: Mapping[str, Any], arguments: Sequence[str]
) -> Callable[..., Any]:
    """A user's function of these positional arguments, whatever it calls them, with its parameters.

    Raises:
        ImportFailure: It takes fewer arguments.
        ParameterFailure: A parameter is unknown, missing or of another type.
    """
    signature = signature_of(called)
    first = [name for name, each in signature.items() if each.kind in POSITIONAL][: len(arguments)]
    if len(first) < len(arguments):
        raise ImportFailure(
            f"its first parameters must be for {', '.join(arguments)}; it has "
            f"{', '.join(signature) or 'none'}"
        )
    chosen = checked(called, parameters, dict.fromkeys(first))
    return partial(called, **{name: value for name, value in chosen.items() if name not in first})


def checked(
    called: Callable[..., Any], parameters: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments to call a class or function with.

    Args:
        called: the class or function.
        parameters: those of the sweep file, by name.
        given: arguments that the run itself can give, such as the number of classes; those that the
            signature names are passed.

    Raises:
        ParameterFailure: A parameter is unknown, missing or of another type.
    """
    arguments, model = signature_of(called), _parameter_model(called, given)
    names = {name for name, each in arguments.items() if each.kind is not each.VAR_KEYWORD}
    try:
        own = model.model_validate_json(_as_json(parameters))
    except ValidationError as error:
        raise ParameterFailure(error, model.model_fields) from error
    chosen = {name: getattr(own, name) for name in own.model_fields_set}
    return {name: value for name, value in given.items() if name in names} | chosen


def _as_json(parameters: Mapping[str, Any]) -> bytes:
    """JSON, in which a list fits where a tuple or a set is annotated. Numbers and texts stay strict."""
    return to_json(dict(parameters), inf_nan_mode="constants")


def _parameter_model(called: Callable[..., Any], given: Mapping[str, Any]) -> type[BaseModel]:
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
        return {k: v for k, v in parameters.items() if k not in fields or _list(fields[k].default) != v}
    arguments = signature_of(called)
    return {k: v for k, v in parameters.items() if k not in arguments or _list(arguments[k].default) != v}


def _list(value: Any) -> Any:
    """A tuple as the list that a sweep file has in its place."""
    return [_list(each) for each in value] if isinstance(value, (list, tuple)) else value


def signature_of(called: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a class's constructor or of a function, without `self`. Raises ImportFailure."""
    try:
        return dict(inspect.signature(called).parameters)
    except (TypeError, ValueError) as error:
        raise ImportFailure(f"its parameters cannot be found out: {error}") from error


def _hints(called: Callable[..., Any]) -> dict[str, Any]:
    try:
        described = vars(called).get("__init__") if isinstance(called, type) else called
        return get_type_hints(described, include_extras=True)  # with limits, as in Annotated
    except Exception:  # an annotation may name what exists only for type checkers: it is not checked then
        return {}


def _checkable(annotation: Any) -> Any:
    """The annotation if pydantic can check it, as it can check all that a sweep file can contain."""
    try:
        TypeAdapter(annotation)
    except PydanticSchemaGenerationError:
        return Any
    return annotation
