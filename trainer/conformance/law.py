"""A law, and how it is tried: on inputs from the smallest on; one that breaks it is made smaller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from trainer.components.parameters import ParameterFailure
from trainer.conformance.report import Finding, Status
from trainer.core.failure import Failure, RankFailure
from trainer.core.user_code import located

I = TypeVar("I")  # noqa: E741  (an input)

LAW_S = 10.0  # after which no further examples of a law are tried
SHRINK_S = 5.0


class NotApplicable(Exception):
    """A law says nothing about an input. The message says why."""


@dataclass(frozen=True)
class Note:
    """What is worth knowing about a component that keeps a law."""

    text: str


Outcome = Failure | Note | None


def no_smaller(_: object) -> Iterator[I]:
    """No inputs, for a law whose inputs are tried in the order of their size."""
    return iter(())


@dataclass(frozen=True)
class Law(Generic[I]):
    """What must hold for every input.

    name: a word or two. statement: what must hold. test: tries one input; an exception breaks the law, and
    NotApplicable leaves the input out. inputs: the smallest first. All of a sequence are tried; those of
    another iterable are examples, as many as time allows. smaller: inputs that are smaller than one.
    essential: without it, no other law can be tried. otherwise: why there may be no input.
    """

    name: str
    statement: str
    test: Callable[[I], Outcome]
    inputs: Iterable[I]
    smaller: Callable[[I], Iterator[I]] = no_smaller
    essential: bool = False
    otherwise: str = "it does not apply"


def examine(law: Law[I], directory: Path) -> Finding:
    """Try a law. directory: the directory of the component's file, whose lines exceptions name."""
    tried, reason, note = 0, "", ""
    end = time.monotonic() + LAW_S
    for each in law.inputs:
        try:
            outcome = outcome_of(law, each, directory)
        except NotApplicable as error:
            reason = reason or str(error)
            continue
        tried += 1
        if isinstance(outcome, Failure):
            smallest, failure = shrunk(law, each, outcome, directory)
            return Finding(
                law=law.name,
                statement=law.statement,
                status="failed",
                inputs=tried,
                input=str(smallest),
                expected=failure.expected,
                got=failure.got,
            )
        note = outcome.text if outcome else note
        if time.monotonic() > end and not isinstance(law.inputs, Sequence):
            break
    if not tried:
        return Finding(
            law=law.name, statement=law.statement, status="skipped", reason=reason or law.otherwise
        )
    status: Status = "note" if note else "ok"
    return Finding(law=law.name, statement=law.statement, status=status, inputs=tried, reason=note)


def outcome_of(law: Law[I], tried: I, directory: Path) -> Outcome:
    """The outcome of a law on one input.

    Raises:
        NotApplicable: The law says nothing about it.
        ParameterFailure: The component cannot be built, which breaks no law.
    """
    try:
        return law.test(tried)
    except (NotApplicable, ParameterFailure):
        raise
    except RankFailure as error:
        return Failure("no exception", str(error))
    except Exception as error:
        return Failure("no exception", located(error, directory))


def shrunk(law: Law[I], broken: I, failure: Failure, directory: Path) -> tuple[I, Failure]:
    """A smallest input that breaks the law, none smaller than which was found to break it."""
    end = time.monotonic() + SHRINK_S
    while time.monotonic() < end:
        for each in law.smaller(broken):
            try:
                outcome = outcome_of(law, each, directory)
            except NotApplicable:
                continue
            if isinstance(outcome, Failure):
                broken, failure = each, outcome
                break
        else:
            break
    return broken, failure


def examine_all(
    laws: Iterable[Law[I]], directory: Path, begin: Callable[[Law[I]], None] = lambda law: None
) -> Iterator[Finding]:
    """Try laws one after the other. Those after an essential one that fails are not tried.

    directory: the directory of the component's file. begin: called with each law before it is tried.
    """
    broken = ""
    for law in laws:
        if broken:
            reason = f"not tried, since the law {broken} fails"
            yield Finding(law=law.name, statement=law.statement, status="skipped", reason=reason)
            continue
        begin(law)
        finding = examine(law, directory)
        yield finding
        if law.essential and finding.status == "failed":
            broken = law.name
