"""What a report opens with: what to choose, and the options with their means and intervals as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.report.findings.decide import Claims, speedup_interval, time_interval
from orchestrator.report.formats import ABSENT, JOIN, points, probability
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.model.labels import Workload
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.quantity import Bounds, Quantity
from orchestrator.report.statistics.spread import span
from orchestrator.report.verdict.candidates import MOST_NAMED, Candidate, same_gradient

MOST = 5  # configurations


@dataclass(frozen=True)
class Option:
    """A configuration to choose. Means as text, with their 95% intervals."""

    name: str  # in findings
    shape: str  # its nodes
    accuracy: str
    difference: str  # of its accuracy from serial's; its interval is that of their comparison
    time: str
    speedup: str  # its interval is that of the comparison with serial
    sent: str  # bytes by a rank
    chance: str = ABSENT  # the probability that it is within the tolerance of the best
    seeds: int = 0
    samples: str = ""  # of a step: `4 × 32`
    state: Literal["", "dropped", "reference"] = ""  # dropped: others got more seeds
    first: bool = False  # whether it is the first that the headline names
    note: str = ""  # whose accuracy counts for it, if that is another one's


@dataclass(frozen=True)
class Verdict:
    """What to choose for a workload."""

    workload: Workload
    headline: str  # one sentence
    certainty: str  # how sure it is, and what it may cost
    decided: bool  # whether it chooses
    options: tuple[Option, ...] = ()  # that the reader chooses between
    shown: str = ""  # how sure the first option is: `97% sure`; empty if that is only whether it is decided
    better: str = ""  # how a better option differs by more than the tolerance: `over 5% faster`


def options(
    view: WorkloadView,
    claims: Claims,
    found: Sequence[Candidate],
    named: Sequence[Candidate],
    serial: Group | None = None,
    time: Quantity = Q.train_s,
    chances: bool = False,
) -> tuple[Option, ...]:
    """The configurations to show: those that the headline names, and the next most probable ones.

    Dropped ones and serial come last.

    Args:
        serial: with which accuracies are compared.
        time: the quantity that is shown as its time.
        chances: whether to show how probable each is.
    """
    rivals = {id(each): each for each in [*named[:MOST_NAMED], *found] if not each.group.serial}
    last = [each for each in found if each.group.serial]
    most = [*rivals.values()][: MOST - len(last)]
    most.sort(key=lambda each: (bool(each.group.dropped), -each.speed.probability))
    return tuple(
        option(
            view,
            each.group,
            claims,
            time,
            _difference_from_serial(each.group, serial, claims),
            probability(each.speed.probability) if chances else ABSENT,
            each is named[0],
            _note(view, each),
        )
        for each in [*most, *last]
    )


def _note(view: WorkloadView, each: Candidate) -> str:
    """The configuration whose accuracy decides its chance, if it is another one."""
    if each.counts_as is each.group or Q.accuracy.mean_of(each.group) == Q.accuracy.mean_of(each.counts_as):
        return ""
    why = "gradient" if same_gradient(each.group, each.counts_as) else "computation"
    return f"counts as {view.name(each.counts_as)}: same {why}"


def _difference_from_serial(group: Group, serial: Group | None, claims: Claims) -> str:
    """`−8.8 points (−24.8 to +2.8)`, with the interval of the comparison in findings, if there is one."""
    if serial is None or group.serial:
        return ABSENT
    found = claims.between(Q.accuracy, group, serial)
    if found is None:
        return measured_difference(serial, group)
    interval = " to ".join(map(Q.accuracy.write_bound, found.interval or ()))
    return Q.accuracy.write_difference(*found.values) + (f" ({interval})" if interval else "")


def measured_difference(serial: Group | None, group: Group) -> str:
    """`−8.8 points`: of the mean accuracy from serial's."""
    if serial is None or group.serial or not (Q.accuracy.sample(serial) and Q.accuracy.sample(group)):
        return ABSENT
    return points(Q.accuracy.mean_of(group) - Q.accuracy.mean_of(serial))


def option(
    view: WorkloadView,
    group: Group,
    claims: Claims,
    time: Quantity = Q.train_s,
    difference: str = ABSENT,
    chance: str = ABSENT,
    first: bool = False,
    note: str = "",
) -> Option:
    """A configuration with its numbers.

    Args:
        time: the quantity that is shown as its time.
        difference: the difference of its accuracy from serial's, as text.
        chance: its probability of being the right choice, as text.
        first: whether it is the first that the headline names.
        note: see `Option`.
    """
    run, seeds = group.first.run, len(group.ok_rows)
    replicas = f"{run.replicas_in_step}{JOIN}×{JOIN}" if run.replicas_in_step > 1 else ""
    return Option(
        view.name(group),
        group.shape.label,
        _mean(group, Q.accuracy, Q.accuracy.interval(group)),
        difference,
        _mean(group, time, time_interval(time, group, claims)),
        ABSENT if group.serial else _mean(group, Q.speedup, speedup_interval(claims, view.serial, group)),
        _mean(group, Q.bytes_sent_per_rank),
        chance,
        seeds,
        f"{replicas}{run.batch_per_replica}",
        "reference" if group.serial else "dropped" if group.dropped else "",
        first,
        note,
    )


def _mean(group: Group, quantity: Quantity, interval: Bounds | None = None) -> str:
    spread = quantity.over(group)
    if spread is None:
        return ABSENT
    return quantity.write(spread.mean) + (f" ({span(*interval, quantity.write)})" if interval else "")
