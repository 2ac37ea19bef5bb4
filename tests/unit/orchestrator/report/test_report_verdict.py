"""Mistakes in the verdict: what may be chosen, what it is compared with, how many seeds it needs."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.formats import ABSENT, JOIN
from orchestrator.report.verdict import Verdict
from orchestrator.report.verdict.lab import _Reproduced, _reproduction
from orchestrator.report.verdict.strategies import Wording
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    ONE_SHOT_ALONE,
    a_comparison,
    a_run,
    around,
    repeated,
    verdicts_of,
)


def runs(
    strategy: str | dict[str, Any],
    time: float,
    accuracy: float,
    step: float = 0.02,
    spread: float = 0.002,
    seeds: int = 5,
    **fields: Any,
) -> list[RunResult]:
    """Seeds around a time and an accuracy. Serial has one node, others two if no number is given."""
    nodes = fields.pop("nodes", 1 if strategy == "serial" else 2)
    pairs = zip(around(time, step, seeds), around(accuracy, spread, seeds), strict=True)
    return [
        a_run(strategy, nodes=nodes, seed=seed, train_s=one, accuracy=other, **fields)
        for seed, (one, other) in enumerate(pairs)
    ]


def with_test_set(run: RunResult) -> RunResult:
    """The run, with the size of its test set and the accuracy of a constant answer."""
    known = {"test_samples": 360, "chance_accuracy": 0.1}
    return run.model_copy(update={"ranks": [rank.model_copy(update=known) for rank in run.ranks]})


def failing(results: list[RunResult]) -> list[RunResult]:
    """The runs, of which the first has failed."""
    return [results[0].model_copy(update={"status": "failed", "cause": "it crashed"}), *results[1:]]


def the_verdict(*results: RunResult, **fields: Any) -> Verdict:
    (verdict,) = verdicts_of(a_comparison(*results, **fields))
    return verdict


def measured(text: str) -> list[RunResult]:
    """Runs as in `serial 8 0.9, ddp 4 0.9 seeds=8`: strategy, time, accuracy, and fields of `runs`."""
    found = []
    for each in text.split(", "):
        strategy, time, accuracy, *fields = each.split()
        named = dict(field.split("=") for field in fields)
        numbers = {name: float(named.pop(name)) for name in ("step", "spread") if name in named}
        counts = {name: int(named.pop(name)) for name in ("seeds", "nodes") if name in named}
        found += runs(strategy, float(time), float(accuracy), **numbers, **counts, **named)
    return found


SERIAL = measured("serial 8 0.9")
CASES = [  # what was run, how the headline begins, and what the verdict says besides
    (
        "serial 8 0.9, all_reduce 4 0.899, ddp 5 0.9, one_shot 6 0.901",
        "Probably choose all_reduce on 2 nodes: 2.00 times as fast as serial, 89.9% accuracy (serial 90",
        "faster than serial in 5 of 5 seeds. To be surer, run it again with --repeat 9",
    ),
    ("serial 8 0.9 seeds=8, all_reduce 4 0.9 seeds=8", "Choose all_reduce", ""),
    ("serial 8 0.9 seeds=7, all_reduce 4 0.9 seeds=7", "Probably choose all_reduce", "--repeat 11"),
    (
        "serial 8 0.9, all_reduce 5 0.9, one_shot 3 0.8",
        "Probably choose all_reduce",
        "less accurate: one_shot on 2 nodes (3.00 s, 80.0%)",
    ),
    (
        "serial 8 0.9, all_reduce 4 0.85, ddp 5 0.85",
        "Probably stay with serial: 8.00 s, 90.0% accuracy",
        "less accurate: all_reduce",
    ),
    (
        "serial 8 0.8, all_reduce 12 0.9",
        "Probably choose all_reduce on 2 nodes: it takes 1.50 times as long as serial",
        "",
    ),
    ("serial 8 0.9, all_reduce 4 0.9 spread=0.05", "A toss-up between ", "serial (8.00 s, 90.0%)"),
    (
        "serial 8 0.9, all_reduce 4.05 0.9 step=1, ddp 4.1 0.9 step=-0.2",
        "A toss-up between ",
        "; serial took 8.00 s and reached 90.0%",
    ),
    (
        "serial 8 0.9, all_reduce 4 0.9 seeds=8, ddp 4 0.9 seeds=8 step=-0.02",
        "Probably choose ",
        "Probably as good: ",
    ),
    (  # equal in every seed, and so the same algorithm
        "all_reduce 4 0.9 spread=0.05 transport=mpi, all_reduce 6 0.9 spread=0.05 transport=gloo",
        "Probably choose all_reduce over mpi",
        "",
    ),
    (
        "serial 8 0.9, all_reduce 4 0.9, gossip 3 0.9 seeds=1",
        "Probably choose all_reduce",
        "gossip on 2 nodes (too few seeds)",
    ),
    ("all_reduce 4 0.9, ddp 6 0.9 nodes=4", "Probably choose all_reduce on 2 nodes: 4.00 s", ""),
]


def plain(verdict: Verdict) -> str:
    return f"{verdict.headline} {verdict.certainty}".replace(JOIN, " ")


@pytest.mark.parametrize(("results", "begins", "says"), CASES)
def test_what_is_chosen(results: str, begins: str, says: str) -> None:
    verdict = the_verdict(*measured(results))
    text = plain(verdict)
    assert text.startswith(begins)
    assert says in text
    assert verdict.decided is not begins.startswith("A toss-up")
    assert ("To be surer" in text) is begins.startswith("Probably")


def test_neither_what_failed_nor_what_did_not_learn_is_chosen() -> None:
    unlearned = [with_test_set(run) for run in runs(ONE_SHOT_ALONE, 2.0, 0.1, spread=0.0)]
    failed = failing(measured("gossip 3 0.9 seeds=6"))
    verdict = the_verdict(*SERIAL, *measured("all_reduce 4 0.9"), *unlearned, *failed)
    assert [option.name for option in verdict.options] == ["all_reduce over mpi", "serial"]
    assert "gossip on 2 nodes (not every run finished)" in plain(verdict)
    assert "(not every run learned)" in verdict.certainty


def test_many_partitioners_are_not_chosen_between() -> None:
    text = "all_reduce 4 0.9 partitioner="
    others = ", ".join(text + name for name in ("random_partition", "contiguous", "stratified"))
    verdict = the_verdict(*SERIAL, *measured(f"{others}, all_reduce 4 0.7 partitioner=shards"))
    assert verdict.headline.startswith("With random_partition, probably choose all_reduce on 2")
    assert not any(name in verdict.certainty for name in ("random_partition", "shards"))


def test_options_are_the_choice_then_serial_then_the_most_probable_and_cheapest() -> None:
    verdict = the_verdict(*measured("serial 8 0.9, all_reduce 4 0.9, gossip 7 0.9, ddp 5 0.896"))
    assert [option.name.split()[0] for option in verdict.options] == [
        "all_reduce",
        "serial",
        "ddp",
        "gossip",
    ]
    assert [option.chance for option in verdict.options] == ["over 99%", *["under 1%"] * 3]
    _, serial, ddp, _ = verdict.options
    assert (serial.difference, ddp.difference.split()[0]) == (ABSENT, "−0.4")
    assert "(" in ddp.difference  # the interval of the comparison


@pytest.mark.parametrize("seeds", [1, 4])
def test_with_few_seeds_nothing_is_chosen(seeds: int) -> None:
    each = f"0.9 seeds={seeds}"
    verdict = the_verdict(*measured(f"serial 8 {each}, all_reduce 4 {each}, ddp 6 {each}"))
    assert not verdict.decided
    assert {option.chance for option in verdict.options} == {ABSENT}
    assert verdict.headline.startswith("Too few seeds to choose: as measured, all_reduce")
    assert "--repeat 5" in verdict.certainty


def test_a_seed_is_won_by_the_shorter_time_of_equal_seeds() -> None:
    serial = repeated("serial", [8.0, 8.0, 8.0, 8.0])
    comparison = a_comparison(*serial, *repeated("ddp", [7.0, 8.0, 9.0], nodes=2))
    view = comparison.view(comparison.workloads[0])
    assert "in 1 of 3" in Wording(view, []).seeds_won(view.groups[1], view.serial)


# Targets and faults


def reaching(
    strategy: str, time: float, nodes: int, step: float = 0.02, reached: bool = True, seeds: int = 5
) -> list[RunResult]:
    """Runs with a target accuracy of 90 %, which they reach in their second epoch or never."""
    made = runs(strategy, time, 0.95, step, seeds=seeds, nodes=nodes, epochs=4, target_accuracy=0.9)
    for run in made:
        at_target = {"target_reached": reached}
        run.epochs[:] = [
            point.model_copy(update=at_target) if point.epoch == 2 else point for point in run.epochs
        ]
    return made


def test_with_a_target_the_time_to_it_counts() -> None:
    verdict = the_verdict(
        *reaching("all_reduce", 4.0, 2),
        *reaching("all_reduce", 6.0, 4),
        *reaching("serial", 8.0, 1),
        *reaching("ddp", 2.0, 2, reached=False),
        *failing(reaching("gossip", 3.0, 2, seeds=6)),  # five of them end
    )
    assert verdict.decided
    headline = verdict.headline.replace(JOIN, " ")
    assert "all_reduce over mpi on 2 nodes" in headline
    assert "serial (8.00 s) takes 2.00 times as long" in headline
    assert "Not with every seed: ddp over gloo" in verdict.certainty
    assert [(option.name, option.shape[0], option.chance) for option in verdict.options] == [
        ("all_reduce over mpi", "2", "over 99%"),
        ("serial", "1", "under 1%"),
        ("all_reduce over mpi", "4", "under 1%"),
    ]
    both = the_verdict(*reaching("all_reduce", 4.0, 2, 0.2), *reaching("ddp", 4.02, 2, -0.2))
    assert not both.decided
    assert all(name in both.headline for name in ("all_reduce", "ddp"))
    none = the_verdict(*reaching("all_reduce", 4.0, 2, reached=False))
    assert (none.decided, none.options) == (False, ())


def test_under_faults_those_that_lose_least_of_their_own_time_come_first() -> None:
    faults = [{"kill": {"node": 2}, "at": {"epoch": 2}}]
    with_faults: dict[str, Any] = {"faults": faults, "checkpoint_epochs": 1, "restarts": 1}
    results = []
    for strategy, without, under in (("all_reduce", 2.0, 6.0), ("ddp", 10.0, 15.0)):
        for elapsed_s, fields in ((without, {}), (under, with_faults)):
            made = runs(strategy, elapsed_s, 0.9, nodes=3, transport="gloo", **fields)
            results += [run.model_copy(update={"elapsed_s": run.train_s}) for run in made]
    (verdict,) = [each for each in verdicts_of(a_comparison(*results)) if each.workload.faults]
    assert not verdict.decided
    assert [option.time.partition(JOIN)[0] for option in verdict.options] == ["15.0", "6.00"]
    assert (
        "ddp checkpoint_epochs=1 over gloo was measured to lose least time, 1.50 times" in verdict.headline
    )
    assert "all_reduce checkpoint_epochs=1 over gloo to lose most, 3.00 times" in verdict.headline


def test_an_accuracy_is_reproduced_within_one_point_or_our_interval() -> None:
    def published(accuracy: float, interval: tuple[float, float] | None = None) -> _Reproduced:
        return _Reproduced("theirs", accuracy, 0.8, interval, change=False)

    assert [published(each).same for each in (0.79, 0.8, 0.809, 0.811)] == [True, True, True, False]
    assert [published(each, (0.7, 0.9)).same for each in (0.7, 0.9, 0.69)] == [True, True, False]
    good, bad, worse = published(0.8), published(0.6), published(0.5)
    for known, head in (
        ([good], "The published accuracy is reproduced"),
        ([bad], "The published accuracy is not"),
        ([good, good], "Both"),
        ([bad, good], "1 of 2"),
        ([worse, bad], "None of 2"),
    ):
        assert _reproduction(known).startswith(head)
    assert "furthest off is theirs: 50.0% published, 80.0% here" in _reproduction([bad, worse, good])
