"""Pairs of runs that differ only in the optimizer: the textbook implementation and the library's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group, config_of
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities.learning import last_epoch
from trainer.spec.registries import REGISTRIES


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
    by_key = {_key(group): group for group in groups}
    for group in groups:
        equivalent = getattr(group.first.run.optimizer, "equals", None)
        if equivalent and (library := by_key.get(_key(group, optimizer_name=equivalent))):
            yield OptimizerPair(group, library)


def _reproducible(group: Group) -> bool:
    """Whether equal seeds give equal weights; asynchronous strategies are not reproducible."""
    strategy = group.first.run.strategy
    return group.first.trains and (group.serial or strategy.synchronous)


def _key(group: Group, optimizer_name: str = "") -> str:
    """The configuration as text, with its optimizer under another name if one is given."""
    row = group.first
    rest = {field: value for field, value in config_of(row).items() if field != "optimizer"}
    # Without defaults, since the library's optimizer may have more parameters.
    optimizer = REGISTRIES["optimizer"].dump(row.run.optimizer, exclude_defaults=True)
    if optimizer_name:
        optimizer["name"] = optimizer_name
    return json.dumps([rest, row.location, optimizer], sort_keys=True)
