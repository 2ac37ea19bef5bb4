"""Mistakes in findings: which configurations are compared and named, the direction of a difference, the
seeds and limits from which something is said, and what figures say of them."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.figures.sentences import figure_sentence
from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import JOIN
from orchestrator.report.render.summary import seeds_line
from orchestrator.report.topics import FIGURES, find
from orchestrator.report.topics.runs import Tally
from orchestrator.results.records import RunResult
from orchestrator.sweeps.tolerance import Tolerances
from tests.unit.report_support import (
    FAST,
    ONE_SHOT_ALONE,
    SERIAL,
    a_comparison,
    a_run,
    around,
    finding_of,
    findings_of,
    on_360_images,
    repeated,
)

approx = pytest.approx


def timed(strategy: str | dict[str, Any], mean: float, nodes: int = 2, **fields: Any) -> list[RunResult]:
    """Five seeds of nearly the same time."""
    return repeated(strategy, around(mean, 0.01), nodes=nodes, **fields)


def scored(strategy: str | dict[str, Any], mean: float, nodes: int = 2, **fields: Any) -> list[RunResult]:
    """Five seeds of nearly the same accuracy."""
    return repeated(strategy, around(mean), "accuracy", nodes=nodes, **fields)


def decisions(finding: Finding) -> list[str]:
    return [each["decision"] for each in finding.data["compared"]]


# Speed


@pytest.mark.parametrize(
    ("slower", "faster", "first", "few"),
    [
        (around(4.1, 0.1), around(4, 0.1)[::-1], False, []),
        (around(5, 0.1), around(4, 0.1), True, []),
        (around(5, 0.1, seeds=4), around(4, 0.1, seeds=4), False, [True]),  # however far apart
    ],
    ids=["undecided", "decided", "four seeds"],
)
def test_only_a_decided_order_names_the_fastest(
    slower: list[float], faster: list[float], first: bool, few: list[bool]
) -> None:
    comparison = a_comparison(*repeated("ddp", slower, nodes=2), *repeated("all_reduce", faster, nodes=2))
    assert finding_of(comparison, "fastest").data["fastest"] is first
    assert [finding.data["all"] for finding in findings_of(comparison, "too_few_seeds")] == few
    assert ("claims no differences" in seeds_line(comparison)) is bool(few)


def test_more_nodes_are_compared_with_the_next_fewer() -> None:
    runs = [run for nodes, mean in ((2, 5), (4, 9), (8, 3)) for run in timed("ddp", mean, nodes)]
    data = finding_of(a_comparison(*runs), "more_nodes").data
    assert (data["ranks"], data["steps"], data["whole"]) == ([2, 4, 8], ["more", "less"], "less")
    pairs = [[round(each) for each in compared["values"]] for compared in data["compared"]]
    assert pairs == [[9, 5], [3, 9], [3, 5]]


def test_the_front_needs_a_decision_against_every_other() -> None:
    def both(strategy: str, train_s: float, accuracy: float, sign: int = 1, step: float = 0.001) -> Any:
        pairs = zip(around(train_s, 0.02 * sign), around(accuracy, step * sign), strict=True)
        return [
            a_run(strategy, nodes=2, seed=seed, train_s=time, accuracy=reached)
            for seed, (time, reached) in enumerate(pairs)
        ]

    fast, exact = both("one_shot", 2, 0.90), both("all_reduce", 4, 0.95)
    dominated, similar = both("gossip", 5, 0.85), both("ddp", 4.01, 0.9505, -1)
    even = [*both("gossip", 2, 0.9, step=0.0), *both("all_reduce", 4, 0.9, step=0.0)]
    for runs, on, off, undecided in (
        ([*fast, *exact, *dominated], ["one_shot", "all_reduce"], ["gossip"], []),
        ([*fast, *exact, *similar], ["one_shot"], [], ["all_reduce", "ddp"]),
        (even, ["gossip"], ["all_reduce"], []),  # slower, and exactly as accurate
    ):
        data = finding_of(a_comparison(*runs), "front").data
        found = [[name.split()[0] for name in data[which]] for which in ("on", "off", "undecided")]
        assert found == [on, off, undecided]


# Accuracy


def test_fewer_updates_explain_a_loss_only_on_the_same_samples_from_the_same_start() -> None:
    serial = scored("serial", 0.955, 1, steps=90)
    some_more = scored("all_gather", 0.9, steps=45)
    some_more[0] = a_run("all_gather", nodes=2, accuracy=some_more[0].accuracy, steps=95)
    others = [
        *scored("hogwild", 0.9, steps=50),  # its ranks update one model, 100 times
        *scored("reduce_broadcast", 0.9, steps=45, coverage=0.5),
        *scored(ONE_SHOT_ALONE, 0.5, steps=45),
        *scored("pipeline", 0.955, steps=45),  # loses nothing
        *some_more,
    ]
    assert findings_of(a_comparison(*serial, *others), "fewer_updates") == []
    data = finding_of(a_comparison(*serial, *others, *scored("ddp", 0.9, steps=45)), "fewer_updates").data
    assert (data["updates"], data["serial_updates"]) == ({"ddp over gloo": (45, 45)}, (90, 90))




# Partitioners


def skewed(strategy: str, accuracies: list[float], label: str = "contiguous") -> list[RunResult]:
    return repeated(strategy, accuracies, "accuracy", nodes=4, transport="mpi", partitioner=label)


@pytest.mark.parametrize(
    ("one_shot", "local_sgd", "expected"),
    [
        (around(0.61), around(0.81), ("one_shot over mpi", "local_sgd over mpi")),
        (around(0.61, 0.03), around(0.63, 0.03)[::-1], ("local_sgd over mpi", None)),
        (around(0.85), around(0.7), ("local_sgd over mpi", "one_shot over mpi")),  # not the lowest
        (around(0.90, 0.03)[::-1], around(0.94, 0.03), None),
        (around(0.95), around(0.98), None),
    ],
    ids=["recovered", "not recovered", "largest", "undecided", "gain"],
)
def test_the_largest_loss_under_a_partitioner_and_its_recovery(
    one_shot: list[float], local_sgd: list[float], expected: tuple[str, str | None] | None
) -> None:
    even = [
        *skewed("one_shot", around(0.91), "random_partition"),
        *skewed("local_sgd", around(0.945), "random_partition"),
    ]
    comparison = a_comparison(*even, *skewed("one_shot", one_shot), *skewed("local_sgd", local_sgd))
    found = [finding.data for finding in findings_of(comparison, "partitioner_loss")]
    assert [(data["strategy"], data["best"]) for data in found] == ([expected] if expected else [])


# Many nodes


def line(strategy: str, *on: tuple[int, float, float]) -> list[RunResult]:
    """Five seeds of a strategy on each number of nodes, with times and accuracies around these means."""
    return [
        a_run(strategy, nodes=nodes, seed=seed, train_s=time, accuracy=accuracy, transport="gloo", cores=64)
        for nodes, mean, of in on
        for seed, (time, accuracy) in enumerate(zip(around(mean, 0.01 * mean), around(of), strict=True))
    ]


ALONE = repeated("serial", around(16, 0.1), accuracy=0.9, cores=64)
FALLING = line("one_shot", (2, 8.0, 0.9), (8, 2.0, 0.89), (32, 1.0, 0.5))
LEVEL = line("all_reduce", (2, 8.0, 0.9), (8, 4.0, 0.9), (32, 3.2, 0.9))
RISING = line("gossip", (2, 20.0, 0.9), (8, 24.0, 0.9), (32, 28.0, 0.9))


def test_the_last_numbers_of_nodes_that_save_time_and_keep_the_accuracy_of_serial() -> None:
    comparison = a_comparison(*ALONE, *FALLING, *LEVEL, *RISING, tolerance=Tolerances(time="40%"))
    found = finding_of(comparison, "many_nodes").data["strategies"]
    assert {each["strategy"]: (each["falls_until"], each["kept_until"]) for each in found} == {
        "one_shot over gloo": (32, 2),  # −1 point at 8 nodes may be more than the tolerance
        "all_reduce over gloo": (8, 32),  # from 8 to 32 nodes it saves 20 %, within the tolerance
        "gossip over gloo": (None, None),
    }


def test_without_serial_the_fewest_nodes_are_the_reference() -> None:
    found = finding_of(a_comparison(*FALLING), "many_nodes").data
    assert found["reference"] == "fewest"
    assert [(each["falls_until"], each["kept_until"]) for each in found["strategies"]] == [(32, None)]
    accuracies = [each["values"] for each in found["compared"] if each["quantity"] == "accuracy"]
    assert [right for _, right in accuracies] == approx([0.9, 0.9])
    few_seeds = [run for run in [*ALONE, *FALLING] if run.run.seed < 4]
    for few in ([*ALONE, *FALLING[:10]], few_seeds):
        assert not findings_of(a_comparison(*few), "many_nodes")


# Seeds, claims and drift


def test_undecided_comparisons_are_counted_with_the_seeds_that_would_decide_them() -> None:
    runs = [*repeated("serial", around(8, 0.3)), *repeated("ddp", around(7.5, 0.3)[::-1], nodes=2)]
    data = finding_of(a_comparison(*runs), "undecided").data
    assert (data["undecided"], data["hopeless"]) == (1, 1)  # two sessions differ as much
    losing = [
        *repeated("serial", around(0.9, 0.05), "accuracy"),
        *repeated("ddp", around(0.82, 0.05)[::-1], "accuracy", nodes=2),
    ]
    data = finding_of(a_comparison(*losing), "undecided").data
    assert data["undecided"] == len(data["seeds"]) + data["beyond"] == 1
    assert data["seeds"][0] > 5
    assert findings_of(a_comparison(*runs[:5], *timed("ddp", 2)), "undecided") == []
    for needed, half in (([], None), ([7], (7, 1)), ([6, 7, 8, 9], (7, 2)), ([6, 7, 7, 9, 9], (7, 3))):
        tally = Tally(shown=0, likely=0, equal=0, undecided=9, needed=needed, hopeless=1)
        assert (tally.half, tally.beyond) == (half, 8 - len(needed))


@pytest.mark.parametrize(("reshard", "sent"), [(True, 8e6), (False, 9e6)])
def test_bytes_that_a_library_sends_beyond_the_count_are_stated(reshard: bool, sent: float) -> None:
    """Two all-gathers and a reduce-scatter with reshard, and one of each without it."""
    fields: dict[str, Any] = {"nodes": 2, "transport": "gloo", "bytes_sent": 6e6}
    fsdp = a_run({"name": "fsdp", "reshard": reshard}, **fields)
    others = [a_run("serial", bytes_sent=0.0), a_run("zero2", **fields), a_run("all_reduce", **fields)]
    finding = finding_of(a_comparison(*others, fsdp), "sent_beyond_count")
    assert (finding.data["counted"], finding.data["sent"], finding.caution) == (6e6, approx(sent), True)
    assert [row.key for row in finding.rows] == [fsdp.key]


# Workloads, and findings as text


def test_findings_name_their_workload_unless_all_have_the_same() -> None:
    comparison = a_comparison(SERIAL, FAST, a_run("ddp", nodes=2, batch_size=16, train_s=1.0))
    first, second = findings_of(comparison, "fastest")
    assert [each.workload.batch_size for each in (first, second) if each.workload] == [32, 16]
    assert ["speedup" in finding.data for finding in (first, second)] == [True, False]
    more = [a_run(lr=lr) for lr in (0.1, 0.2)]
    for others, rates in (([SERIAL], [None]), (timed("serial", 8, 1), [0.1, 0.2])):
        found = findings_of(a_comparison(*others, *more), "too_few_seeds")
        assert [each.workload and each.workload.lr for each in found] == rates


def test_the_first_sentence_of_a_finding_ends_at_no_decimal_point() -> None:
    for more in ("", " More."):
        assert Finding("fastest", f"It took 1.5 s.{more}").first_sentence == "It took 1.5 s."




# What figures say


def said(name: str, *results: RunResult) -> list[str]:
    """What a figure says of each workload."""
    comparison, kind = a_comparison(*results), FIGURES[name]
    found = find(comparison)
    views = map(comparison.view, comparison.workloads)
    return [figure_sentence(kind.shows, kind.otherwise, view, found).replace(JOIN, " ") for view in views]


def test_accuracies_are_measured_whatever_is_decided() -> None:
    best = scored("all_reduce", 0.9)
    for runs, shown in (
        ([*best, *scored("ddp", 0.5)], ": test accuracy from 50.0% (ddp over gloo) to 90.0%"),
        ([*best, *scored("ddp", 0.9)], ": test accuracy 90.0% in each of 2 configurations."),
        (best, ": test accuracy 90.0% (all_reduce over mpi)."),
        (map(on_360_images, [*best, *scored("one_shot", 0.1)]), ", among those that learned: test acc"),
    ):
        (text,) = said("strategies", *runs)
        assert text.startswith(f"Measured on 2 nodes{shown}")


