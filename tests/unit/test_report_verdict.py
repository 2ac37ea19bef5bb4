"""The verdict: what is chosen, when it is decided, and which options are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.report.findings import find
from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import ABSENT
from orchestrator.report.model.comparison import Comparison, compare
from orchestrator.report.verdict import Verdict, verdicts
from orchestrator.report.verdict.choice import Choice, choose
from orchestrator.report.verdict.decisions import Decisions
from orchestrator.results.records import RunResult
from orchestrator.sweeps.lab import BlockRecord, Lab
from tests.unit.report_support import ONE_SHOT_ALONE, a_comparison, a_record, a_run, around
from tests.unit.test_report_faults import with_and_without


def runs(
    strategy: str | dict[str, Any], time: float, accuracy: float, step: float = 0.02, **fields: Any
) -> list[RunResult]:
    """Five seeds around a time and an accuracy. Serial has one node, others two if no number is given."""
    nodes = fields.pop("nodes", 1 if strategy == "serial" else 2)
    seeds = fields.pop("seeds", 5)
    spread = fields.pop("spread", 0.002)
    times, accuracies = around(time, step, seeds), around(accuracy, spread, seeds)
    if fields.pop("reversed_", False):
        times = times[::-1]
    return [
        a_run(strategy, nodes=nodes, seed=seed, train_s=one, accuracy=other, **fields)
        for seed, (one, other) in enumerate(zip(times, accuracies, strict=True))
    ]


def with_test_set(run: RunResult) -> RunResult:
    """The run, with the size of its test set and the accuracy of a constant answer."""
    known = {"test_samples": 360, "chance_accuracy": 0.1}
    return run.model_copy(update={"ranks": [rank.model_copy(update=known) for rank in run.ranks]})


SERIAL_RUNS = runs("serial", 8.0, 0.90)


def the_verdict(*results: RunResult, **fields: Any) -> Verdict:
    (verdict,) = verdicts_of(a_comparison(*results, **fields))
    return verdict


def verdicts_of(comparison: Comparison) -> list[Verdict]:
    return verdicts(comparison, find(comparison))


def the_choice(comparison: Comparison, findings: Sequence[Finding] | None = None) -> Choice:
    found = find(comparison) if findings is None else findings
    unlearned = {row.key for each in found if each.kind == "not_learned" for row in each.rows}
    return choose(comparison.view(comparison.workloads[0]), Decisions(found), unlearned)


def chosen(*results: RunResult) -> list[str]:
    """The strategies that claims leave to choose from."""
    return [group.strategy for group in the_choice(a_comparison(*results)).best]


def test_the_fastest_is_chosen_where_accuracy_is_about_equal() -> None:
    results = [
        *SERIAL_RUNS,
        *runs("all_reduce", 4.0, 0.899),
        *runs("ddp", 5.0, 0.900),
        *runs("one_shot", 6.0, 0.901),
    ]
    assert chosen(*results) == ["all_reduce"]
    verdict = the_verdict(*results)
    assert verdict.decided
    assert "all_reduce over mpi" in verdict.headline
    assert "ddp" not in verdict.headline
    assert [option.name for option in verdict.options][:2] == ["all_reduce over mpi", "serial"]
    assert [option.best_time for option in verdict.options] == [True, False, False, False]


def test_a_fast_strategy_that_loses_accuracy_is_not_chosen() -> None:
    results = [*SERIAL_RUNS, *runs("all_reduce", 5.0, 0.90), *runs("one_shot", 3.0, 0.80)]
    assert chosen(*results) == ["all_reduce"]
    verdict = the_verdict(*results)
    assert verdict.decided
    assert "one_shot" not in verdict.headline
    assert "one_shot" in verdict.certainty
    assert "80.0%" in verdict.certainty


def test_where_all_lose_accuracy_the_headline_has_the_loss() -> None:
    results = [*SERIAL_RUNS, *runs("all_reduce", 4.0, 0.85), *runs("ddp", 5.0, 0.85)]
    assert chosen(*results) == ["all_reduce"]
    verdict = the_verdict(*results)
    assert verdict.decided
    assert {"85.0%", "90.0%"} <= {word.strip(",.;:()") for word in verdict.headline.split()}


def test_a_large_measured_loss_that_is_undecided_is_in_the_headline() -> None:
    results = [*SERIAL_RUNS, *runs("all_reduce", 4.0, 0.84, spread=0.05)]
    verdict = the_verdict(*results)
    assert not verdict.decided
    assert {"84.0%", "90.0%"} <= {word.strip(",.;:()") for word in verdict.headline.split()}


def test_a_faster_and_a_more_accurate_strategy_are_both_named_if_accuracy_is_undecided() -> None:
    results = [*runs("all_reduce", 4.0, 0.86, spread=0.05), *runs("ddp", 6.0, 0.90)]
    assert chosen(*results) == ["all_reduce", "ddp"]
    verdict = the_verdict(*results)
    assert not verdict.decided
    assert all(name in verdict.headline for name in ("all_reduce over mpi", "ddp over gloo"))
    assert [option.best_time for option in verdict.options] == [True, False]


def test_times_that_are_undecided_choose_nothing() -> None:
    slow = runs("ddp", 4.05, 0.90, step=0.2, reversed_=True)
    results = [*SERIAL_RUNS, *runs("all_reduce", 4.0, 0.90, step=0.2), *slow]
    assert chosen(*results) == ["all_reduce", "ddp"]
    verdict = the_verdict(*results)
    assert not verdict.decided
    assert not any(option.best_time or option.best_accuracy for option in verdict.options)
    assert all(name in verdict.headline for name in ("all_reduce over mpi", "ddp over gloo", "serial"))


def test_serial_stays_where_everything_is_slower() -> None:
    results = [*SERIAL_RUNS, *runs("all_reduce", 12.0, 0.90), *runs("ddp", 16.0, 0.90)]
    choice = the_choice(a_comparison(*results))
    assert choice.stay
    verdict = the_verdict(*results)
    assert verdict.decided
    assert verdict.headline.startswith("Stay with serial")
    assert "all_reduce over mpi" in verdict.headline
    assert {option.name: option.best_time for option in verdict.options}["serial"]


def test_one_slower_strategy_beside_serial() -> None:
    verdict = the_verdict(*SERIAL_RUNS, *runs("all_reduce", 12.0, 0.90))
    assert verdict.decided
    assert verdict.headline.startswith("Stay with serial")


def test_a_gain_over_serial_that_is_undecided_is_not_claimed() -> None:
    verdict = the_verdict(
        *runs("serial", 8.0, 0.90, step=1.0), *runs("all_reduce", 7.8, 0.90), *runs("ddp", 9.0, 0.90)
    )
    assert not verdict.decided
    assert not verdict.headline.startswith(("Choose", "Stay"))
    assert "all_reduce over mpi" in verdict.headline


def test_a_slow_strategy_that_keeps_accuracy_does_not_hide_a_fast_one_that_loses_it() -> None:
    results = [*SERIAL_RUNS, *runs("ddp", 20.0, 0.90), *runs("one_shot", 4.0, 0.85)]
    assert chosen(*results) == ["one_shot"]
    verdict = the_verdict(*results)
    assert {"85.0%", "90.0%"} <= {word.strip(",.;:()") for word in verdict.headline.split()}


def test_what_has_not_learned_or_failed_is_never_chosen() -> None:
    unlearned = [with_test_set(run) for run in runs(ONE_SHOT_ALONE, 2.0, 0.1, spread=0.0)]
    failing = runs("gossip", 3.0, 0.90)
    failing[0] = a_run("gossip", nodes=2, seed=0, status="failed", cause="it crashed")
    results = [*SERIAL_RUNS, *runs("all_reduce", 4.0, 0.90), *unlearned, *failing]
    assert chosen(*results) == ["all_reduce"]
    names = [option.name for option in the_verdict(*results).options]
    assert names == ["all_reduce over mpi", "serial"]
    assert "gossip" not in the_verdict(*results).headline


def test_two_seeds_are_too_few() -> None:
    results = [
        *runs("serial", 8.0, 0.9, seeds=2),
        *runs("all_reduce", 4.0, 0.9, seeds=2),
        *runs("ddp", 6.0, 0.9, seeds=2),
    ]
    verdict = the_verdict(*results)
    assert not verdict.decided
    assert not any(option.best_time for option in verdict.options)
    assert "all_reduce over mpi" in verdict.headline


def test_a_strategy_with_too_few_seeds_does_not_hold_up_the_others() -> None:
    results = [
        *SERIAL_RUNS,
        *runs("all_reduce", 4.0, 0.9),
        *runs("ddp", 6.0, 0.9),
        *runs("gossip", 3.0, 0.9, seeds=1),
    ]
    assert chosen(*results) == ["all_reduce"]
    assert the_verdict(*results).decided


def test_without_serial_and_with_one_strategy() -> None:
    two = the_verdict(*runs("all_reduce", 4.0, 0.9), *runs("ddp", 6.0, 0.9))
    assert two.decided
    assert "all_reduce over mpi" in two.headline
    alone = the_verdict(*runs("all_reduce", 4.0, 0.9))
    assert not alone.decided
    only_serial = the_verdict(*SERIAL_RUNS)
    assert (only_serial.decided, only_serial.options) == (False, ())


def test_fewer_nodes_are_in_the_headline_if_more_are_shown_to_be_slower() -> None:
    results = [
        *SERIAL_RUNS,
        *runs("all_reduce", 4.0, 0.9),
        *runs("all_reduce", 6.0, 0.9, nodes=4),
        *runs("ddp", 7.0, 0.9, nodes=4),
        *runs("gossip", 7.5, 0.9, nodes=4),
    ]
    assert "2\N{NO-BREAK SPACE}nodes" in the_verdict(*results).headline
    faster = [*SERIAL_RUNS, *runs("all_reduce", 7.0, 0.9), *results[10:]]
    assert "2\N{NO-BREAK SPACE}nodes" not in the_verdict(*faster).headline


def test_partitioners_that_cost_accuracy_are_named() -> None:
    partitioners = ["random_partition", "contiguous", "shards", "stratified"]
    results = [
        run
        for name in partitioners
        for run in runs("all_reduce", 4.0, 0.7 if name == "shards" else 0.9, partitioner=name)
    ]
    verdict = the_verdict(*SERIAL_RUNS, *results)
    assert "random_partition" in verdict.headline
    assert "shards" in verdict.certainty
    assert "contiguous" not in verdict.certainty


def test_one_verdict_per_link() -> None:
    slow, fast = ({"bandwidth_mbit": mbit, "latency_ms": 1} for mbit in (10, 1000))
    results = [
        *SERIAL_RUNS,
        *runs("all_reduce", 20.0, 0.9, link=slow, transport="gloo"),
        *runs("gossip", 10.0, 0.9, link=slow, transport="gloo"),
        *runs("all_reduce", 4.0, 0.9, link=fast, transport="gloo"),
        *runs("gossip", 5.0, 0.9, link=fast, transport="gloo"),
    ]
    results = [run.model_copy(update={"runtime_info": shaped(run)}) for run in results]
    found = {verdict.workload.link: verdict for verdict in verdicts_of(a_comparison(*results))}
    assert len(found) == 2
    assert all(link in verdict.headline for link, verdict in found.items())
    stay, choose_ = found["10 Mbit/s, 1 ms"], found["1000 Mbit/s, 1 ms"]
    assert stay.headline.startswith("Stay with serial")
    assert "gossip" in stay.headline
    assert choose_.headline.startswith("Choose all_reduce")
    assert (stay.decided, choose_.decided) == (True, True)


def shaped(run: RunResult) -> Any:
    return replace(run.runtime_info, shapes_links=True)


def reaching(strategy: str, times: Sequence[float], nodes: int, reached: bool = True) -> list[RunResult]:
    """Runs with a target accuracy of 90 %, which they reach in their second epoch or never."""
    made = []
    for seed, time in enumerate(times):
        run = a_run(
            strategy, nodes=nodes, seed=seed, train_s=time, epochs=4, target_accuracy=0.9, accuracy=0.95
        )
        points = [
            point.model_copy(update={"target_reached": reached and point.epoch == 2})
            for point in run.epochs
        ]
        made.append(run.model_copy(update={"epochs": points}))
    return made


def test_with_a_target_the_time_to_it_counts() -> None:
    verdict = the_verdict(
        *reaching("serial", around(8.0, 0.02), 1),
        *reaching("all_reduce", around(4.0, 0.02), 2),
        *reaching("all_reduce", around(6.0, 0.02), 4),
        *reaching("ddp", around(2.0, 0.02), 2, reached=False),
    )
    assert verdict.decided
    assert "all_reduce over mpi on 2\N{NO-BREAK SPACE}nodes" in verdict.headline
    assert "ddp over gloo" in verdict.certainty
    assert [(option.name, option.best_time) for option in verdict.options] == [
        ("all_reduce over mpi", True),
        ("serial", False),
    ]


def test_a_target_that_two_reach_at_about_the_same_time() -> None:
    verdict = the_verdict(
        *reaching("all_reduce", around(4.0, 0.2), 2), *reaching("ddp", around(4.02, 0.2)[::-1], 2)
    )
    assert not verdict.decided
    assert all(name in verdict.headline for name in ("all_reduce", "ddp"))
    none = the_verdict(*reaching("all_reduce", around(4.0), 2, reached=False))
    assert (none.decided, none.options) == (False, ())


def test_under_faults_nothing_is_chosen() -> None:
    verdict = next(
        verdict for verdict in verdicts_of(a_comparison(*with_and_without())) if verdict.workload.faults
    )
    assert not verdict.decided
    assert verdict.workload.faults in verdict.headline
    assert [option.time.partition("\N{NO-BREAK SPACE}")[0] for option in verdict.options] == ["11.9"]


def a_lab(published: Sequence[dict[str, Any]], **fields: Any) -> list[Verdict]:
    results = [with_test_set(run) for run in [*runs("serial", 8.0, 0.90), *runs("all_reduce", 4.0, 0.80)]]
    block = BlockRecord.model_validate(
        {"name": "theirs", "keys": [run.key for run in results], "published": published}
    )
    lab = Lab.model_validate({"title": "A lab", "source": "a sheet"})
    record = a_record(results, lab=lab, blocks=[block], **fields)
    return verdicts_of(compare(record, [(run.key, run) for run in results]))


@pytest.mark.parametrize(
    ("accuracies", "count"), [((0.90, 0.80), "All 2"), ((0.90, 0.50), "1 of 2"), ((0.3, 0.4), "None of 2")]
)
def test_a_lab_is_judged_by_what_it_reproduces(accuracies: tuple[float, float], count: str) -> None:
    published = [
        {"runs": {"nodes": nodes}, "accuracy": accuracy}
        for nodes, accuracy in zip((1, 2), accuracies, strict=True)
    ]
    (verdict,) = a_lab(published)
    assert verdict.headline.startswith(count)
    assert verdict.decided
    assert len(verdict.options) == 2


def test_a_changed_lab_is_judged_as_a_sweep() -> None:
    published = [{"runs": {"nodes": 1}, "accuracy": 0.9}]
    (verdict,) = a_lab(published, overrides=["--set epochs=1"])
    assert "all_reduce" in verdict.headline


def test_an_option_shows_its_difference_from_serial_and_itself_on_fewer_nodes() -> None:
    results = [
        *SERIAL_RUNS,
        *runs("all_reduce", 3.0, 0.896, nodes=4),
        *runs("ddp", 5.0, 0.896, nodes=4),
        *runs("all_reduce", 5.0, 0.898, nodes=2),
    ]
    options = {(option.name, option.shape.split()[0]): option for option in the_verdict(*results).options}
    best, fewer, serial = (
        options[key]
        for key in (("all_reduce over mpi", "4"), ("all_reduce over mpi", "2"), ("serial", "1"))
    )
    assert list(options)[:2] == [("all_reduce over mpi", "4"), ("all_reduce over mpi", "2")]
    assert best.difference.split()[0] == "−0.4"
    assert "(" in best.difference  # the interval of the comparison
    assert fewer.difference.split() == ["−0.2", "points"]  # which was not compared
    assert serial.difference == ABSENT


def test_fewer_nodes_are_no_option_if_another_is_no_worse() -> None:
    results = [
        *SERIAL_RUNS,
        *runs("all_reduce", 3.0, 0.896, nodes=4),
        *runs("ddp", 4.0, 0.9, nodes=4),
        *runs("all_reduce", 5.0, 0.898, nodes=2),
    ]
    options = [(option.name, option.shape.split()[0]) for option in the_verdict(*results).options]
    assert ("ddp over gloo", "4") in options
    assert ("all_reduce over mpi", "2") not in options


def test_undecided_losses_are_in_the_headline_as_measured() -> None:
    results = [
        *SERIAL_RUNS,
        *runs("all_reduce", 4.0, 0.86, spread=0.05),
        *runs("ddp", 6.0, 0.90),
    ]
    assert "all_reduce loses accuracy (−4.0" in the_verdict(*results).headline.replace(" over mpi", "")


@pytest.mark.parametrize(
    ("time", "step", "shown"),
    [
        (4.0, 0.02, ("the fastest of 2", "faster than serial")),
        (12.0, 0.02, ("the fastest of 2", "slower than serial")),
        (8.0, 0.02, ("the fastest of 2", "faster or slower than serial: undecided")),
    ],
)
def test_what_is_shown_of_the_first_option(time: float, step: float, shown: tuple[str, str]) -> None:
    results = [*SERIAL_RUNS, *runs("all_reduce", time, 0.9, step), *runs("ddp", 20.0, 0.9)]
    assert tuple(the_verdict(*results).shown.split("; ")) == shown


def test_what_cannot_be_chosen_is_named_with_its_reason() -> None:
    failed = runs("gossip", 4.0, 0.9)
    failed[0] = failed[0].model_copy(update={"status": "failed", "cause": "killed"})
    verdict = the_verdict(*SERIAL_RUNS, *runs("all_reduce", 4.0, 0.9), *runs("ddp", 5.0, 0.9), *failed)
    assert "gossip over mpi (not every run finished)" in verdict.certainty


@pytest.mark.parametrize(
    ("on_two", "why"), [(["all_reduce"], "most configurations"), (["all_reduce", "ddp"], "largest")]
)
def test_the_compared_number_of_nodes_has_its_reason(on_two: list[str], why: str) -> None:
    results = [run for name in ("all_reduce", "ddp") for run in runs(name, 3.0, 0.9, nodes=4)]
    results += [run for name in on_two for run in runs(name, 4.0, 0.9)]
    sentence = the_verdict(*SERIAL_RUNS, *results).certainty.rpartition("Strategies are compared")[2]
    assert why in sentence
