"""The verdict on a lab: whether the published results are reproduced, and what explains them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.report.findings.decide import Claims, Compared
from orchestrator.report.findings.sentences import Data, sentence
from orchestrator.report.metrics.published import PublishedLine, name_of_runs, overrides, published_lines
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.groups import Group
from orchestrator.report.quantities import Q
from orchestrator.report.quantities.learning import seeds_at_target
from orchestrator.report.quantities.model_partition import (
    ACTIVATIONS_OF_SERIAL,
    SENT_OF_WEIGHTS,
    STATE_OF_SERIAL,
)
from orchestrator.report.quantities.quantity import Quantity
from orchestrator.report.topics.published import Ablated, ablated, ablation
from orchestrator.report.topics.textbook_optimizers import TOLERANCE, optimizer_pairs
from orchestrator.report.verdict.base import Verdict
from orchestrator.report.verdict.options import MOST, measured_difference, option

REPRODUCED = 0.01  # how far an accuracy may be off the published one
ROUNDING = 1e-9  # of a difference of two floating-point numbers


@dataclass(frozen=True)
class _Ratio:
    """A published figure that the headline divides ours by. complete: whether all seeds have a value."""

    name: str
    quantity: Quantity
    complete: Callable[[Group], bool] = lambda group: True


_RATIOS = (
    _Ratio("rounds_to_target", Q.rounds_to_target, lambda group: len({*seeds_at_target(group)}) == 1),
    _Ratio("bubble", Q.bubble_share),
    _Ratio("activations", ACTIVATIONS_OF_SERIAL),
    _Ratio("state", STATE_OF_SERIAL),
    _Ratio("sent", SENT_OF_WEIGHTS),
    _Ratio("exchange_share", Q.exchange_share),
)


def of_lab(comparison: Comparison, claims: Claims) -> Verdict | None:
    """Whether published accuracies are reproduced; without any, what the lab's ablation shows."""
    if comparison.record.lab is None or not comparison.workloads:
        return None
    complete = [each for each in ablated(comparison) if not each.lacking]
    largest = max(complete, key=lambda each: each.nodes, default=None)  # the first of equals
    compared = claims.answer(largest.ask).compared if largest else []
    lines = [line for line in published_lines(comparison) if line.measured]
    known = [found for line in lines if (found := _beside(comparison, line))]
    groups = [line.measured for line in lines if line.measured]
    workload = groups[0].workload if groups else comparison.workloads[0]
    workload = workload if workload in comparison.workloads else comparison.workloads[0]
    if known and not overrides(comparison):
        worst = max(known, key=lambda each: each["off"])
        headline = sentence(
            "reproduced", {"of": len(known), "same": sum(map(_same, known)), "worst": worst}
        )
        decided = all(each["interval"] for each in known)
    elif (ratios := _ratios(lines)) and not overrides(comparison):
        headline, decided = sentence("by_published", {"ratios": ratios}), False
    elif largest:
        headline, decided = ablation(largest, compared).first_sentence, compared[-1].decided
    else:
        return None
    view = comparison.view(workload)
    options = tuple(
        option(view, group, claims, difference=measured_difference(view.serial, group))
        for group in _distinct(groups)[:MOST]
    )
    return Verdict(workload, headline, sentence("causes", _causes(largest, compared)), decided, options)


def _beside(comparison: Comparison, line: PublishedLine) -> Data | None:
    """A published accuracy, or its change from one node, beside ours; None if either is unknown."""
    published, measured, change = line.published, line.mean(lambda row: row.accuracy), False
    if line.measured is None or measured is None:
        return None
    value, interval = published.accuracy, Q.accuracy.interval(line.measured)
    if value is None:
        value, measured, interval, change = published.accuracy_change, line.accuracy_change, None, True
    if value is None or measured is None:
        return None
    return {
        "name": name_of_runs(line.block, comparison.name_on(line.measured), published.runs),
        "published": value,
        "measured": measured,
        "off": abs(measured - value),
        "interval": interval,
        "change": change,
    }


def _same(each: Data) -> bool:
    interval = each["interval"]
    within = interval is not None and interval[0] <= each["published"] <= interval[1]
    return bool(within or each["off"] <= REPRODUCED + ROUNDING)


def _ratios(lines: Sequence[PublishedLine]) -> dict[str, list[tuple[float, str]]]:
    """How many times the published figures ours are, the least and the most, with their runs."""
    found = {}
    for figure in _RATIOS:
        known = [
            (measured / published, f"{line.block}, {line.runs}")
            for line in lines
            if (published := getattr(line.published, figure.name))
            and line.measured
            and figure.complete(line.measured)
            and (measured := line.mean(figure.quantity.of))
        ]
        if known:
            found[figure.name] = [min(known)] if len(known) == 1 else [min(known), max(known)]
    return found


def _causes(found: Ablated | None, compared: Sequence[Compared]) -> Data:
    """The changes of an ablation, and what each of them does."""
    if found is None:
        return {"changes": []}
    differences = compared[: len(found.fixes)]
    changes = [
        {"fixes": fixes, "compared": each.data()}
        for fixes, each in zip(found.fixes, differences, strict=True)
    ]
    return {"nodes": found.nodes, "changes": changes}


def of_textbook_optimizers(comparison: Comparison) -> Verdict | None:
    """Whether textbook optimizers have the library's loss curves, in a sweep that compares nothing else."""
    off = [
        (pair, difference)
        for pair in optimizer_pairs(comparison)
        if (difference := pair.max_difference) is not None
    ]
    if not off or any(comparison.view(workload).candidates for workload in comparison.workloads):
        return None
    data = {
        "settings": len(off),
        "names": list(dict.fromkeys(pair.names[0] for pair, _ in off)),
        "different": list(dict.fromkeys(pair.names[0] for pair, each in off if each > TOLERANCE)),
        "max_difference": max(difference for _, difference in off),
        "tolerance": TOLERANCE,
        "seeds": min(len(pair.runs) for pair, _ in off),
    }
    headline, certainty = sentence("textbook", data), sentence("textbook_certainty", data)
    return Verdict(comparison.workloads[0], headline, certainty, decided=True)


def _distinct(groups: Sequence[Group]) -> list[Group]:
    return [group for at, group in enumerate(groups) if not any(group is other for other in groups[:at])]
