"""The sentence that a report shows with a figure.

It is the first sentence of the finding that the figure shows. Where there is none, it reports means, and
calls them measured or those of cluster time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import count, percent, seconds
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Quantity


@dataclass(frozen=True)
class Shown:
    """A workload, and the keys of its runs that have not learned, whose speed is worth nothing."""

    view: WorkloadView
    unlearned: frozenset[str] = frozenset()

    def learned(self, groups: Sequence[Group]) -> list[Group]:
        return [group for group in groups if not any(row.key in self.unlearned for row in group.rows)]

    def head(self, groups: Sequence[Group], what: str, timed: bool) -> str:
        """`Measured fastest`, `Fastest in cluster time, among those that learned`: of what means are taken.

        Cluster time is computed, so what is read from it was not measured.
        """
        in_cluster_time = timed and self.view.clock == "cluster"
        text = (f"{what} in cluster time" if in_cluster_time else f"measured {what}").strip()
        among = ", among those that learned" if len(self.learned(groups)) < len(groups) else ""
        return f"{text[0].upper()}{text[1:]}{among}"


def figure_sentence(
    shows: Sequence[str], otherwise: Callable[[Shown], str], view: WorkloadView, findings: Sequence[Finding]
) -> str:
    """What a figure shows of a workload; empty if there is nothing to say.

    Args:
        shows, otherwise: see FigureKind.
        findings: the findings of the whole report.
    """
    keys = {row.key for group in view.groups for row in group.rows}
    about = [(found, {row.key for row in found.rows}) for found in findings if found.rows]
    own = [found for found, rows in about if rows <= keys]
    others = [found for found, rows in about if rows & keys and not rows <= keys]
    for kind in shows:
        for found in [*own, *others]:
            if found.kind == kind:
                return found.first_sentence
    unlearned = frozenset(row.key for found in own if found.kind == "not_learned" for row in found.rows)
    return otherwise(Shown(view, unlearned))


def no_sentence(shown: Shown) -> str:
    return ""


def measured(quantity: Quantity) -> Callable[[Shown], str]:
    """`Measured on 4 nodes: test accuracy from 50.0% (ddp over gloo) to 90.0% (all_reduce over mpi).`"""

    def sentence(shown: Shown) -> str:
        view = shown.view
        groups, at = view.ranked_candidates, f"on {view.shape.label}"
        if not any(quantity.over(group) for group in groups):
            groups, at = [group for group in view.line_groups if not group.serial], ""
        known = [
            (spread.mean, group) for group in shown.learned(groups) if (spread := quantity.over(group))
        ]
        title = quantity.title
        what = title if title[:2].isupper() else f"{title[0].lower()}{title[1:]}"
        if not known:
            return _none_of(what, shown, groups)

        def end(mean: float, group: Group) -> str:
            known = quantity.timed and Q.accuracy.over(group)
            accuracy = f", {percent(known.mean)}" if known else ""
            name = view.name(group) if at else view.name_on(group)
            return f"{quantity.write(mean)} ({name}{accuracy})"

        known.sort(key=lambda each: each[0])
        least, most = known[0], known[-1]
        timed = quantity.timed or any(
            quantity.of(row) != quantity.of(row.wall) for _, group in known for row in group.ok_rows
        )
        head = f"{shown.head(groups, at, timed)}: {what}"
        if least is most:
            return f"{head} {end(*least)}."
        if quantity.write(least[0]) == quantity.write(most[0]):
            return f"{head} {quantity.write(least[0])} in each of {count(len(known), 'configuration')}."
        return f"{head} from {end(*least)} to {end(*most)}."

    return sentence


def _none_of(what: str, shown: Shown, groups: Sequence[Group]) -> str:
    """Why there is no value to report: none was measured, or none of what learned with every seed."""
    if not groups or len(shown.learned(groups)) == len(groups):
        return f"No {what} was measured."
    if shown.learned(groups):
        return f"No {what} was measured of those that learned with every seed."
    return f"No configuration learned with every seed, so no {what} is compared."


def _written(group: Group) -> str:
    """The accuracy of a group as it is written: `88.1%`."""
    return percent(Q.accuracy.mean_of(group))


def fastest_and_most_accurate(
    groups_of: Callable[[WorkloadView], Sequence[Group]],
) -> Callable[[Shown], str]:
    """`Measured fastest: ddp over gloo on 2 nodes, 88.1% after 3.20 s; most accurate: …`"""

    def sentence(shown: Shown) -> str:
        groups = groups_of(shown.view)
        known = [
            group
            for group in shown.learned(groups)
            if Q.accuracy.sample(group) and Q.train_s.sample(group) and group.first.times_compare
        ]
        if not known:
            return ""
        ends = min(known, key=Q.train_s.mean_of), max(known, key=Q.accuracy.mean_of)
        first, most = (
            f"{shown.view.name_on(group)}, {_written(group)} after {seconds(Q.train_s.mean_of(group))}"
            for group in ends
        )
        head = shown.head(groups, "fastest", timed=True)
        if _written(ends[0]) == _written(ends[1]):
            return f"{head}, at the highest accuracy: {first}."
        same = [each for each in known if each is not ends[1] and _written(each) == _written(ends[1])]
        verb = "is" if len(same) == 1 else "are"
        alike = f"; {count(len(same), 'other configuration')} {verb} as accurate" if same else ""
        return f"{head}: {first}; most accurate: {most}{alike}."

    return sentence
