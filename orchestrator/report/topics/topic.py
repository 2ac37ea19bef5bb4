"""Topic: what a report says about one subject, in findings and in figures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from orchestrator.report.figures.kind import FigureKind
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask, Claims
from orchestrator.report.model.comparison import Comparison, WorkloadView
from orchestrator.report.model.labels import Workload

# A rule first yields what it asks, if it asks anything, and is sent the answers. Then it yields findings.
Findings = Generator[Sequence[Ask] | Finding, Claims, None]
Rule = Callable[[WorkloadView], Findings]
SweepRule = Callable[[Comparison], Findings]


@dataclass(frozen=True)
class Topic:
    """What a report says about one subject.

    Attributes:
        rules: findings on a workload without faults.
        rules_with_faults: findings on a workload with or without faults. Wall times with faults lack what
            these cost: lost work and restarts.
        sweep_rules: findings on the sweep as a whole.
        figures: drawn for each workload.
    """

    rules: Sequence[Rule] = ()
    rules_with_faults: Sequence[Rule] = ()
    sweep_rules: Sequence[SweepRule] = ()
    figures: Sequence[FigureKind] = ()


class Started:
    """A rule that has asked. It asks once: what is compared cannot depend on what is decided."""

    def __init__(self, rule: Findings, workload: Workload | None = None) -> None:
        """workload: that of its findings, if they do not say it."""
        first = next(rule, ())
        self._rule, self._workload = rule, workload
        self._said = [first] if isinstance(first, Finding) else []
        self.asks: Sequence[Ask] = () if isinstance(first, Finding) else first

    def findings(self, claims: Claims) -> list[Finding]:
        """Its findings, once. Raises TypeError if it asks again."""
        said: list[Sequence[Ask] | Finding] = [*self._said]
        with suppress(StopIteration):
            said.append(self._rule.send(replace(claims, asks=self.asks)))
        found = []
        for each in [*said, *self._rule]:
            if not isinstance(each, Finding):
                raise TypeError("a rule asks once, and before its findings")
            found.append(replace(each, workload=each.workload or self._workload))
        return found
