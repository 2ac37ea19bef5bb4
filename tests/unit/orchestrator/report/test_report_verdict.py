"""The verdict: what is chosen, when it is decided, and which options are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.report.formats import ABSENT
from orchestrator.report.model.comparison import compare
from orchestrator.report.verdict import Verdict
from orchestrator.results.records import RunResult
from orchestrator.sweeps.lab import BlockRecord, Lab
from tests.unit.orchestrator.report.test_report_faults import with_and_without
from tests.unit.report_support import ONE_SHOT_ALONE, a_comparison, a_record, a_run, around, verdicts_of


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


def chances(verdict: Verdict) -> dict[str, str]:
    """The chance of each option, by name and shape."""
    return {f"{option.name}, {option.shape}": option.chance for option in verdict.options}


def test_the_fastest_is_chosen_where_accuracy_is_about_equal() -> None:
    results = [
        *SERIAL_RUNS,
        *runs("all_reduce", 4.0, 0.899),
        *runs("ddp", 5.0, 0.900),
        *runs("one_shot", 6.0, 0.901),
    ]
    verdict = the_verdict(*results)
    assert verdict.decided
    assert verdict.headline.startswith("Probably choose all_reduce on 2\N{NO-BREAK SPACE}nodes: 2.00 times")
    assert {"89.9%", "90.0%"} <= {word.strip(",.;:()") for word in verdict.headline.split()}
    assert [option.name for option in verdict.options][:2] == ["all_reduce over mpi", "serial"]
    assert [option.chance for option in verdict.options] == ["over 99%", *["under 1%"] * 3]
    assert "5 of 5" in verdict.certainty


@pytest.mark.parametrize(("seeds", "said"), [(7, "Probably choose"), (8, "Choose")])
def test_a_choice_is_stated_from_eight_seeds_on(seeds: int, said: str) -> None:
    results = [*runs("serial", 8.0, 0.9, seeds=seeds), *runs("all_reduce", 4.0, 0.9, seeds=seeds)]
    assert the_verdict(*results).headline.startswith(f"{said} all_reduce")


def test_a_fast_strategy_that_loses_accuracy_is_not_chosen() -> None:
    results = [*SERIAL_RUNS, *runs("all_reduce", 5.0, 0.90), *runs("one_shot", 3.0, 0.80)]
    verdict = the_verdict(*results)
    assert verdict.headline.startswith("Probably choose all_reduce")
    assert "less accurate: one_shot" in verdict.certainty
    assert "80.0%" in verdict.certainty


def test_serial_stays_where_all_lose_accuracy_or_are_slower() -> None:
    lossy = the_verdict(*SERIAL_RUNS, *runs("all_reduce", 4.0, 0.85), *runs("ddp", 5.0, 0.85))
    assert lossy.headline.startswith("Probably stay with serial")
    assert "less accurate: all_reduce" in lossy.certainty
    slow = the_verdict(*SERIAL_RUNS, *runs("all_reduce", 12.0, 0.90))
    assert slow.headline.startswith("Probably stay with serial")


def test_noise_in_accuracy_chooses_nothing() -> None:
    results = [*SERIAL_RUNS, *runs("all_reduce", 4.0, 0.899, spread=0.05)]
    verdict = the_verdict(*results)
    assert not verdict.decided
    assert {"89.9%", "90.0%"} <= {word.strip(",.;:()") for word in verdict.headline.split()}
    assert all(name in verdict.headline for name in ("all_reduce", "serial"))


def test_of_two_that_may_be_the_choice_both_are_named() -> None:
    results = [
        *SERIAL_RUNS,
        *runs("all_reduce", 4.05, 0.9, step=1.0),
        *runs("ddp", 4.1, 0.9, step=0.2, reversed_=True),
    ]
    verdict = the_verdict(*results)
    assert not verdict.decided
    assert verdict.headline.startswith("A toss-up between ")
    assert all(name in verdict.headline for name in ("all_reduce", "ddp", "serial"))


def test_equal_ones_are_as_good() -> None:
    verdict = the_verdict(
        *SERIAL_RUNS, *runs("all_reduce", 4.0, 0.90, seeds=8), *runs("ddp", 4.0, 0.90, seeds=8)
    )
    assert verdict.decided
    assert "as good" in verdict.certainty


def test_one_algorithm_over_two_transports_has_one_accuracy() -> None:
    """Its accuracies are noisy, but equal in every seed."""
    noisy: dict[str, Any] = {"accuracy": 0.9, "spread": 0.05}
    over = {name: runs("all_reduce", time, transport=name, **noisy) for name, time in TRANSPORTS.items()}
    verdict = the_verdict(*over["mpi"], *over["gloo"])
    assert verdict.headline.startswith("Probably choose all_reduce over mpi")


TRANSPORTS = {"mpi": 4.0, "gloo": 6.0}


def test_what_has_not_learned_or_failed_is_never_chosen() -> None:
    unlearned = [with_test_set(run) for run in runs(ONE_SHOT_ALONE, 2.0, 0.1, spread=0.0)]
    failing = runs("gossip", 3.0, 0.90, seeds=6)  # five of them end
    failing[0] = a_run("gossip", nodes=2, seed=0, status="failed", cause="it crashed")
    verdict = the_verdict(*SERIAL_RUNS, *runs("all_reduce", 4.0, 0.90), *unlearned, *failing)
    assert [option.name for option in verdict.options] == ["all_reduce over mpi", "serial"]
    assert "gossip" not in verdict.headline
    assert "gossip" in verdict.certainty


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_with_few_seeds_nothing_is_chosen(seeds: int) -> None:
    results = [
        *runs("serial", 8.0, 0.9, seeds=seeds),
        *runs("all_reduce", 4.0, 0.9, seeds=seeds),
        *runs("ddp", 6.0, 0.9, seeds=seeds),
    ]
    verdict = the_verdict(*results)
    assert not verdict.decided
    assert {option.chance for option in verdict.options} == {ABSENT}
    assert "all_reduce" in verdict.headline
    assert "--repeat 5" in verdict.certainty


def test_a_strategy_with_too_few_seeds_does_not_hold_up_the_others() -> None:
    verdict = the_verdict(
        *SERIAL_RUNS,
        *runs("all_reduce", 4.0, 0.9),
        *runs("ddp", 6.0, 0.9),
        *runs("gossip", 3.0, 0.9, seeds=1),
    )
    assert verdict.headline.startswith("Probably choose all_reduce")
    assert "gossip" in verdict.certainty


def test_without_serial_and_with_one_strategy() -> None:
    two = the_verdict(*runs("all_reduce", 4.0, 0.9), *runs("ddp", 6.0, 0.9))
    assert two.headline.startswith("Probably choose all_reduce")
    alone = the_verdict(*runs("all_reduce", 4.0, 0.9))
    assert not alone.decided
    only_serial = the_verdict(*SERIAL_RUNS)
    assert (only_serial.decided, only_serial.options) == (False, ())


def test_every_number_of_nodes_can_be_chosen() -> None:
    verdict = the_verdict(
        *SERIAL_RUNS,
        *runs("all_reduce", 4.0, 0.9),
        *runs("all_reduce", 6.0, 0.9, nodes=4),
        *runs("ddp", 7.0, 0.9, nodes=4),
        *runs("gossip", 7.5, 0.9, nodes=4),
    )
    assert verdict.headline.startswith("Probably choose all_reduce on 2\N{NO-BREAK SPACE}nodes")


def test_many_partitioners_are_not_chosen_between() -> None:
    partitioners = ["random_partition", "contiguous", "shards", "stratified"]
    results = [
        run
        for name in partitioners
        for run in runs("all_reduce", 4.0, 0.7 if name == "shards" else 0.9, partitioner=name)
    ]
    verdict = the_verdict(*SERIAL_RUNS, *results)
    assert verdict.headline.count("random_partition") == 1
    assert "random_partition" not in verdict.certainty
    assert "shards" not in verdict.certainty


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
    assert stay.headline.startswith("Probably stay with serial")
    assert choose_.headline.startswith("Probably choose all_reduce")
    assert (stay.decided, choose_.decided) == (True, True)


def test_what_is_as_accurate_as_serial_in_every_seed_and_slower_has_no_chance() -> None:
    """A pipeline computes what serial does, and accuracies vary from seed to seed."""
    accuracies = around(0.9, 0.05)
    both = [("serial", 1, 2.0), ("pipeline", 2, 8.0)]
    verdict = the_verdict(
        *(
            with_test_set(
                a_run(strategy, nodes=nodes, seed=seed, train_s=time + seed / 50, accuracy=accuracy)
            )
            for strategy, nodes, time in both
            for seed, accuracy in enumerate(accuracies)
        )
    )
    assert verdict.decided
    assert [option.chance for option in verdict.options] == ["over 99%", "under 1%"]


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
    assert [(option.name, option.shape[0], option.chance) for option in verdict.options] == [
        ("all_reduce over mpi", "2", "over 99%"),
        ("serial", "1", "under 1%"),
        ("all_reduce over mpi", "4", "under 1%"),
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
    ("accuracies", "count"), [((0.90, 0.80), "Both"), ((0.90, 0.50), "1 of 2"), ((0.3, 0.4), "None of 2")]
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
    assert "stay with serial" in verdict.headline


def test_an_option_shows_its_difference_from_serial() -> None:
    results = [*SERIAL_RUNS, *runs("all_reduce", 3.0, 0.896), *runs("ddp", 5.0, 0.896)]
    best, serial, _ = the_verdict(*results).options
    assert best.difference.split()[0] == "−0.4"
    assert "(" in best.difference  # the interval of the comparison
    assert serial.difference == ABSENT


def test_what_cannot_be_chosen_is_named_with_its_reason() -> None:
    failed = runs("gossip", 4.0, 0.9)
    failed[0] = failed[0].model_copy(update={"status": "failed", "cause": "killed"})
    verdict = the_verdict(*SERIAL_RUNS, *runs("all_reduce", 4.0, 0.9), *runs("ddp", 5.0, 0.9), *failed)
    assert "gossip on 2\N{NO-BREAK SPACE}nodes (not every run finished)" in verdict.certainty
