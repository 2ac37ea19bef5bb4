"""Topic: what a report says about one subject, in findings and in figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.report.figures.kind import FigureKind
from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.claims import Claims
from orchestrator.report.model.comparison import Comparison, WorkloadView

Rule = Callable[[WorkloadView, Claims], Iterator[Finding]]
SweepRule = Callable[[Comparison, Claims], Iterator[Finding]]


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
