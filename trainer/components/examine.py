"""Tries the laws of a component, on inputs from the smallest on, and shrinks the first that breaks one.

It runs where it trusts: what it knows of the component are outcomes. See `Kind.attempt` for the other side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from trainer.components.kind import Input, Law, Outcome, Status
from trainer.core.record import Record, Text

SEARCH_S = 0.25  # in which further inputs of a law are tried
SHRINK_S = 5.0
EXAMPLES = 1000

Attempt = Callable[[Law, Input], Outcome]


class Finding(Record):
    """One law on one component.

    law: its name. statement: what must hold. inputs: how many were tried. input: the smallest on which it
    fails. expected, got: the values for it. reason: why it was not tried, or what is worth knowing.
    """

    law: Text
    statement: Text
    status: Status
    inputs: int = 0
    input: Text = ""
    expected: Text = ""
    got: Text = ""
    reason: Text = ""


def examine_all(
    laws: Iterable[Law], first: Callable[[Law], Sequence[Input] | str], attempt: Attempt
) -> Iterator[Finding]:
    """Try laws one after the other. Those after an essential one that fails are not tried.

    Args:
        laws: in their order.
        first: the inputs on which a law is tried, the smallest first; a text: why there are none.
        attempt: tries one.
    """
    broken = ""
    for law in laws:
        if broken:
            reason = f"not tried, since the law {broken} fails"
            yield Finding(law=law.name, statement=law.statement, status="skipped", reason=reason)
            continue
        yield (finding := examine(law, first(law), attempt))
        if law.essential and finding.status == "failed":
            broken = law.name


def examine(law: Law, first: Sequence[Input] | str, attempt: Attempt) -> Finding:
    """Try a law on all of these inputs, and on further ones if it has more."""
    reason, note, tried = first if isinstance(first, str) else "", "", 0
    failed: tuple[Input, Outcome] | None = None
    for given in () if isinstance(first, str) else first:
        outcome = attempt(law, given)
        if outcome.status == "skipped":
            reason = reason or outcome.reason
            continue
        tried += 1
        if outcome.status == "failed":
            failed = given, outcome
            break
        note = outcome.reason or note
    if law.more and tried:
        below, limit_s = (failed[0], SHRINK_S) if failed else (law.more, SEARCH_S)
        failed = search(law, attempt, below, limit_s) or failed
    found: dict[str, Any] = {"status": "note" if note else "ok", "inputs": tried, "reason": note}
    if failed:
        given, outcome = failed
        found = {"inputs": tried, "input": str(given), **outcome.model_dump()}
    elif not tried:
        found = {"status": "skipped", "reason": reason or "it does not apply"}
    return Finding(law=law.name, statement=law.statement, **found)


class _TimeUp(BaseException):
    """Passes through Hypothesis, which takes exceptions for failures."""


def search(law: Law, attempt: Attempt, below: Input, limit_s: float) -> tuple[Input, Outcome] | None:
    """A smallest input that breaks a law, with its outcome; None if none is found in time.

    below: each of its values is the largest of those that are tried.
    """
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
    from hypothesis.configuration import set_hypothesis_home_dir
    from hypothesis.errors import Flaky

    set_hypothesis_home_dir(os.devnull)  # it would write to the current directory
    end = time.monotonic() + limit_s
    smallest: tuple[Input, Outcome] | None = None

    def tried(one: Input) -> None:
        nonlocal smallest
        if time.monotonic() > end:
            raise _TimeUp
        outcome = attempt(law, one)
        if outcome.status == "failed":
            smallest = one, outcome
            raise AssertionError

    values = {name: _values(type(below), name, most) for name, most in below}
    inputs = st.builds(type(below), **values)
    check = settings(
        database=None,
        deadline=None,
        max_examples=EXAMPLES,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[*HealthCheck],
        derandomize=True,
    )
    # Flaky: the input does not fail again, as after a crash of the process that tried it.
    with suppress(_TimeUp, AssertionError, Flaky):
        check(given(inputs)(tried))()
    return smallest


def _values(model: type[Input], name: str, most: Any) -> Any:
    """The values of a field, up to this one."""
    from hypothesis import strategies as st

    field = model.model_fields[name]
    if not isinstance(most, int):
        return st.sampled_from([field.default, most])
    least = next(limit.ge for limit in field.metadata if hasattr(limit, "ge"))
    return st.integers(least, most)
