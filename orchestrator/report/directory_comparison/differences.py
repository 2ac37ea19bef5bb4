"""The configurations that results directories have in common, and how they differ in time and accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.report.findings.decide import Ask, Compared, decide
from orchestrator.report.formats import ABSENT, first_few, listed
from orchestrator.report.metrics.estimates import clock_errors
from orchestrator.report.model.comparison import Comparison, read_comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.model.rows import Clock
from orchestrator.report.quantities import Q
from orchestrator.report.render.appendix import facts_of
from orchestrator.report.render.workloads import workload_names
from orchestrator.report.statistics.chances import Tolerance
from orchestrator.results.store import SweepPaths
from trainer.core.registry import IMPORTED
from trainer.spec.registries import REGISTRIES

IDENTITIES = {"code": "code", "data": "samples"}  # of a user's component, and what their digests are of


@dataclass(frozen=True)
class Difference:
    """A configuration of the reference that another directory has, too.

    name: its workload, strategy and nodes, as text. directory: the other. reference, other: its runs, with
    times on one clock. At least one side has a finished run. time, accuracy: the other on the left; None if
    a side has no such value.
    """

    name: str
    directory: str
    reference: Group
    other: Group
    time: Compared | None
    accuracy: Compared | None

    @property
    def clock(self) -> Clock:
        return self.other.first.clock


@dataclass(frozen=True)
class Directories:
    """Several results directories. The first is the reference.

    names: of the directories. differences: what a directory has in common with the reference. alone: the
    configurations that a directory does not share, by directory; for the reference, those that no other
    has. missing: the configurations that finished in the reference and are not in a directory, by
    directory. facts: those of machine and software, users' code included, in which the directories differ,
    by name, one value per directory.
    """

    names: tuple[str, ...]
    differences: list[Difference]
    alone: dict[str, list[str]]
    missing: dict[str, list[str]]
    facts: dict[str, tuple[str, ...]]


def read_directories(directories: Sequence[Path]) -> Directories:
    """Compare results directories, the reference first. Raises InputError if no other has runs of it."""
    names = [str(directory) for directory in directories]
    if len({directory.resolve() for directory in directories}) < len(directories):
        raise InputError(f"{', '.join(names)}: a directory is named twice")
    comparisons = [read_comparison(SweepPaths(directory)) for directory in directories]
    reference, *others = [_configurations(comparison) for comparison in comparisons]
    partners = dict(zip(names[1:], (_partners(reference, other) for other in others), strict=True))
    found = [
        (each.name, name, *_on_one_clock(each.group, other.group))
        for name, matched in partners.items()
        for each, other in matched.items()
        if each.group.ok or other.group.ok
    ]
    codes = [_codes(configurations) for configurations in (reference, *others)]
    if not found:
        raise InputError(
            f"{names[0]} has no finished configuration in common with {first_few(names[1:])}; a "
            f"configuration is a run without its seed{_versions(names, codes)}"
        )
    shared = {each for matched in partners.values() for each in matched}
    alone = {names[0]: [each.name for each in reference if each not in shared]}
    missing = {}
    for (name, matched), other in zip(partners.items(), others, strict=True):
        alone[name] = [each.name for each in other if each not in matched.values()]
        missing[name] = [each.name for each in reference if each.group.ok and each not in matched]
    facts = [
        {fact.name: fact.text for facts in facts_of(each).values() for fact in facts}
        for each in comparisons
    ]
    versions = [{what: ", ".join(digests) for what, digests in each.items()} for each in codes]
    return Directories(
        tuple(names),
        _compared(found, comparisons),
        {name: labels for name, labels in alone.items() if labels},
        missing,
        _different(facts, absent_differs=True) | _different(versions, absent_differs=False),
    )


def _compared(
    found: Sequence[tuple[str, str, Group, Group]], comparisons: Sequence[Comparison]
) -> list[Difference]:
    """Compare every match.

    All comparisons of a quantity are corrected together, so that at most 5 % of comparisons of directories
    whose runs are equal claim a difference. Times do not compare if a node was restarted, say.
    """
    pairs = [(other, reference) for _, _, reference, other in found]
    timed = [pair for pair in pairs if all(row.times_compare for group in pair for row in group.ok_rows)]
    errors: dict[Workload, float] = {}
    for workload, error in (item for each in comparisons for item in clock_errors(each).items()):
        errors[workload] = max(errors.get(workload, 0.0), error)
    asks = [Ask.of(Q.train_s, timed, of_sweep=True), Ask.of(Q.accuracy, pairs, of_sweep=True)]
    claims = decide(asks, errors, Tolerance())
    return [
        Difference(*match, *(claims.between(each.quantity, *pair) for each in asks))
        for match, pair in zip(found, pairs, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class _Configuration:
    """name: its text. exact: what defines it. named: the same without the digests of users' components."""

    name: str
    exact: str
    named: str
    group: Group


