"""The verdict on a workload whose strategies are compared in accuracy and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import count, listed, points
from orchestrator.report.metrics.quantities import ACCURACY
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.groups import Group
from orchestrator.report.statistics.contrasts import MIN_SEEDS
from orchestrator.report.verdict.base import Verdict
from orchestrator.report.verdict.choice import TOLERATED, choose
from orchestrator.report.verdict.decisions import Decision, Decisions
from orchestrator.report.verdict.nodes import node_count
from orchestrator.report.verdict.options import options
from orchestrator.report.verdict.wording import Open, Wording, accuracy, points_between, seeds_needed

MOST_NAMED = 3  # configurations in a headline
Parts = tuple[str, list[str], bool]  # the headline, sentences on its certainty, and whether it is decided


def among_strategies(view: WorkloadView, findings: Sequence[Finding], decisions: Decisions) -> Verdict:
    """What to choose among the strategies of a workload without a target accuracy and faults."""
    unlearned = {row.key for finding in findings if finding.kind == "not_learned" for row in finding.rows}
    choice = choose(view, decisions, unlearned)
    if not choice.usable:
        return Verdict(view.workload, _nothing(view), "No choice is claimed.", decided=False)
    wording = Wording(view, choice)
    if all(len(group.ok_rows) < MIN_SEEDS for group in choice.usable):
        headline, certainty, decided = _too_few_seeds(wording)
    elif choice.serial and choice.stay:
        headline, certainty, decided = _stay(wording, choice.serial)
    elif choice.serial and choice.gains_nothing:
        headline, certainty, decided = _no_gain(wording, choice.serial, findings)
    elif len(choice.best) > 1:
        headline, certainty, decided = _between(wording, findings)
    elif choice.serial:
        headline, certainty, decided = _chosen(wording, choice.serial, findings)
    else:
        headline, certainty, decided = _without_serial(wording, findings)
    text = " ".join(filter(None, [*certainty, wording.sooner, wording.left_out, wording.where]))
    return Verdict(view.workload, headline, text, decided, options(view, choice), wording.shown)


def _nothing(view: WorkloadView) -> str:
    tried = view.ranked_candidates
    if not tried:
        return "There is nothing to choose from: only serial has results."
    return (
        f"There is nothing to choose from: no configuration on {view.shape.label} finished every run, "
        "learned, and has a time that compares."
    )


def _too_few_seeds(wording: Wording) -> Parts:
    choice = wording.choice
    seeds = max(len(group.ok_rows) for group in choice.usable)
    of = f"of {wording.usable} {wording.on}, " if len(choice.usable) > 1 else ""
    on = "" if of else f" {wording.on}"
    measured = "was measured fastest" if of else "was measured"
    first = choice.fastest
    return (
        f"Too few seeds to choose: {of}{wording.name(first)}{on} {measured} "
        f"{wording.numbers(first, wording.clock)}{wording.serial_took}.",
        [
            f"{count(seeds, 'seed')} per configuration: nothing is shown with fewer than "
            f"{MIN_SEEDS}. Run the sweep again with --repeat 5."
        ],
        False,
    )


def _stay(wording: Wording, serial: Group) -> Parts:
    """Serial is shown to be better than every configuration that claims leave."""
    choice, first = wording.choice, wording.choice.fastest
    if len(choice.usable) == 1:
        how = (
            "slower"
            if wording.claimed.faster(serial, first)
            else "less accurate, and was measured no faster"
        )
        text = f"{wording.named(first)} {wording.on} is shown to be {how}"
    else:
        claimed, usable = wording.claimed, choice.usable
        slower = [group for group in usable if claimed.faster(serial, group)]
        worse = [
            group
            for group in usable
            if claimed.faster(serial, group) or claimed.more_accurate(serial, group)
        ]
        how = "slower" if len(slower) == len(worse) else "slower or less accurate"
        number = f"all {len(worse)}" if len(worse) == len(usable) else f"{len(worse)} of {len(usable)}"
        text = f"{number} configurations {wording.on} are shown to be {how}; of these, {wording.pick}"
    return (
        f"Stay with serial {wording.numbers(serial, wording.clock)}: {text}.",
        [f"{wording.name(first)} takes {wording.against_serial(first, serial)}.", wording.partitioners],
        True,
    )


def _no_gain(wording: Wording, serial: Group, findings: Sequence[Finding]) -> Parts:
    """Nothing is shown to be better than serial without a loss, nor serial to be the better choice."""
    choice, first, claimed = wording.choice, wording.choice.fastest, wording.claimed
    name, reference = wording.name(first), wording.numbers(serial)
    own = wording.numbers(first, wording.clock)
    if len(choice.usable) == 1:
        text = f"{name} {wording.on} {own} is not shown to be faster than serial {reference}"
    elif any(claimed.faster(group, serial) for group in choice.usable):
        text = (
            f"{wording.at_start}, none of {wording.usable} is shown to be faster than serial "
            f"{reference} without losing accuracy; of the others, {wording.pick}"
        )
    elif wording.shown_fastest:
        text = (
            f"{wording.at_start}, {name} is shown to be the fastest of {wording.usable} {own}, but "
            f"not to be faster than serial {reference}"
        )
    else:
        text = (
            f"{wording.at_start}, none of {wording.usable} is shown to be faster than serial "
            f"{reference}; of these, {wording.pick}"
        )
    times = [claimed.time(first, serial)]
    certainty = [wording.slower_than_serial(serial), wording.tempting(serial)]
    question = f"whether {name} is faster or slower than serial"
    certainty += [
        seeds_needed((times, question)) or seeds_needed(_open(wording)),
        _nodes(wording, first, findings),
    ]
    return f"{text}.", [*certainty, wording.partitioners], False


def _between(wording: Wording, findings: Sequence[Finding]) -> Parts:
    """Claims leave several configurations."""
    claimed, choice = wording.claimed, wording.choice
    best, first, exact = choice.best, choice.fastest, choice.most_accurate
    others = [group for group in best if group is not first]
    name = wording.name(first)
    certainty = [wording.relation_to_serial(choice.serial) if choice.serial else ""]
    losses = wording.losses([first, *([exact] if exact is not first else [])])
    undecided = _undecided_losses(losses)
    serial_took = f"{wording.serial_took}{undecided}"
    which = f"{next(iter(losses))} is" if len(losses) == 1 else "these are"
    question = f"whether {which} less accurate than serial"
    certainty += [seeds_needed((losses.values(), question), _open(wording))]
    certainty += [_nodes(wording, first, findings), wording.partitioners]
    # Who may have lost accuracy is no choice for speed.
    faster = all(claimed.faster(first, other) for other in others)
    if faster and not losses:
        alone = len(others) == 1
        which = wording.named(exact) if alone else f"others, such as {wording.named(exact)},"
        headline = (
            f"For speed, choose {name} {wording.on} {wording.numbers(first, wording.clock)}; "
            f"whether {which} {'is' if alone else 'are'} more accurate is undecided"
            f"{_fewer(wording, first, findings)}{serial_took}."
        )
        return headline, certainty, False
    rest = [group for group in best if group is not first and group is not exact]
    fastest, most = ("faster", "more") if len(best) == 2 else ("fastest of these", "most")
    if exact is first:
        names = [wording.named(first, wording.clock, f"{fastest} and {most} accurate as measured")]
    else:
        names = [
            wording.named(
                first, wording.clock, f"shown to be {fastest}" if faster else f"{fastest} as measured"
            ),
            wording.named(exact, note=f"{most} accurate as measured"),
        ]
        certainty.insert(-1, _nodes(wording, exact, findings))
    named = rest[: MOST_NAMED - len(names)]
    unnamed = len(rest) - len(named)
    names += [*map(wording.named, named), *([f"{unnamed} more"] if unnamed else [])]
    headline = f"{wording.at_start}, this sweep does not decide between {listed(names)}"
    return f"{headline}{serial_took}.", list(dict.fromkeys(certainty)), False


def _undecided_losses(losses: Mapping[str, Decision]) -> str:
    """`: whether these lose accuracy (−8.8 points and −5.4 points as measured) is undecided`."""
    if not losses:
        return ""
    lost = listed([points(found.difference) for found in losses.values()])
    which = f"{next(iter(losses))} loses" if len(losses) == 1 else "these lose"
    return f": whether {which} accuracy ({lost} as measured) is undecided"


def _open(wording: Wording) -> Open:
    """What is undecided between the configurations that claims leave."""
    claimed, first = wording.claimed, wording.choice.fastest
    others = [other for other in wording.choice.best if other is not first]
    times = [claimed.time(other, first) for other in others if not claimed.faster(first, other)]
    accuracies = [claimed.accuracy(other, first) for other in others if claimed.faster(first, other)]
    if times and any(times):
        return times, "which is faster"
    return accuracies, "which is more accurate"


def _chosen(wording: Wording, serial: Group, findings: Sequence[Finding]) -> Parts:
    """Claims leave one configuration, and serial to compare it with."""
    claimed, group = wording.claimed, wording.choice.fastest
    found = claimed.accuracy(group, serial)
    lost = ACCURACY.mean_of(serial) - ACCURACY.mean_of(group)
    name, on = wording.name(group), wording.on
    certainty = [wording.excluded(group), wording.tempting(group), _nodes(wording, group, findings)]
    certainty += [wording.partitioners]
    fewer = _fewer(wording, group, findings)
    speed, own, reference = wording.against_serial(group, serial), accuracy(group), accuracy(serial)
    if not claimed.faster(group, serial):
        text = f"For accuracy, choose {name} {on}: {own} instead of serial's {reference}"
        return f"{text}{_difference(found)}, {speed}{fewer}.", certainty, True
    if found and found.verdict == "less":
        verb = "For speed, choose" if lost > TOLERATED else "Choose"
        text = f"{verb} {name} {on}: {speed}, at {own} accuracy instead of serial's {reference}"
        return f"{text}{_difference(found)}{fewer}.", certainty, True
    if lost > TOLERATED:
        text = f"For speed, choose {name} {on}: {speed}; whether its accuracy of {own} is below serial's "
        return (
            f"{text}{reference} is undecided{fewer}.",
            [*certainty, seeds_needed(([found], "whether it is less accurate"))],
            False,
        )
    return f"Choose {name} {on}: {speed}, at {own} accuracy (serial {reference}){fewer}.", certainty, True


def _without_serial(wording: Wording, findings: Sequence[Finding]) -> Parts:
    """Claims leave one configuration, and there is no serial run to compare it with."""
    group = wording.choice.fastest
    alone = len(wording.choice.usable) == 1
    certainty = [wording.excluded(group), wording.tempting(group), _nodes(wording, group, findings)]
    head = "There is nothing to choose between: only" if alone else "Choose"
    tail = "was compared" if alone else "without a serial run, its speedup is unknown"
    return (
        f"{head} {wording.name(group)} {wording.on} {wording.numbers(group, wording.clock)}"
        f"{' ' if alone else '; '}{tail}{_fewer(wording, group, findings)}.",
        [*certainty, wording.partitioners],
        not alone,
    )


def _nodes(wording: Wording, group: Group, findings: Sequence[Finding]) -> str:
    return node_count(wording.view, group, wording.name(group), findings).text


def _fewer(wording: Wording, group: Group, findings: Sequence[Finding]) -> str:
    """What a headline says if a configuration is shown to be slower than on fewer nodes."""
    fewer = node_count(wording.view, group, wording.name(group), findings).fewer
    return (
        f"; on {fewer.shape.label} it is shown to be faster still {wording.numbers(fewer)}" if fewer else ""
    )


def _difference(found: Decision | None) -> str:
    """` (+2.1 points, +0.9 to +3.3)`."""
    return f" ({points(found.difference)},{points_between(found).replace('(', '', 1)}" if found else ""
