"""Textbook optimizers: whether they reproduce the loss curve of the library's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.report.findings.base import Finding, evidence
from orchestrator.report.findings.decide import Ask, compared_data
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import last_epoch
from orchestrator.report.topics.topic import Findings, Topic
from trainer.spec.registries import REGISTRIES

TOLERANCE = 1e-3  # of the highest loss; rounding of float32 over some hundred steps stays below


@dataclass(frozen=True)
class OptimizerPair:
    """Two configurations that differ only in the implementation of the optimizer."""

    textbook: Group
    library: Group

    @property
    def names(self) -> tuple[str, str]:
        return self.textbook.first.run.name_of("optimizer"), self.library.first.run.name_of("optimizer")

    @property
    def runs(self) -> list[tuple[Row, Row]]:
        """The runs of both with the same seed, and so with the same initial weights and samples."""
        library = {row.seed: row for row in self.library.ok_rows}
        rows = [(row, library[row.seed]) for row in self.textbook.ok_rows if row.seed in library]
        return [(one, other) for one, other in rows if last_epoch(one) == last_epoch(other)]

    @property
    def max_difference(self) -> float | None:
        """The largest difference of losses after any epoch, relative to the library's highest loss.

        Relative to a loss that training has made small, the rounding of sums in another order is large.
        """
        shares = [
            max(abs(mine - theirs) for mine, theirs in zip(losses(one), expected, strict=True))
            / max(expected)
            for one, other in self.runs
            if max(expected := losses(other), default=0.0) > 0
        ]
        return max(shares, default=None)


def losses(row: Row) -> list[float]:
    """Test loss of rank 0 after each epoch."""
    points = [point for point in row.result.epochs if point.rank == 0]
    return [point.test_loss for point in sorted(points, key=lambda point: point.epoch)]


def optimizer_pairs(comparison: Comparison) -> Iterator[OptimizerPair]:
    """Every textbook optimizer whose library counterpart was run with all else equal."""
    groups = [group for group in comparison.groups if group.ok and _reproducible(group)]
    textbook = [
        (group, equivalent)
        for group in groups
        if (equivalent := getattr(group.first.run.optimizer, "equals", None))
    ]
    if not textbook:  # as in most sweeps, for which keys would be made for nothing
        return
    by_key = {_key(group): group for group in groups}
    for group, equivalent in textbook:
        if library := by_key.get(_key(group, optimizer_name=equivalent)):
            yield OptimizerPair(group, library)


def _reproducible(group: Group) -> bool:
    """Whether equal seeds give equal weights; asynchronous strategies are not reproducible."""
    strategy = group.first.run.strategy
    return group.first.trains and (group.serial or strategy.synchronous)


def _key(group: Group, optimizer_name: str = "") -> str:
    """The configuration as text, with its optimizer under another name if one is given."""
    row = group.first
    # Without defaults, since the library's optimizer may have more parameters.
    optimizer = REGISTRIES["optimizer"].dump(row.run.optimizer, exclude_defaults=True)
    if optimizer_name:
        optimizer["name"] = optimizer_name
    return json.dumps([row.configuration("optimizer"), optimizer], sort_keys=True)


def compared_curves(comparison: Comparison) -> Findings:
    """Whether the textbook optimizer has the library's loss curve, and how much longer it takes."""
    found = [
        (pair, difference)
        for pair in optimizer_pairs(comparison)
        if (difference := pair.max_difference) is not None
    ]
    answers = yield [Ask.of(Q.train_s, [(pair.textbook, pair.library)]) for pair, _ in found]
    for (pair, difference), answer in zip(found, answers, strict=True):
        run, group = pair.textbook.first.run, pair.textbook
        equal = difference <= TOLERANCE
        data = {
            "optimizers": pair.names,
            "lr": run.lr,
            "batch_size": run.batch_size,
            "where": "" if group.serial else f"{group.name} on {group.shape.label}",
            "epochs": max(last_epoch(one) or 0 for one, _ in pair.runs),
            "seeds": len(pair.runs),
            "max_difference": difference,
            "tolerance": TOLERANCE,
        }
        if answer.compared:
            data["compared"] = compared_data(answer.compared)
        kind = "textbook_curve_equal" if equal else "textbook_curve_differs"
        yield Finding(kind, evidence([pair.textbook, pair.library]), data)


TOPIC = Topic(sweep_rules=(compared_curves,))
