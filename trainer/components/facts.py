"""What a spec knows of a user's component: where its code is, and what its class declares."""

from __future__ import annotations

import os
from abc import update_abstractmethods
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import getmembers, isfunction, signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from trainer.core.registry import Component, ImportedComponent
from trainer.core.user_code import CODE, MAX_NAME, ImportFailure, load

MOST_RANKS = 2**16
# Facts in results of earlier versions, by their name now; None: they are facts no more.
RENAMED: dict[str, str | None] = {"blocks": "names", "recompute_errors": "recompute_error"}
RENAMED |= dict.fromkeys(("test_samples", "declared"))


class Source(BaseModel):
    """Where the code of a component is.

    code: digest of the files that it needs. folder: their directory below SHARDYARD_CODE, with those of
    other components of the run that lie in the same directory of the user, so that they share modules.
    module: a file in that directory, `mine.py`, or a module's name, `package.module`. attribute: the
    name of the component in the module.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    code: str = Field(default="", max_length=MAX_NAME)
    folder: str = Field(default="", max_length=4096)
    module: str = Field(default="", max_length=MAX_NAME)
    attribute: str = Field(default="", max_length=MAX_NAME)

    @property
    def key_fields(self) -> dict[str, str]:
        """What is part of the run key: runs with other code are other runs."""
        return {"code": self.code}

    @property
    def directory(self) -> Path:
        """The directory of the files. Raises ImportFailure."""
        if CODE not in os.environ:
            raise ImportFailure(f"{CODE} is not set, so the code of {self.module} cannot be found")
        return Path(os.environ[CODE]) / self.folder

    def load(self) -> Any:
        """The class or function. Raises ImportFailure."""
        return load(self.directory, self.module, self.attribute)


class Facts(Source):
    """What a spec knows of a component beside what its class declares."""

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, values: dict[str, Any]) -> dict[str, Any]:
        declared = values.get("declared")
        flat = {**values, **declared} if isinstance(declared, dict) else values
        named = {RENAMED.get(name, name): value for name, value in flat.items()}
        return {name: value for name, value in named.items() if name is not None}


@dataclass(frozen=True)
class Declaration:
    """A value that components of a kind declare.

    type: its annotation. arguments: those of the method that gives it; none for a class variable or a
    property. choices: of the only argument, if it is a literal. base: what the base class has for it;
    `...` for nothing.
    """

    name: str
    type: Any
    base: Any
    arguments: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def stored(self) -> Any:
        """The type of what a spec has of it: for a rank, a list; for a choice, a dictionary."""
        one: Any = self.type
        if self.choices:
            return dict[str, one]
        return Annotated[list[one], Field(max_length=MOST_RANKS)] if "rank" in self.arguments else one

    @property
    def required(self) -> bool:
        """Whether the base class leaves it to its subclasses."""
        return self.base is ... or bool(getattr(self.base, "__isabstractmethod__", False))

    def of(self, own: Component, ranks: int) -> Any:
        """What a component declares, on so many ranks."""
        value = getattr(own, self.name)
        if self.choices:
            return {choice: value(choice) for choice in self.choices}
        if self.arguments == ("rank", "ranks"):
            return [value(rank, ranks) for rank in range(ranks)]
        return value(ranks) if self.arguments else value

    def stand_in(self) -> Any:
        """The attribute that gives what a spec knows; what the base class has, if it knows nothing."""

        def found(component: Imported, *arguments: Any) -> Any:
            if self.name not in component.imported.model_fields_set:
                given = self.base.fget if isinstance(self.base, property) else self.base
                return given(component, *arguments) if callable(given) else given
            fact = getattr(component.imported, self.name)
            if self.choices:
                return fact.get(arguments[0])  # older results have only those for which there is one
            return fact[arguments[0]] if len(arguments) == 2 else fact

        return found if self.arguments else property(found)


@cache
def declarations(base: type[Component]) -> dict[str, Declaration]:
    """What components of a kind declare: class variables, properties, and methods of ranks or a choice."""
    found = {
        name: Declaration(name, get_args(hint)[0], getattr(base, name, ...))
        for name, hint in get_type_hints(base, include_extras=True).items()
        if get_origin(hint) is ClassVar and not name.startswith(("_", "model_"))
    }
    for name, member in getmembers(base):
        if name.startswith(("_", "model_")) or hasattr(Component, name):
            continue
        if isinstance(member, property):
            hints = get_type_hints(member.fget, include_extras=True)
            found[name] = Declaration(name, hints["return"], member)
        elif isfunction(member) and (declared := _of_method(name, member)):
            found[name] = declared
    return found


def _of_method(name: str, method: Callable[..., Any]) -> Declaration | None:
    arguments = tuple(signature(method).parameters)[1:]
    if arguments not in (("ranks",), ("rank", "ranks"), ("recompute",)):
        return None
    hints = get_type_hints(method, include_extras=True)
    return Declaration(name, hints["return"], method, arguments, get_args(hints[arguments[0]]))


def values(own: Component, base: type[Component], ranks: int) -> dict[str, Any]:
    """What a component declares, for a run of so many ranks."""
    return {name: each.of(own, ranks) for name, each in declarations(base).items()}


class Imported(ImportedComponent):
    """A user's component, of which the spec knows what its class declares. A node runs its code.

    kind: the kind of component, with `adapt`. source: the facts that no class declares.
    """

    kind: ClassVar[Any]
    source: ClassVar[type[Facts]] = Facts

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name, each in declarations(cls.__bases__[-1]).items():
            if name not in vars(cls):
                setattr(cls, name, each.stand_in())
        update_abstractmethods(cls)

    @field_validator("imported", mode="before")
    @classmethod
    def _facts(cls, found: Any) -> Facts:
        facts = found.model_dump(exclude_unset=True) if isinstance(found, Source) else found
        return cls.facts_model().model_validate(facts, strict=False)

    @classmethod
    @cache
    def facts_model(cls) -> type[Facts]:
        """The facts of this kind. What is not set is what the base class declares, as in older results."""
        declared = declarations(cls.__bases__[-1]).items()
        fields: dict[str, Any] = {
            name: (each.stored, ... if each.required else None) for name, each in declared
        }
        return create_model(f"{cls.__name__}Facts", __base__=cls.source, **fields)

    @cached_property
    def own(self) -> Any:
        """The user's component, as one of ours. Raises ImportFailure or ParameterFailure."""
        return self.kind.adapt(self.imported.load(), self.parameters, self.imported)
