"""Published and measured: the figures that others have published, and ours of the same runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.report import formats
from orchestrator.report.formats import ABSENT
from orchestrator.report.metrics.learning import last_epoch
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.places import nodes_were
from orchestrator.report.model.rows import Row, quotient
from orchestrator.report.render.columns import Cell, Column, over_seeds
from orchestrator.sweeps.expand import matches
from orchestrator.sweeps.lab import BlockRecord, Published, Values


@dataclass(frozen=True)
class Line:
    """What was published of some runs of a block, and the cell of ours; None where it came to nothing.

    alone: the same for one node of the block, which speedups are taken from. changed: ours were made by
    options that the published ones know nothing of, as with less epochs.
    """

    block: str
    published: Published
    measured: Group | None
    alone: tuple[Published, Group | None] | None = None
    changed: bool = False

    @property
    def runs(self) -> str:
        """Which of the block's runs: `2 nodes`, `partitioner prefix_shuffle`."""
        fields = dict(self.published.runs)
        nodes = fields.pop("nodes", None)
        told = [formats.count(nodes, "node")] if isinstance(nodes, int) else []
        return ", ".join([*told, *(f"{name} {_written(value)}" for name, value in fields.items())])

    def mean(self, metric: Metric) -> float | None:
        """Over the seeds of what was measured."""
        return _mean(self.measured, metric)

    @property
    def published_speedup(self) -> float | None:
        return quotient(self.alone[0].time_s, self.published.time_s) if self.alone else None

    @property
    def measured_speedup(self) -> float | None:
        """Where one was published."""
        return self._from_one(lambda row: row.train_s)

    @property
    def work_speedup(self) -> float | None:
        """The same of CPU time: what nodes with a core each would have, if sending cost nothing."""
        return self._from_one(lambda row: row.result.path_cpu_s)

    def _from_one(self, metric: Metric) -> float | None:
        if self.alone is None or self.published_speedup is None:
            return None
        one, mine = self.alone[1], self.measured
        if one is None or mine is None or not times_compare(one, mine):
            return None
        return quotient(_mean(one, metric), _mean(mine, metric))


def lines(comparison: Comparison) -> list[Line]:
    """All published figures of the sweep, in the order of its file."""
    return [line for block in comparison.record.blocks for line in _lines_of(comparison, block)]


def _lines_of(comparison: Comparison, block: BlockRecord) -> Iterator[Line]:
    for entry in block.published:
        measured = cell_of(comparison, block, entry.runs)
        one = next((other for other in block.published if other.runs == {**entry.runs, "nodes": 1}), None)
        alone = (one, cell_of(comparison, block, one.runs)) if one else None
        yield Line(block.name, entry, measured, None if entry is one else alone, bool(changed(comparison)))


def cell_of(comparison: Comparison, block: BlockRecord, entry: Values) -> Group | None:
    """The cell of the block's runs that an entry means; None if none of them is ok.

    None, too, where its runs were made in several places: they are not one cell then.
    """
    keys = set(block.keys)
    meant = [
        group
        for group in comparison.groups
        if group.ok and keys & {row.key for row in group.rows} and matches(group.first.run, entry)
    ]
    return meant[0] if len(meant) == 1 else None


def times_compare(*cells: Group) -> bool:
    """Whether the times of these cells are of one place, of equally many epochs and of ranks apart."""
    rows = [row for cell in cells for row in cell.ok_rows]
    alone = all(row.result.times_compare for row in rows)
    return alone and as_many_passes(rows) and len({row.where for row in rows}) == 1


def as_many_passes(rows: Sequence[Row]) -> bool:
    """Whether all trained for as long as was planned: not so where a target accuracy ends a run."""
    return all(row.result.last_epoch == row.run.epochs for row in rows)


