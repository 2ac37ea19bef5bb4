"""What the laws of a kind find for a component, without another process."""

from __future__ import annotations

from collections.abc import Sequence
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
