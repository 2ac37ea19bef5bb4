"""Findings about optimisers written out by hand."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.formats import count, ratio
from orchestrator.report.metrics.learning import last_epoch
from orchestrator.report.metrics.textbook_optimizers import twins_of
from orchestrator.report.model.comparison import Comparison

TOLERANCE = 1e-3  # of the loss: float32's rounding over some thousand steps stays far below


def same_curve(comparison: Comparison) -> Iterator[Finding]:
    """Whether the loss curve is the library's, and what writing it out costs."""
    for twins in twins_of(comparison):
        if twins.apart is None:
            continue
        mine, library = twins.names
        run, cell = twins.textbook.first.run, twins.textbook
        where = (
            "" if cell.serial else f", {cell.strategy_label} over {cell.transport} on {cell.shape.label},"
        )
        epochs = max(last_epoch(one) or 0 for one, _ in twins.pairs)
        verdict = "the same loss curve" if twins.apart <= TOLERANCE else "NOT the same loss curve"
        text = (
            f"{mine} and {library} at lr {run.lr:g} and batch {run.batch_size:,}{where} have {verdict}: "
            f"over {count(epochs, 'epoch')} and {count(len(twins.pairs), 'seed')} the losses differ by at "
            f"most {twins.apart:.1e} of {library}'s (tolerance {TOLERANCE:g})."
        )
        slow, fast = (group.over(lambda row: row.train_s) for group in (twins.textbook, twins.library))
        if slow and fast:
            text += f" By hand training took {ratio(slow.mean / fast.mean)} times as long."
        rows = evidence([twins.textbook, twins.library])
        yield Finding("finding" if twins.apart <= TOLERANCE else "caution", text, rows)
