"""Published results and our measurements of the same runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.report import formats
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group, Metric
from orchestrator.report.model.labels import as_written
from orchestrator.report.model.rows import describe_nodes, quotient
from orchestrator.report.quantities import Q
from orchestrator.sweeps.expand import matches
from orchestrator.sweeps.lab import BlockRecord, Published, Values

_IN_THE_NAME = {"strategy", "transport", "nodes"}  # the fields that the name of a configuration states


@dataclass(frozen=True)
class PublishedLine:
    """A published result of some runs of a block, beside our configuration.

    measured: our configuration; None if it has no ok run. one_node: that of one node of the same block, the
    reference of speedups. overridden: our runs were changed by command-line options, such as fewer epochs.
    """

    block: str
    published: Published
    measured: Group | None
    one_node: PublishedLine | None = None
    overridden: bool = False

    @property
    def runs(self) -> str:
        """Which of the block's runs: `2 nodes`, `partitioner prefix_shuffle`, `schedule 1f1b`."""
        fields = dict(self.published.runs)
        nodes = [formats.count(fields.pop("nodes"), "node")] if "nodes" in fields else []
        others = [f"{name.rpartition('.')[2]} {as_written(value)}" for name, value in fields.items()]
        return ", ".join([*nodes, *others])

    def mean(self, metric: Metric, geometric: bool = False) -> float | None:
        """Mean over the seeds of our configuration; that of times is geometric."""
        spread = self.measured and self.measured.over(metric, geometric)
        return spread.mean if spread else None

    @property
    def accuracy_change(self) -> float | None:
        """Our accuracy minus that of one node."""
        mine = self.measured and Q.accuracy.over(self.measured)
        other = self.one_node and self.one_node.measured
        one = other and Q.accuracy.over(other)
        return mine.mean - one.mean if mine and one else None

    @property
    def published_speedup(self) -> float | None:
        return quotient(self.one_node.published.time_s, self.published.time_s) if self.one_node else None

    @property
    def measured_speedup(self) -> float | None:
        """Our speedup over one node, if one was published."""
        return self._speedup(lambda row: row.train_s)

    @property
    def cpu_time_speedup(self) -> float | None:
        """Our speedup by CPU time, as with a core for every rank and free communication."""
        return self._speedup(lambda row: row.result.path_cpu_s)

    def _speedup(self, metric: Metric) -> float | None:
        one = self.one_node
        if one is None or self.published_speedup is None or not (one.measured and self.measured):
            return None
        if not times_compare(one.measured, self.measured):
            return None
        return quotient(one.mean(metric, geometric=True), self.mean(metric, geometric=True))


def published_lines(comparison: Comparison) -> list[PublishedLine]:
    """All published results of the sweep, in the order of its file."""
    return [line for block in comparison.record.blocks for line in _lines_of(comparison, block)]


def _lines_of(comparison: Comparison, block: BlockRecord) -> Iterator[PublishedLine]:
    changed = bool(overrides(comparison))
    lines = [
        PublishedLine(block.name, each, matching_group(comparison, block, each.runs), overridden=changed)
        for each in block.published
    ]
    for line in lines:
        runs = {**line.published.runs, "nodes": 1}
        one = next((other for other in lines if other.published.runs == runs), None)
        yield line if one is line else replace(line, one_node=one)


def name_of_runs(block: str, configuration: str, runs: Values) -> str:
    """`“corrected” (ddp over gloo on 2 nodes, random_partition)`: some runs of a block."""
    which = [as_written(value) for field, value in runs.items() if field not in _IN_THE_NAME]
    return f"“{block}” ({', '.join([configuration, *which])})"


def matching_group(comparison: Comparison, block: BlockRecord, entry: Values) -> Group | None:
    """The configuration of the block that an entry selects; None unless exactly one has an ok run."""
    keys = set(block.keys)
    matching = [
        group
        for group in comparison.groups
        if group.ok and keys & {row.key for row in group.rows} and matches(group.first.run, entry)
    ]
    return matching[0] if len(matching) == 1 else None


def times_compare(*groups: Group) -> bool:
    """Whether the times of these groups compare: one location, all planned epochs, no ranks as threads.

    A target accuracy may end a run before the planned number of epochs.
    """
    rows = [row for group in groups for row in group.ok_rows]
    alike = all(row.times_compare and row.result.last_epoch == row.run.epochs for row in rows)
    return alike and len({row.location for row in rows}) == 1


def differences(comparison: Comparison) -> list[tuple[str, str]]:
    """Known differences between the published runs and ours: pairs of a name and a fact."""
    lab = comparison.record.lab
    if lab is None:
        return []
    processors = dict.fromkeys(str(row.result.environment.get("processor", "")) for row in comparison.rows)
    machine = ", ".join(filter(None, processors)) or "an unknown processor"
    cores = sorted({row.result.cores for row in comparison.rows})
    facts = [("Published on", lab.hardware)]
    if cores:
        having = f"{formats.listed([f'{number:g}' for number in cores], 'or')} cores"
        facts.append(("These runs", f"{machine}, {having}; nodes: {describe_nodes(comparison.rows)}"))
    facts += [("Difference", fact) for fact in lab.differences([row.run for row in comparison.rows])]
    if options := ", ".join(overrides(comparison)):
        facts.append(("Overridden", f"by {options}: these are not the published runs"))
    return facts


def overrides(comparison: Comparison) -> list[str]:
    """The options that changed the runs in the sweep file; `--nodes` and `--repeat` only select them."""
    harmless = ("--nodes ", "--repeat ")
    return [option for option in comparison.record.overrides if not option.startswith(harmless)]