def _configurations(comparison: Comparison) -> list[_Configuration]:
    workloads = workload_names(comparison.workloads)
    found = []
    for group in comparison.groups:
        parts = [
            group.name,
            group.partitioner_label,
            group.shape.label,
            workloads.of(group.workload) if group.first.trains else "",
            group.first.location,
            group.workload.faults,
            group.first.run.byzantine_label,
        ]
        exact = group.first.configuration()
        named = group.first.configuration(*(f"{field}.{IMPORTED}" for field in REGISTRIES))
        found.append(_Configuration(", ".join(filter(None, parts)), exact, named, group))
    return found


def _partners(
    reference: Sequence[_Configuration], other: Sequence[_Configuration]
) -> dict[_Configuration, _Configuration]:
    """The same configuration of the other directory, by that of the reference.

    Users' components are the same if their code is, or if each directory has one version of that name.
    """
    exact = {each.exact: each for each in other}
    named = {each.named: each for each in other}
    versions = [Counter(each.named for each in configurations) for configurations in (reference, other)]
    for each in reference:
        if all(count[each.named] == 1 for count in versions):
            exact.setdefault(each.exact, named[each.named])
    return {each: exact[each.exact] for each in reference if each.exact in exact}


def _codes(configurations: Sequence[_Configuration]) -> dict[str, list[str]]:
    """The digests of its versions in a directory, by text such as `code of model mine.py:Net`."""
    found: dict[str, dict[str, None]] = {}
    for each in configurations:
        for field, form in each.group.first.canonical.items():
            for kind, digest in form.get(IMPORTED, {}).items() if isinstance(form, dict) else ():
                what = f"{IDENTITIES[kind]} of {field} {form['name']}"
                found.setdefault(what, {})[digest] = None
    return {what: sorted(digests) for what, digests in found.items()}


def _versions(names: Sequence[str], codes: Sequence[dict[str, list[str]]]) -> str:
    """Which components a directory has in several versions, so that names do not match; or nothing."""
    several = [
        f"{name} has {len(digests)} versions of the {what}"
        for name, each in zip(names, codes, strict=True)
        for what, digests in each.items()
        if len(digests) > 1
    ]
    return f"; {listed(several)}, so only equal versions match" if several else ""


def _on_one_clock(one: Group, other: Group) -> tuple[Group, Group]:
    """Both on the clock that they have in common: their own, or else the wall clock.

    Virtual nodes have no wall clock, so others are compared with them in cluster time.
    """
    if one.first.clock == other.first.clock:
        return one, other
    clock: Clock = "cluster" if one.first.is_virtual or other.first.is_virtual else "wall"
    return one.on(clock), other.on(clock)


def _different(known: Sequence[Mapping[str, str]], absent_differs: bool) -> dict[str, tuple[str, ...]]:
    """What differs, by name, one value per directory. absent_differs: whether what one alone has does."""
    names = dict.fromkeys(name for each in known for name in each)
    values = {name: tuple(each.get(name, ABSENT) for each in known) for name in names}
    return {
        name: each
        for name, each in values.items()
        if len({value for value in each if absent_differs or value != ABSENT}) > 1
    }
