"""Optimisers that are written out by hand beside the library's: the same runs but for that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.report.metrics.learning import last_epoch
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group, cell_of
from orchestrator.report.model.rows import Row
from trainer.spec.registries import REGISTRIES


@dataclass(frozen=True)
class OptimizerPair:
    """Two cells that are equal but for who wrote the optimiser."""

    textbook: Group
    library: Group

    @property
    def names(self) -> tuple[str, str]:
        return self.textbook.first.run.name_of("optimizer"), self.library.first.run.name_of("optimizer")

    @property
    def pairs(self) -> list[tuple[Row, Row]]:
        """The runs of both that have the same seed, and so the same initial weights and samples."""
        library = {row.seed: row for row in self.library.ok_rows}
        rows = [(row, library[row.seed]) for row in self.textbook.ok_rows if row.seed in library]
        return [(one, other) for one, other in rows if last_epoch(one) == last_epoch(other)]

    @property
    def apart(self) -> float | None:
        """The largest difference of the losses after any epoch, as a share of the library's."""
        shares = [
            abs(mine - theirs) / max(abs(theirs), 1e-12)
            for one, other in self.pairs
            for mine, theirs in zip(losses(one), losses(other), strict=True)
        ]
        return max(shares, default=None)


def losses(row: Row) -> list[float]:
    """On the test split after each epoch, as rank 0 has it."""
    points = [point for point in row.result.epochs if point.rank == 0]
    return [point.test_loss for point in sorted(points, key=lambda point: point.epoch)]


def twins_of(comparison: Comparison) -> Iterator[OptimizerPair]:
    """Every optimiser by hand for which the library's was tried with all else equal."""
    groups = [group for group in comparison.groups if group.ok and _repeats(group)]
    cells = {_but_the_optimizer(group): group for group in groups}
    for group in groups:
        equivalent = getattr(group.first.run.optimizer, "library_equivalent", None)
        if equivalent and (library := cells.get(_but_the_optimizer(group, called=equivalent))):
            yield OptimizerPair(group, library)


def _repeats(group: Group) -> bool:
    """Whether equal seeds give equal weights: not where ranks read and write when they like."""
    strategy = group.first.run.strategy
    return group.first.trains and (group.serial or strategy.synchronous)


def _but_the_optimizer(group: Group, called: str = "") -> str:
    """The cell as text, with its optimiser under another name if one is given."""
    row = group.first
    cell = {field: value for field, value in cell_of(row).items() if field != "optimizer"}
    # Without defaults: the library's may have parameters more.
    optimizer = REGISTRIES["optimizer"].dump(row.run.optimizer, exclude_defaults=True)
    if called:
        optimizer["name"] = called
    return json.dumps([cell, row.where, optimizer], sort_keys=True)
