"""The sentence on what a figure shows. Replaced when the sentences are merged."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.findings.base import Finding
from orchestrator.report.model.comparison import WorkloadView


def figure_sentence(name: str, view: WorkloadView, findings: Sequence[Finding]) -> str:
    """Nothing yet."""
    return ""
