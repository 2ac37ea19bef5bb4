"""Mistakes in comparisons: which side is left, which bound counts, what shares the level, what is shown."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from orchestrator.report.findings.claims import Claims
from orchestrator.report.findings.compared import Compared
from orchestrator.report.findings.decide import FALSE_SHOWN
from orchestrator.report.quantities import ACCURACY, TRAIN_S
from orchestrator.report.statistics.contrasts import Contrast
from orchestrator.report.statistics.families import Decision
from orchestrator.report.statistics.moderated import Estimate
from orchestrator.report.topics import asked_by
from tests.unit.report_support import a_comparison, around, repeated


def compared(quantity: Any, low: float, high: float) -> Compared:
    """A comparison whose interval has these bounds, of differences up to 1 that do not matter."""
    one, other = a_comparison(
        *repeated("all_reduce", [1.0], nodes=2), *repeated("ddp", [1.0], nodes=2)
    ).groups
    mean, half = (low + high) / 2, (high - low) / 2
    contrast = Contrast(Estimate(mean, 1.0, 1, 1.0), Estimate(0.0, 0.0, 1, 1.0))
    decision = Decision(contrast, low > 0 or high < 0, lambda: 0.5, lambda: half)
    return Compared(quantity, one, other, (mean, 0.0), contrast, decision, tolerated=1.0)


@pytest.mark.parametrize(
    ("low", "high", "verdict", "within", "keeps"),
    [
        (2.0, 3.0, "more", False, True),
        (-3.0, -2.0, "less", False, False),
        (-0.9, -0.1, "less", True, True),
        (-0.5, 3.0, "undecided", False, True),
        (-3.0, 0.5, "undecided", False, False),
    ],
)
def test_a_loss_is_tolerated_by_the_worse_bound(
    low: float, high: float, verdict: str, within: bool, keeps: bool
) -> None:
    higher, lower = compared(ACCURACY, low, high), compared(TRAIN_S, -high, -low)
    for each in (higher, lower):
        assert (each.within_tolerance, each.keeps) == (within, keeps)
        assert (each.left_is_better, each.right_is_better) == (verdict == "more", verdict == "less")
    assert higher.verdict == verdict
    back = higher.swapped
    assert (back.left, back.right, back.values) == (higher.right, higher.left, higher.values[::-1])
    assert back.decision is not None
    assert (back.decision.low, back.decision.high) == pytest.approx((-high, -low))
    assert (back.left_is_better, back.right_is_better) == (higher.right_is_better, higher.left_is_better)


def test_a_pair_is_compared_once_whichever_rules_ask_and_in_which_order() -> None:
    runs = [
        *repeated("serial", around(8, 0.2)),
        *repeated("all_reduce", around(5, 0.2), nodes=2),
        *repeated("ddp", around(6, 0.2), nodes=2),
    ]
    comparison = a_comparison(*runs)
    serial, ours, ddp = comparison.groups
    claims = Claims()

    def ask(claims: Claims) -> list[tuple[float, float] | None]:
        (first,) = claims.pairs(TRAIN_S, [(serial, ours)])
        (second, _) = claims.with_reference(TRAIN_S, serial, [ours, ddp])
        third = claims.all_pairs(TRAIN_S, [ours, serial, ddp]).between(ours, serial)
        assert (first.level, second.level, third.level) == ("shown",) * 3 or claims.answers is None
        return [first.swapped.interval, second.interval, third.interval]

    assert ask(claims) == [None] * 3
    intervals = ask(claims.decided())
    assert len({*intervals}) == 1
    assert intervals[0] is not None
    asked = asked_by(comparison).asked
    assert len(asked.questions) == len({(name[0], frozenset(name[1:])) for name in asked.questions})


def test_families_and_rankings_share_the_probability_of_a_false_claim() -> None:
    groups = a_comparison(
        *repeated("all_reduce", around(0.9, 0.01), "accuracy", nodes=2),
        *repeated("gossip", around(0.8, 0.01), "accuracy", nodes=2),
    ).groups
    claims = Claims()
    claims.all_pairs(ACCURACY, groups)
    ranking = claims.decided().all_pairs(ACCURACY, groups)
    assert (ranking.best, ranking.worst) == (groups[0], groups[1])
    assert [each.level for each in ranking.comparisons] == ["likely"]
    with pytest.raises(KeyError):
        claims.decided().pairs(TRAIN_S, [*combinations(groups, 2)])
    claims.asked_by_sweep(ACCURACY, [(groups[0], groups[1])])
    (asked,) = claims.decided().all
    assert asked.level == "shown"
    assert asked.decision is not None
    assert asked.decision.level == pytest.approx(FALSE_SHOWN / 2)
