"""`--fail-on`: which differences fail a comparison of results directories."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.errors import InputError
from orchestrator.report.directory_comparison.differences import Directories
from orchestrator.report.findings.decide import Compared
from orchestrator.report.statistics.contrasts import MIN_SEEDS

_LIMIT = re.compile(r"(slower)=([0-9]{1,6}(?:\.[0-9]{1,6})?)%|(accuracy)=([0-9]{1,3}(?:\.[0-9]{1,6})?)pt")


@dataclass(frozen=True)
class Limits:
    """The largest losses that pass. None: any.

    slower: the ratio of times − 1. accuracy: a difference of accuracies, 0 … 1.
    """

    slower: float | None = None
    accuracy: float | None = None

    @classmethod
    def parse(cls, text: str) -> Limits:
        """`slower=10%,accuracy=1pt`, or one of the two. Raises InputError."""
        found = {}
        for part in text.split(","):
            matched = _LIMIT.fullmatch(part.strip())
            name = (matched[1] or matched[3]) if matched else ""
            if not matched or name in found:
                raise InputError(
                    f"--fail-on {text}: {part.strip()!r} is not one of slower=PERCENT% and "
                    "accuracy=POINTSpt, each at most once, e.g. slower=10%,accuracy=1pt"
                )
            found[name] = float(matched[2] or matched[4]) / 100
        return cls(**found)

    def broken(self, found: Directories) -> list[str]:
        """What breaks a limit, a line each.

        A loss counts if it is claimed and was measured above the limit. A configuration that finished in
        the reference alone counts, too. Raises InputError if seeds are too few to claim anything.
        """
        lines = [f"{at}: {name}: it has no run" for at, names in found.missing.items() for name in names]
        for each in found.differences:
            at = f"{each.directory}: {each.name}"
            if each.reference.ok and not each.other.ok:
                lines.append(f"{at}: no run finished")
            for limit, compared in ((self.slower, each.time), (self.accuracy, each.accuracy)):
                if limit is not None and compared and _lost(compared, limit):
                    lines.append(f"{at}: above the limit: {compared.written}")
        for name, limit, known in (
            ("slower", self.slower, [each.time for each in found.differences]),
            ("accuracy", self.accuracy, [each.accuracy for each in found.differences]),
        ):
            few = all(each is None or each.verdict == "too_few_seeds" for each in known)
            if limit is not None and few and not lines:
                raise InputError(
                    f"--fail-on {name}: no configuration has {MIN_SEEDS} seeds in both directories, so "
                    "nothing can be claimed; run both sweeps with --repeat 5"
                )
        return lines


def _lost(compared: Compared, limit: float) -> bool:
    """Whether a loss is claimed that was measured above the limit."""
    if not compared.right_is_better:
        return False
    new, old = compared.values
    return (new / old - 1 if compared.quantity.ratio else old - new) > limit
