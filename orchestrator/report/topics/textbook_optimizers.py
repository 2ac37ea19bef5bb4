"""Textbook optimizers: whether they reproduce the loss curve of the library's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.report.findings.base import Finding
from orchestrator.report.findings.decide import Ask
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.rows import Row
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import last_epoch
from orchestrator.report.topics.topic import Findings, Topic
from trainer.spec.registries import REGISTRIES

TOLERANCE = 1e-3  # of the highest loss; rounding of float32 over some hundred steps stays below


@dataclass(frozen=True)
class Reproduction:
    """The losses of a textbook optimizer beside those of the library's, with all else equal.

    runs: those of both with the same seed, and so with the same initial weights and samples.
    """

    textbook: Group
    library: Group
    runs: Sequence[tuple[Row, Row]]

    @property
    def names(self) -> tuple[str, str]:
        return self.textbook.first.run.name_of("optimizer"), self.library.first.run.name_of("optimizer")

    @property
    def max_difference(self) -> float:
        """The largest difference of losses after any epoch, relative to the library's highest loss.

        Relative to a loss that training has made small, the rounding of sums in another order is large.
        """
        return max(
            max(abs(mine - theirs) for mine, theirs in zip(_losses(one), _losses(other), strict=True))
            / max(_losses(other))
            for one, other in self.runs
        )


def reproductions(comparison: Comparison) -> list[Reproduction]:
    """Every textbook optimizer whose library counterpart was run with all else equal."""
    groups = [group for group in comparison.groups if group.ok and _reproducible(group)]
    by_key = {_key(group): group for group in groups}
    found = []
    for group in groups:
        equivalent = getattr(group.first.run.optimizer, "equals", None)
        library = equivalent and by_key.get(_key(group, name=equivalent))
        if library and (runs := _same_seeds(group, library)):
            found.append(Reproduction(group, library, runs))
    return found


def _reproducible(group: Group) -> bool:
    """Whether equal seeds give equal weights; asynchronous strategies are not reproducible."""
    return group.first.trains and (group.serial or group.first.run.strategy.synchronous)


def _key(group: Group, **changed: str) -> str:
    """The configuration as text, with these changes of its optimizer.

    Without defaults, since the library's optimizer may have more parameters.
    """
    row = group.first
    optimizer = REGISTRIES["optimizer"].dump(row.run.optimizer, exclude_defaults=True)
    return json.dumps([row.configuration("optimizer"), {**optimizer, **changed}], sort_keys=True)


def _same_seeds(textbook: Group, library: Group) -> list[tuple[Row, Row]]:
    """The runs of both with the same seed, for as many epochs."""
    others = {(row.seed, last_epoch(row)): row for row in library.ok_rows if any(_losses(row))}
    rows = [(row, others.get((row.seed, last_epoch(row)))) for row in textbook.ok_rows]
    return [(row, other) for row, other in rows if other]


def _losses(row: Row) -> list[float]:
    """Test loss of rank 0 after each epoch."""
    points = [point for point in row.result.epochs if point.rank == 0]
    return [point.test_loss for point in sorted(points, key=lambda point: point.epoch)]


def compared_curves(comparison: Comparison) -> Findings:
    """Whether the textbook optimizer has the library's loss curve, and how much longer it takes."""
    found = reproductions(comparison)
    answers = yield [Ask.of(Q.train_s, [(each.textbook, each.library)]) for each in found]
    for each, answer in zip(found, answers, strict=True):
        run, group = each.textbook.first.run, each.textbook
        yield Finding.of(
            "textbook_curve_equal" if each.max_difference <= TOLERANCE else "textbook_curve_differs",
            [each.textbook, each.library],
            answer.compared,
            optimizers=each.names,
            lr=run.lr,
            batch_size=run.batch_size,
            where="" if group.serial else f"{group.name} on {group.shape.label}",
            epochs=max(last_epoch(one) or 0 for one, _ in each.runs),
            seeds=len(each.runs),
            max_difference=each.max_difference,
            tolerance=TOLERANCE,
        )


TOPIC = Topic(sweep_rules=(compared_curves,))
