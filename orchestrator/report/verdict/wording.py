"""Phrases of a verdict. A difference is stated only where the findings decided it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import log

from orchestrator.report.findings.claims import WITHIN_ERROR
from orchestrator.report.formats import count, first_few, listed, percent, points, ratio, seconds
from orchestrator.report.metrics.curves import reached_sooner
from orchestrator.report.metrics.learning import learned
from orchestrator.report.metrics.quantities import ACCURACY, TRAIN_S
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.statistics.power import MOST_SEEDS
from orchestrator.report.verdict.choice import TOLERATED, Choice, loses
from orchestrator.report.verdict.decisions import Decision

MOST_PARTITIONERS = 4  # that are named


class Wording:
    """Phrases about the configurations of a workload."""

    def __init__(self, view: WorkloadView, choice: Choice) -> None:
        self.view = view
        self.choice = choice
        self.claimed = choice.claimed

    @property
    def on(self) -> str:
        """`on 2 nodes over links of 10 Mbit/s, 1 ms`."""
        link = self.view.workload.link
        over = f" over links of {link}" if link and self.view.one_of_many else ""
        return f"on {self.view.shape.label}{over}"

    @property
    def at_start(self) -> str:
        """`On 2 nodes over links of 10 Mbit/s, 1 ms`, as a sentence begins."""
        return f"O{self.on[1:]}"

    @property
    def where(self) -> str:
        """Why the choice is on this number of nodes, as a sentence; empty if there is no other."""
        number = Counter(group.shape for group in self.view.groups if not group.serial)
        most = number.pop(self.view.shape, 0)
        if not number:
            return ""
        where = (
            "where most configurations were run" if most > max(number.values()) else "the largest number"
        )
        return f"Strategies are compared on {self.view.shape.label}, {where}."

    @property
    def left_out(self) -> str:
        """The configurations on this number of nodes that cannot be chosen, and why, as a sentence."""
        reasons: dict[str, list[str]] = {}
        for group in self.view.ranked_candidates:
            if any(group is each for each in self.choice.usable):
                continue
            if len(group.ok_rows) < len(group.rows):
                reason = "not every run finished"
            elif not (group.first.times_compare and TRAIN_S.sample(group)):
                reason = f"no {self.view.clock} time that compares"
            elif any(learned(row) is False for row in group.ok_rows):
                reason = "not every run learned"
            else:
                reason = "too few seeds"
            reasons.setdefault(reason, []).append(self.name(group))
        parts = [f"{first_few(names, 2)} ({reason})" for reason, names in reasons.items()]
        return f"Cannot be chosen: {'; '.join(parts)}." if parts else ""

    @property
    def clock(self) -> str:
        """What the first time of a sentence needs, unless it is wall time."""
        return "" if self.view.clock == "wall" else " in cluster time"

    @property
    def usable(self) -> str:
        """`5 configurations`."""
        return count(len(self.choice.usable), "configuration")

    def name(self, group: Group) -> str:
        """As in findings, without the transport if all configurations have the same."""
        name = self.view.name(group)
        if group.serial or len({other.transport for other in self.choice.usable}) > 1:
            return name
        return name.replace(f" over {group.transport}", "", 1)

    def numbers(self, group: Group, clock: str = "") -> str:
        """`(0.264 s, 88.3%)`: a speed never appears without its accuracy."""
        return f"({seconds(TRAIN_S.mean_of(group))}{clock}, {accuracy(group)})"

    def named(self, group: Group, clock: str = "", note: str = "") -> str:
        """`all_reduce over mpi (measured fastest: 0.305 s, 91.7%)`."""
        numbers = self.numbers(group, clock)
        return f"{self.name(group)} {numbers.replace('(', f'({note}: ', 1) if note else numbers}"

    def against_serial(self, group: Group, serial: Group) -> str:
        """`2.79 times as fast as serial (2.28 to 3.41)`, `18.8 times as long as serial takes (…)`."""
        found = self.claimed.decisions.between(TRAIN_S, group, serial)
        measured = "" if found else "measured "
        if found is None:  # another configuration that does the same work was compared
            found = Decision((TRAIN_S.mean_of(group), TRAIN_S.mean_of(serial)), True, None, "", None)
        if self.claimed.faster(serial, group):
            return f"{measured}{_times(found)} as long as serial{self.clock}{_ratios(found)}"
        return f"{measured}{_times(found.swapped)} as fast as serial{self.clock}{_ratios(found.swapped)}"

    @property
    def serial_took(self) -> str:
        """`; serial took 0.850 s and reached 97.2%`."""
        serial = self.choice.serial
        if serial is None:
            return ""
        return f"; serial took {seconds(TRAIN_S.mean_of(serial))} and reached {accuracy(serial)}"

    def relation_to_serial(self, serial: Group) -> str:
        """What is shown of the best configurations' times against serial's, as a sentence."""
        best = self.choice.best
        faster = sum(self.claimed.faster(group, serial) for group in best)
        slower = sum(self.claimed.faster(serial, group) for group in best)
        if not faster and not slower:
            return "None of them is shown to be faster or slower than serial."
        if faster == 1 < len(best) and not slower:
            (one,) = [group for group in best if self.claimed.faster(group, serial)]
            return f"Of these, only {self.name(one)} is shown to be faster than serial."
        if faster == len(best):
            return f"{'Both' if faster == 2 else 'All'} are shown to be faster than serial."
        parts = [f"{faster} {_be(faster)} shown to be faster than serial"] if faster else []
        parts += [f"{slower} {_be(slower)} shown to be slower than serial"] if slower else []
        return f"Of these, {' and '.join(parts)}."

    def slower_than_serial(self, serial: Group) -> str:
        """How many of the usable configurations are shown to be slower than serial, as a sentence."""
        usable = self.choice.usable
        slower = sum(self.claimed.faster(serial, group) for group in usable)
        if not slower:
            return (
                "It is not shown to be slower, either."
                if len(usable) == 1
                else "None is shown to be slower."
            )
        if len(usable) == 1:
            return "It is shown to be slower."
        which = f"All {slower}" if slower == len(usable) else f"{slower} of {len(usable)}"
        return f"{which} {_be(slower)} shown to be slower than serial."

    @property
    def shown_fastest(self) -> bool:
        """Whether the first of the best is claimed to be faster than all other usable configurations."""
        first = self.choice.fastest
        return all(self.claimed.faster(first, other) for other in self.choice.usable if other is not first)

    @property
    def shown(self) -> str:
        """What is shown of the configuration measured fastest of the best: `slower than serial`."""
        claimed, first, serial = self.claimed, self.choice.fastest, self.choice.serial
        parts = []
        if (number := len(self.choice.usable)) > 1:
            parts.append(f"the fastest of {number}" if self.shown_fastest else "the fastest: undecided")
        if serial is not None:
            faster, slower = claimed.faster(first, serial), claimed.faster(serial, first)
            against = "faster than serial" if faster else "slower than serial" if slower else ""
            parts.append(against or "faster or slower than serial: undecided")
        return "; ".join(parts)

    @property
    def pick(self) -> str:
        """What to choose of the configurations on several nodes, as a main clause."""
        best, first = self.choice.best, self.choice.fastest
        if self.shown_fastest:
            return f"{self.name(first)} is shown to be the fastest {self.numbers(first)}"
        if len(best) == 1:
            return f"the choice is {self.named(first)}"
        # Those that lose accuracy may be faster.
        those = "" if first is self.choice.usable[0] else " of those not shown to lose accuracy"
        return (
            f"{self.name(first)} {self.numbers(first)} was measured fastest{those}, but that is undecided"
        )

    def excluded(self, group: Group) -> str:
        """Why the other configurations are not chosen, as a sentence."""
        others = [other for other in self.choice.usable if other is not group]
        if not others:
            return ""
        slower = [other for other in others if self.claimed.faster(group, other)]
        worse = [
            other
            for other in others
            if self.claimed.more_accurate(group, other) and not self.claimed.faster(group, other)
        ]
        counted = {id(other) for other in [*slower, *worse]}
        rest = [other for other in others if id(other) not in counted]
        shown = {"slower": slower, "less accurate": worse, "worse than serial or another": rest}
        parts = [
            f"{self.name(found[0]) if len(found) == 1 else len(found)} {_be(len(found))} shown to be {what}"
            for what, found in shown.items()
            if found
        ]
        if len(others) == 1:
            return f"{parts[0]}."
        if len(parts) == 1:
            (what,) = (what for what, found in shown.items() if found)
            which = "Both" if len(others) == 2 else f"All {len(others)}"
            return f"{which} other configurations are shown to be {what}."
        return f"Of {count(len(others), 'other configuration')}, {listed(parts)}."

    @property
    def sooner(self) -> str:
        """Who was as accurate in less time than the first of the best takes, as a sentence."""
        choice, first = self.choice, self.choice.fastest
        found = reached_sooner(first, [*choice.usable, *([choice.serial] if choice.serial else [])])
        if choice.stay or found is None:
            return ""
        rival, point = found
        reached, at = percent(point.accuracy.mean), seconds(point.train_s)
        return (
            f"As measured, {self.name(rival)} reached {reached} in {at}, after "
            f"{count(point.epoch, 'epoch')}: sooner than {self.name(first)}."
        )

    def tempting(self, group: Group) -> str:
        """The configurations that are claimed to be faster than a group, and to lose accuracy."""
        references = [*self.choice.usable, *([self.choice.serial] if self.choice.serial else [])]
        found = [
            other
            for other in self.choice.usable
            if not any(other is each for each in self.choice.best)
            and self.claimed.faster(other, group)
            and any(loses(other, reference, self.claimed) for reference in references)
        ]
        named = first_few([self.named(other) for other in found], 2) if found else ""
        return f"Faster, but shown to lose accuracy: {named}." if found else ""

    def losses(self, groups: Sequence[Group]) -> dict[str, Decision]:
        """By name, the undecided comparisons with serial in which groups were measured less accurate."""
        serial = self.choice.serial
        found = {self.name(group): self.claimed.accuracy(group, serial) for group in groups if serial}
        return {
            name: each
            for name, each in found.items()
            if each and each.verdict == "undecided" and -each.difference > TOLERATED
        }

    @property
    def partitioners(self) -> str:
        """Which partitioners change accuracy, where not all are ranked, as a sentence."""
        view, changed = self.view, {"less": dict[str, None](), "more": dict[str, None]()}
        undecided = list[tuple[Decision, str]]()
        if not view.of_ranked:
            return ""
        for group in self.choice.best:
            for other in view.candidates:
                if other.line[:2] != group.line[:2] or other.partitioner_label == group.partitioner_label:
                    continue
                found = self.claimed.accuracy(other, group)
                if found and found.decided:
                    changed[found.verdict][other.partitioner_label] = None
                elif found and -found.difference > TOLERATED:
                    undecided.append((found, f"{other.partitioner_label}, {other.strategy_label}"))
        parts = [
            f"{what} with {first_few([*labels], MOST_PARTITIONERS)}"
            for what, labels in (("lower", changed["less"]), ("higher", changed["more"]))
            if labels
        ]
        text = f"All this is with {view.partitioners[0]}; "
        if parts:
            text += f"accuracy is shown to be {' and '.join(parts)}"
        elif not undecided:
            text += "no other partitioner is shown to change accuracy"
        if undecided:
            most, which = min(undecided, key=lambda item: item[0].difference)
            loss = f"measured losses of up to {points(most.difference)} ({which})"
            text += f"; undecided are {loss}" if parts else f"undecided are {loss}"
            text += f"; {count(most.seeds, 'seed')} would probably decide" if most.seeds else ""
        return f"{text}."


def accuracy(group: Group) -> str:
    """The mean test accuracy."""
    return percent(ACCURACY.mean_of(group))


Open = tuple[Iterable[Decision | None], str]  # comparisons, and what they leave open, `which is faster`


def seeds_needed(*open_: Open) -> str:
    """How many seeds would probably decide what is undecided, as sentences; empty if all is decided."""
    within, beyond, hidden = list[tuple[int, str]](), list[str](), list[str]()
    for comparisons, question in open_:
        undecided = [found for found in comparisons if found and found.verdict == "undecided"]
        known = [found.seeds for found in undecided if found.seeds]
        if known:
            whole = len(known) == len(undecided)
            within.append((max(known), question if whole else f"a part of {question}"))
        elif any(found.open_because == WITHIN_ERROR for found in undecided):
            hidden.append(question)
        elif undecided:
            beyond.append(question)
    sentences = []
    if within:
        (seeds, question), *others = within
        first = (
            f"{count(seeds, 'seed')} per configuration (--repeat {seeds}) would probably decide {question}"
        )
        rest = [f"{count(seeds, 'seed')} {question}" for seeds, question in others]
        sentences.append(f"If the differences are as measured, {listed([first, *rest])}.")
    if beyond:
        sentences.append(f"More than {MOST_SEEDS} seeds would be needed to decide {listed(beyond, 'or')}.")
    if hidden:
        what = listed(hidden, "or")
        sentences.append(f"More seeds would not decide {what}: the error of cluster time may be as large.")
    return " ".join(sentences)


def points_between(found: Decision) -> str:
    """` (−10.8 to −0.4)`: the interval of a difference in accuracy, in points."""
    return _between(found, ACCURACY.write_bound)


def interval_in_points(found: Decision) -> str:
    """`−10.8 to −0.4`; empty with too few seeds."""
    return _written(found, ACCURACY.write_bound)


def _times(found: Decision) -> str:
    return f"{ratio(found.values[0] / found.values[1])} times"


def _ratios(found: Decision) -> str:
    return _between(found, lambda bound: TRAIN_S.write_bound(log(bound)))


def _between(found: Decision, write: Callable[[float], str]) -> str:
    undecided = "" if found.decided else f": {found.open_because}"
    return f" ({_written(found, write)}{undecided})" if found.interval else ""


def _written(found: Decision, write: Callable[[float], str]) -> str:
    return f"{write(found.interval[0])} to {write(found.interval[1])}" if found.interval else ""


def _be(number: int) -> str:
    return "is" if number == 1 else "are"
