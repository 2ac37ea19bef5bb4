"""Claims: each pair is compared once, corrections, and what is said of a loss of accuracy."""

from __future__ import annotations

from itertools import combinations
from math import inf, sqrt

import pytest
from scipy import stats

from orchestrator.report.findings.claims import Claims
from orchestrator.report.quantities import ACCURACY, TRAIN_S
from orchestrator.report.statistics.contrasts import Contrast, critical_t
from orchestrator.report.statistics.families import benjamini_hochberg, dunnett, holm, is_extreme
from orchestrator.report.statistics.moderated import Estimate
from orchestrator.report.statistics.power import can_be_decided, decided_with, seeds_to_decide
from orchestrator.report.topics import asked_by, find
from tests.unit.report_support import a_comparison, a_run, around, finding_of, repeated

LEVEL = 0.05


def estimate(mean: float, between: float = 0.0, variance: float = 1.0, seeds: int = 5) -> Estimate:
    return Estimate(mean, variance, seeds, prior_dof=4.0, between=between)


CONTRASTS = [Contrast(estimate(mean), estimate(0.0)) for mean in (0.1, 0.9, 1.7, 2.1, 3.0, -2.4)]


def test_error_and_p_value_of_a_difference() -> None:
    contrast = Contrast(estimate(1.5, between=0.3), estimate(0.0, variance=2.0, between=0.1))
    assert contrast.standard_error == pytest.approx(sqrt(1 / 5 + 2 / 5 + 0.3 + 0.1))
    assert contrast.p == pytest.approx(2 * stats.t.sf(abs(contrast.t), contrast.dof))
    assert contrast.swapped.p == contrast.p


def test_holm_stops_at_the_first_comparison_that_is_not_decided() -> None:
    one = Contrast(estimate(1.0), estimate(0.0))

    def of_p(p: float) -> Contrast:
        return Contrast(estimate(critical_t(p, one.dof) * one.standard_error), estimate(0.0))

    found = holm([of_p(p) for p in (0.04, 0.001, 0.03)], LEVEL)
    assert [each.decided for each in found] == [False, True, False]
    assert [each.p for each in found] == pytest.approx([0.08, 0.003, 0.06])


@pytest.mark.parametrize("correct", [holm, dunnett, benjamini_hochberg])
def test_an_interval_excludes_0_exactly_if_the_difference_is_decided(correct: object) -> None:
    decisions = correct(CONTRASTS, LEVEL)  # type: ignore[operator]
    assert {each.decided for each in decisions} == {True, False}
    for each in decisions:
        assert (each.low > 0 or each.high < 0) is each.decided
        assert (each.p < LEVEL) is each.decided
        assert each.p >= each.contrast.p


def test_likely_claims_are_those_of_the_false_discovery_rate() -> None:
    corrected = stats.false_discovery_control([each.p for each in CONTRASTS])
    assert [each.p for each in benjamini_hochberg(CONTRASTS, LEVEL)] == pytest.approx(corrected)
    assert benjamini_hochberg([], LEVEL) == []
    once, thrice = (benjamini_hochberg(CONTRASTS[3:4], LEVEL, [count])[0] for count in (1, 3))
    assert thrice.p == pytest.approx(3 * once.p)
    assert thrice.critical > once.critical


def test_the_smallest_is_shown_if_it_is_far_from_each_other_one() -> None:
    others = [Contrast(estimate(mean), estimate(0.0)) for mean in (3.0, 4.0, 5.0)]
    assert is_extreme(others, LEVEL, smallest=True)
    assert not is_extreme(others, LEVEL, smallest=False)
    assert not is_extreme([*others, Contrast(estimate(0.5), estimate(0.0))], LEVEL, smallest=True)
    assert is_extreme([each.swapped for each in others], LEVEL, smallest=False)


def test_more_seeds_decide_what_sessions_do_not_hide() -> None:
    contrast = Contrast(estimate(1.0), estimate(0.0))
    chances = [decided_with(contrast, seeds, LEVEL) for seeds in (6, 10, 20, 50)]
    assert chances == sorted(chances)
    needed = seeds_to_decide(contrast, LEVEL)
    assert needed is not None
    assert decided_with(contrast, needed - 1, LEVEL) < 0.85 <= decided_with(contrast, needed, LEVEL)
    hidden = Contrast(estimate(1.0, between=1.0), estimate(0.0, between=1.0))
    assert not can_be_decided(hidden, LEVEL)
    assert seeds_to_decide(hidden, LEVEL) is None
    assert decided_with(contrast, inf, LEVEL) > chances[-1]


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


def test_what_is_asked_is_decided_even_if_rules_ask_alone() -> None:
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


def test_accuracy_against_serial_is_kept_lost_or_unknown() -> None:
    runs = [
        *repeated("serial", around(0.95, 0.001), "accuracy"),
        *repeated("all_reduce", around(0.949, 0.001)[::-1], "accuracy", nodes=2),
        *repeated("ddp", around(0.85, 0.001), "accuracy", nodes=2),
        *repeated("gossip", around(0.93, 0.03)[::-1], "accuracy", nodes=2),
    ]
    finding = finding_of(a_comparison(*runs), "best_accuracy")
    states = {
        compared["left"][0].split("-")[0]: (compared["keeps"], compared["decision"])
        for compared in finding.data["compared"]
        if compared["right"][0].startswith("serial")
    }
    assert states["all_reduce"][0]
    assert states["ddp"] == (False, "less")
    assert states["gossip"] == (False, "undecided")
    text = finding.text.replace("\u00a0", " ")
    assert "Shown to lose accuracy: ddp" in text
    assert "Shown to keep it within the tolerance: all_reduce" in text
    assert "Whether accuracy is lost is unknown for gossip" in text


def test_what_the_sweep_asks_is_shown() -> None:
    question = {
        "measure": "accuracy",
        "compare": {"strategy": "ddp", "nodes": 2},
        "against": {"strategy": "ddp", "nodes": 4},
    }
    runs = [
        a_run("ddp", nodes=nodes, seed=seed, accuracy=reached)
        for nodes, mean in ((2, 0.96), (4, 0.9))
        for seed, reached in enumerate(around(mean, 0.01))
    ]
    comparison = a_comparison(*runs, questions=[question])
    claims = asked_by(comparison).decided()
    findings = find(comparison, claims)
    (answer,) = [finding for finding in findings if finding.kind == "asked"]
    (data,) = answer.data["compared"]
    assert (data["decision"], data["level"]) == ("more", "shown")
    assert findings[0].topic == answer.topic
    assert sum(each.left.shape.ranks == 2 and each.quantity is ACCURACY for each in claims.all) == 1


def test_a_question_without_two_results_is_not_answered() -> None:
    question = {"measure": "accuracy", "compare": {"strategy": "ddp"}, "against": {"strategy": "gossip"}}
    comparison = a_comparison(*repeated("ddp", around(2.0), nodes=2), questions=[question])
    (finding,) = [finding for finding in find(comparison) if finding.kind == "asked_unanswered"]
    assert "gossip" in finding.text
