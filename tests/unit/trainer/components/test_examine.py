"""Mistakes in how laws are tried and told: the smallest input, further ones, notes, what is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainer.components import examine as module
from trainer.components.examine import Finding, examine, examine_all
from trainer.components.kind import Law, Outcome
from trainer.components.partitioner import LARGEST, Case, cases
from trainer.components.partitioner import _case as case

Test = Callable[[Case], Outcome]


def law(**flags: Any) -> Law:
    return Law("law", "it holds", lambda kind, case: None, lambda kind: [], **flags)


def broken(breaks: Callable[[Case], bool]) -> Test:
    return lambda case: Outcome(status="failed" if breaks(case) else "ok")


def tried(test: Test, *inputs: Case, reason: str = "", **flags: Any) -> Finding:
    return examine(law(**flags), inputs or reason, lambda law, case: test(case))


def test_the_smallest_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among further ones, too: those listed have no 9 parts of more than 8 samples."""
    for limit in ("SEARCH_S", "SHRINK_S"):
        monkeypatch.setattr(module, limit, 60.0)  # on a busy machine, too
    for smallest, breaks in (
        (case(700, 1, 5), lambda case: case.samples >= 700 and case.parts > 4),
        (case(73, 3, 1), lambda case: case.samples % 64 > 8 and case.classes > 2 and case.samples > 64),
        (case(1, 1, 3), lambda case: case.parts == 3),
        (case(20, 1, 9), lambda case: case.parts == 9 and case.samples >= 20),
    ):
        found = tried(broken(breaks), *cases(), more=LARGEST)
        assert (found.status, found.input) == ("failed", str(smallest))


def test_an_input_that_fails_once_alone_is_told() -> None:
    """As one after which there is no process any more."""
    outcomes = iter([Outcome(), Outcome(status="failed")])
    found = tried(lambda case: next(outcomes, Outcome(status="skipped")), case(1, 1, 1), more=LARGEST)
    assert (found.status, found.input != "") == ("failed", True)


def test_what_is_told_of_several_inputs() -> None:
    """The number of those that apply, the reason of the first that does not, and the last note."""

    def test(case: Case) -> Outcome:
        if case.parts == 1:
            return Outcome(status="skipped", reason=f"{case.samples} in one part")
        return Outcome(status="note", reason="two samples") if case.samples == 2 else Outcome()

    def told(*inputs: Case) -> tuple[str, int, str]:
        found = tried(test, *inputs, reason="there is none")
        return found.status, found.inputs, found.reason

    three = [case(1, 1, 1), case(2, 1, 1), case(2, 1, 2)]
    assert told(*three[:2]) == ("skipped", 0, "1 in one part")
    assert told(*three, case(3, 1, 2)) == ("note", 2, "two samples")
    assert told(case(3, 1, 2)) == ("ok", 1, "")
    assert told() == ("skipped", 0, "there is none")


def test_further_inputs_take_no_more_time_than_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("SEARCH_S", "SHRINK_S"):
        monkeypatch.setattr(module, limit, 0.0)
    few = cases()[:3]
    assert tried(broken(lambda case: case in few[2:]), *few, more=LARGEST).status == "failed"
    assert tried(broken(lambda case: case not in few), *few, more=LARGEST).status == "ok"


def test_laws_after_an_essential_one_that_fails_are_not_tried() -> None:
    laws, told = [law(essential=True), law(at_loading=True)], (Outcome(), Outcome(status="failed"))
    for at, statuses in ((0, ["failed", "skipped"]), (1, ["ok", "failed"]), (2, ["ok", "ok"])):
        wrong = laws[at : at + 1]
        found = examine_all(
            laws, lambda law: [case(1, 1, 1)], lambda law, _, wrong=wrong: told[law in wrong]
        )
        assert [each.status for each in found] == statuses
