"""What the laws of a kind find for a component, without another process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from trainer.components.examine import Finding, examine_all
from trainer.components.kind import Elsewhere, Input, Kind, Law, NotApplicable


def findings(kind: Kind[Any], *names: str) -> dict[str, Finding]:
    """What some laws find, by their names; all laws if none is named."""

    def first(law: Law) -> Sequence[Input] | str:
        if law.across:
            return [Elsewhere(digest=kind.digest())]
        try:
            return law.first(kind)
        except NotApplicable as reason:
            return str(reason)

    laws = [law for law in kind.laws() if not names or law.name in names]
    return {each.law: each for each in examine_all(laws, first, kind.attempt)}


def declaring(base: type[Any], **members: Any) -> Any:
    """An instance of a subclass with these members."""
    return type("Own", (base,), {"__module__": __name__, **members})()


def assert_faults(faults: Mapping[str, Kind[Any]], unbroken: Set[str] = frozenset()) -> None:
    """Every fault breaks its law alone, and every law but `unbroken` has one.

    faults: what is tried, by the law that it breaks and a pattern of the smallest input and what is found.
    """
    for case, kind in faults.items():
        law, _, text = case.partition(": ")
        found = findings(kind, "runs", law)
        assert {name for name, each in found.items() if each.status == "failed"} == {law}, case
        shown = f"{found[law].input}: {found[law].expected}: {found[law].got}"
        assert re.search(text, shown), f"{case}: {shown}"
        assert found[law].inputs > 0
    assert {law.name for law in kind.laws()} - {case.partition(":")[0] for case in faults} == unbroken


def assert_sound(sound: Sequence[tuple[str, str, str, Kind[Any]]]) -> None:
    """No law is broken. sound: a law, its status, a part of the reason, and what is tried."""
    for law, status, text, kind in sound:
        found = findings(kind, "runs", law)[law]
        assert (found.status, text in found.reason) == (status, True), f"{law} {text}: {found}"
