"""What the laws of a kind find for a component, without another process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import pytest

from trainer.components.examine import Finding, examine_all
from trainer.components.facts import Imported
from trainer.components.kind import Elsewhere, Input, Kind, Law
from trainer.core.user_code import ImportFailure


def findings(kind: Kind[Any], *names: str) -> dict[str, Finding]:
    """What some laws find, by their names; all laws if none is named."""

    def first(law: Law) -> Sequence[Input] | str:
        return [Elsewhere(digest=kind.digest())] if law.across else kind.first(law)

    laws = [law for law in kind.laws() if not names or law.name in names]
    return {each.law: each for each in examine_all(laws, first, kind.attempt)}


def declaring(base: type[Any], **members: Any) -> Any:
    """A subclass with these members."""
    return type("Own", (base,), {"__module__": __name__, **members})


def imported(wrapper: type[Imported], known: Mapping[str, Any]) -> Any:
    """A user's component, of which a run knows this."""
    return wrapper.model_validate({"name": "it", "imported": known})


def refused(work: Callable[[], Any]) -> str:
    """The line that says why a component is refused."""
    with pytest.raises(ImportFailure) as raised:
        work()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def failing(cases: Mapping[str, Any], tried: Callable[[Any], Any]) -> dict[str, str]:
    """Messages in which a part is missing. cases: what is refused, by the parts of its message."""
    found = {parts: refused(lambda each=each: tried(each)) for parts, each in cases.items()}
    return {parts: text for parts, text in found.items() if any(p not in text for p in parts.split(" | "))}


Sound = Sequence[tuple[str, str, str, Kind[Any]]]


def assert_faults(
    faults: Mapping[str, Kind[Any]], unbroken: Set[str] = frozenset(), sound: Sound = ()
) -> None:
    """Every fault breaks its law alone, and every law but `unbroken` has one.

    faults: what is tried, by the law that it breaks and a pattern of the smallest input and what is found.
    sound: what breaks no law: a law, its status, a part of the reason, and what is tried.
    """
    for case, kind in faults.items():
        law, _, text = case.partition(": ")
        found = findings(kind, "runs", law)
        assert {name for name, each in found.items() if each.status == "failed"} == {law}, case
        shown = f"{found[law].input}: {found[law].expected}: {found[law].got}"
        assert re.search(text, shown), f"{case}: {shown}"
        assert found[law].inputs > 0
    assert {law.name for law in kind.laws()} - {case.partition(":")[0] for case in faults} == unbroken
    for law, status, text, kind in sound:
        told = findings(kind, "runs", law)[law]
        assert (told.status, text in told.reason) == (status, True), f"{law} {text}: {told}"
