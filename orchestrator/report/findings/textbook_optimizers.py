"""Findings about textbook optimizers: whether they reproduce the loss curve of the library's."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.claims import Claims, compared_data
from orchestrator.report.formats import count, seconds
from orchestrator.report.metrics.textbook_optimizers import optimizer_pairs
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.quantities import TRAIN_S
from orchestrator.report.quantities.learning import last_epoch

TOLERANCE = 1e-3  # of the highest loss; rounding of float32 over some hundred steps stays below


def loss_curves(comparison: Comparison, claims: Claims) -> Iterator[Finding]:
    """Whether the textbook optimizer has the library's loss curve, and how much longer it takes."""
    for pair in optimizer_pairs(comparison):
        difference = pair.max_difference
        if difference is None:
            continue
        textbook, library = pair.names
        run, group = pair.textbook.first.run, pair.textbook
        where = (
            ""
            if group.serial
            else f", {group.strategy_label} over {group.transport} on {group.shape.label},"
        )
        epochs = max(last_epoch(one) or 0 for one, _ in pair.runs)
        equal = difference <= TOLERANCE
        curves = "the same test-loss curve" if equal else "different test-loss curves"
        text = (
            f"{textbook} and {library} at lr {run.lr:g} and batch {run.batch_size:,}{where} have {curves}: "
            f"over {count(epochs, 'epoch')} and {count(len(pair.runs), 'seed')} the losses differ by at "
            f"most {difference:.1e} of {library}'s highest (tolerance {TOLERANCE:g})."
        )
        data = {"optimizers": pair.names, "max_difference": difference, "seeds": len(pair.runs)}
        for times in claims.pairs(TRAIN_S, [(pair.textbook, pair.library)]):
            text += (
                f" {textbook} took {seconds(times.values[0])} and {library} {seconds(times.values[1])}: "
                f"{times.written}."
            )
            data["compared"] = compared_data([times])
        kind = "textbook_curve_equal" if equal else "textbook_curve_differs"
        yield Finding(kind, text, evidence([pair.textbook, pair.library]), data)