def _figure(name: str, write: Callable[[float], str]) -> Callable[[Line], Cell]:
    """A figure as it was published."""

    def cell(line: Line) -> Cell:
        value = getattr(line.published, name)
        return Cell(ABSENT if value is None else write(value))

    return cell


def _ours(name: str, metric: Metric, write: Callable[[float], str]) -> Callable[[Line], Cell]:
    """The same as we measured it, where it was published."""

    def cell(line: Line) -> Cell:
        if getattr(line.published, name) is None:
            return Cell(ABSENT)
        return over_seeds(metric, write)(line.measured) if line.measured else Cell("not run")

    return cell


def _difference(line: Line) -> Cell:
    measured = line.mean(_accuracy)
    if line.published.accuracy is None or measured is None or line.changed:
        return Cell(ABSENT)
    return Cell(formats.points(measured - line.published.accuracy))


def _against_one(line: Line) -> Cell:
    mine, one = line.mean(_accuracy), _mean(line.alone[1], _accuracy) if line.alone else None
    if line.published.accuracy_change is None or mine is None or one is None:
        return Cell(ABSENT)
    return Cell(formats.points(mine - one))


def _accuracy(row: Row) -> float | None:
    return row.accuracy


def _steps_per_epoch(row: Row) -> float | None:
    epochs = last_epoch(row)
    return row.steps / epochs if row.steps and epochs else None


COLUMNS: tuple[Column[Line], ...] = (
    Column("Form", lambda line: Cell(line.block), number=False),
    Column("Runs", lambda line: Cell(line.runs), number=False),
    Column("Time published", _figure("time_s", formats.seconds)),
    Column("measured", _ours("time_s", lambda row: row.train_s, formats.seconds)),
    Column("Speedup published", lambda line: Cell(formats.ratio(line.published_speedup))),
    Column("measured", lambda line: Cell(formats.ratio(line.measured_speedup))),
    Column("by CPU time", lambda line: Cell(formats.ratio(line.work_speedup))),
    Column("Accuracy published", _figure("accuracy", formats.percent)),
    Column("measured", _ours("accuracy", _accuracy, formats.percent)),
    Column("difference", _difference),
    Column("Against one node published", _figure("accuracy_change", formats.points)),
    Column("measured", _against_one),
    Column("Steps per epoch published", _figure("steps_per_epoch", formats.whole)),
    Column("measured", _ours("steps_per_epoch", _steps_per_epoch, formats.whole)),
    Column("Coverage published", _figure("coverage", formats.percent)),
    Column("measured", _ours("coverage", lambda row: row.coverage, formats.percent)),
)


def differences(comparison: Comparison) -> list[tuple[str, str]]:
    """In what the published runs and ours are known to differ: a name and what there is to say."""
    lab = comparison.record.lab
    if lab is None:
        return []
    cpus = dict.fromkeys(str(row.result.environment.get("processor", "")) for row in comparison.rows)
    machine = ", ".join(filter(None, cpus)) or "an unknown processor"
    cores = sorted({row.result.cores for row in comparison.rows})
    had = f", {formats.listed([f'{number:g}' for number in cores], 'or')} cores" if cores else ""
    told = [("Published on", lab.hardware)]
    told += [("Measured on", f"{machine}{had}; nodes were {nodes_were(comparison.rows)}")] if cores else []
    told += [("Differs", fact) for fact in lab.differs]
    if by := ", ".join(changed(comparison)):
        told.append(("Changed", f"by {by}: these are not the runs that figures were published of"))
    return told


def changed(comparison: Comparison) -> list[str]:
    """The options that made other runs of those in the file; fewer nodes leave the others as they are."""
    return [option for option in comparison.record.overrides if not option.startswith("--nodes ")]


def _mean(group: Group | None, metric: Metric) -> float | None:
    spread = group.over(metric) if group else None
    return spread.mean if spread else None


def _written(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(
            [str(value.get("name", "")), *(f"{k}={v}" for k, v in value.items() if k != "name")]
        )
    return str(value)
