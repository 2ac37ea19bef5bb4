"""A kind of component: how a user's class or function becomes one of ours, its facts and its laws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_type_hints

from trainer.components.facts import Source, values
from trainer.components.parameters import ParameterFailure, configured, is_class
from trainer.core.failure import Failure, RankFailure
from trainer.core.record import Record, Text
from trainer.core.registry import Component, load_attribute
from trainer.core.user_code import ImportFailure, located
from trainer.spec.registries import REGISTRIES

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.data.base import Dataset, Labels
    from trainer.models.base import Model

C = TypeVar("C", bound=Component)
NOWHERE = Source()
Status = Literal["ok", "failed", "note", "skipped"]


class Input(Record):
    """What a law is tried on: plain values with limits. `str` shows it to a reader."""


class NotApplicable(Exception):
    """A law says nothing about an input. The message says why."""


@dataclass(frozen=True)
class Note:
    """What is worth knowing about a component that keeps a law."""

    text: str


Verdict = Failure | Note | None


class Outcome(Record):
    """What a law finds for one input. reason: that of a note, or why the law says nothing about it."""

    status: Status = "ok"
    expected: Text = ""
    got: Text = ""
    reason: Text = ""


@dataclass(frozen=True)
class Law:
    """What must hold for every input.

    name: a word. statement: what must hold. test: tries one input; an exception breaks the law. first: the
    inputs that are always tried, the smallest first; NotApplicable says why there are none. more: the
    largest of further inputs. essential: without it, no other law can be tried. at_loading: tried when a
    sweep is loaded, too. across: its input is made of what another process computes.
    """

    name: str
    statement: str
    test: Callable[[Any, Any], Verdict]
    first: Callable[[Any], Sequence[Input]]
    more: Input | None = None
    essential: bool = False
    at_loading: bool = False
    across: bool = False

    @property
    def input(self) -> type[Input]:
        """The class of its inputs."""
        (_, name) = signature(self.test).parameters
        found: type[Input] = get_type_hints(self.test)[name]
        return found


T = TypeVar("T", bound=Callable[..., Verdict])


def law(
    statement: str, first: Callable[[Any], Sequence[Input]] | None = None, **flags: Any
) -> Callable[[T], T]:
    """Make a method of a kind a law. first: its inputs; None: those of the kind. flags: those of Law."""

    def declared(test: T) -> T:
        inputs = first or (lambda kind: kind.inputs)
        test.law = Law(test.__name__.rstrip("_"), statement, test, inputs, **flags)  # type: ignore[attr-defined]
        return test

    return declared


@dataclass(frozen=True)
class Few:
    """Some samples of a dataset, over which they are spread. labels: of the training set, int64."""

    inputs: Tensor
    targets: Tensor
    labels: Labels


@dataclass(frozen=True)
class On:
    """What a component is tried with.

    source: where its code is. parameters, name: those of the sweep file. dataset, model: of the run. few:
    samples of the dataset; None: noise in its shape. ranks, batch_size: of the run. equals: the component
    that it is compared with; empty: what it declares. loading: whether a sweep is loaded, and the samples
    are its own. limit_s: seconds in which all laws must have been tried.
    """

    source: Source = NOWHERE
    parameters: Mapping[str, Any] = field(default_factory=dict)
    name: str = "own"
    dataset: Dataset | None = None
    model: Model | None = None
    few: Few | None = None
    data_dir: Path = Path()
    ranks: int = 1
    batch_size: int = 1
    equals: str = ""
    loading: bool = False
    limit_s: float = 60.0


class Kind(ABC, Generic[C]):
    """A kind of component. An instance tries one component of it; the laws are its methods.

    name: the field of a run. base: our interface. arguments: those by which a function is recognised.
    torch_base: "module:Class" of torch, by whose subclasses a class is recognised.
    needs: fields of a run on which it depends. most_ranks: of a run on which it depends; 1: it does not.
    equal_to: components with which one of this kind can be compared. datasets: forms of those on which one
    is tried, until it takes one; if there are none, on noise; None: it takes no samples.

    Attributes:
        own: the component. on: what it is tried with. inputs: those of a law that names no others.
    """

    name: ClassVar[str]
    base: ClassVar[type[Component]]
    arguments: ClassVar[tuple[str, ...]] = ()
    torch_base: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("dataset",)
    most_ranks: ClassVar[int] = 1
    equal_to: ClassVar[tuple[str, ...]] = ()
    datasets: ClassVar[tuple[Mapping[str, Any], ...] | None] = None

    def __init__(self, own: C, on: On | None = None) -> None:
        self.own, self.on = own, on or On()

    @classmethod
    def adapt(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> C:
        """A user's class or function as a component of ours.

        Args:
            called: the class or function.
            parameters: those of the sweep file.
            source: where it is; in a node, with its facts.

        Raises:
            ImportFailure: It cannot be one. The message says what is missing.
            ParameterFailure: A parameter is unknown, missing or of another type.
        """
        if is_class(called, cls.base):
            own: C = configured(called, parameters)
            return own
        return cls.wrap(called, parameters, source)

    @classmethod
    @abstractmethod
    def wrap(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> C:
        """Like `adapt`, for what is no subclass of our interface."""

    @classmethod
    def recognises(cls, found: type) -> bool:
        """Whether a class that is no subclass of our interface looks like one of this kind."""
        return bool(cls.torch_base) and issubclass(found, load_attribute(cls.torch_base))

    @property
    def inputs(self) -> Sequence[Input]:
        """The inputs of a law that names no others, the smallest first."""
        raise NotImplementedError

    @classmethod
    @cache
    def laws(cls) -> tuple[Law, ...]:
        """The laws, in the order in which they are tried."""
        found = {name: member for each in reversed(cls.__mro__) for name, member in vars(each).items()}
        return tuple(member.law for member in found.values() if hasattr(member, "law"))

    def facts(self) -> dict[str, Any]:
        """What a spec must know of it: what it declares, and what a subclass measures."""
        return values(self.own, self.base, self.on.ranks)

    def in_run(self, **others: Any) -> Component:
        """The component as a run has it: if it is a user's, with what a spec knows of it.

        others: facts in place of those. Raises ImportFailure.
        """
        registry, found = REGISTRIES[self.name], type(self.own)
        if f"{found.__module__}:{found.__qualname__}" in registry.entries.values():
            return self.own
        facts = {**self.on.source.model_dump(), **self.facts(), **others}
        made: Component = registry.wrapper(
            name=self.on.name, parameters=dict(self.on.parameters), imported=facts
        )
        vars(made)["own"] = self.own  # in place of what it would load
        return made

    def fits(self) -> None:
        """Raise an exception unless it takes samples of the dataset."""

    def left_out(self) -> str | None:
        """Why what looks like a component of this kind is none; None if it is one."""
        return None

    def digest(self) -> str:
        """What identifies what it computes; compared with that of another process, if a law does so."""
        raise NotImplementedError

    def first(self, law: Law) -> Sequence[Input] | str:
        """The inputs on which a law is always tried; a text: why there are none."""
        try:
            return law.first(self)
        except NotApplicable as reason:
            return str(reason)

    def load(self) -> None:
        """Try what must hold before a sweep starts. Raises ImportFailure, or what users' code raises."""
        for each in self.laws():
            with suppress(NotApplicable):
                for given in each.first(self) if each.at_loading else ():
                    refuse(each.test(self, given))

    def attempt(self, law: Law, given: Input) -> Outcome:
        """What a law finds for an input. Raises ParameterFailure, which breaks no law."""
        try:
            verdict = law.test(self, given)
        except NotApplicable as error:
            return Outcome(status="skipped", reason=str(error))
        except ParameterFailure:
            raise
        except RankFailure as error:
            verdict = Failure("no exception", str(error))
        except Exception as error:
            verdict = Failure("no exception", located(error, Path(self.on.source.folder)))
        match verdict:
            case Failure(expected, got):
                return Outcome(status="failed", expected=expected, got=got)
            case Note(text):
                return Outcome(status="note", reason=text)
        return Outcome()


class Elsewhere(Input):
    """What another process, in which hashes of strings differ, computes with the component.

    error: why it computes nothing.
    """

    digest: str = ""
    error: Text = ""

    def __str__(self) -> str:
        return "another process"

    def difference(self, digest: str, what: str) -> Failure | None:
        """How it differs from what this process computes; or None. what: that, in the plural."""
        if self.error:
            return Failure(f"equal {what}", f"another process fails: {self.error}")
        if digest == self.digest:
            return None
        return Failure(f"equal {what}", f"other {what}: do not depend on time, hashes or the process")


def refuse(verdict: Verdict) -> None:
    """Refuse a component that breaks a law. Raises ImportFailure."""
    if isinstance(verdict, Failure):
        raise ImportFailure(str(verdict))


def counted(number: int, noun: str) -> str:
    """`1 sample`, `2 samples`, `3 classes`."""
    plural = noun if number == 1 else noun + ("es" if noun.endswith(("s", "ch")) else "s")
    return f"{number:,} {plural}"
