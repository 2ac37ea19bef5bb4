"""Mistakes in findings: which configurations are compared and named, the direction of a difference, the
seeds and limits from which something is said, and the runs that a finding is about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.report.findings.base import Finding, findings_json
from orchestrator.report.findings.claims import Claims
from orchestrator.report.findings.speedups import speedup_intervals
from orchestrator.report.formats import JOIN, percent
from orchestrator.report.model.rows import NO_SERIAL
from orchestrator.report.quantities import ACCURACY, TRAIN_S
from orchestrator.report.render.summary import seeds_line
from orchestrator.report.topics import asked_by, find
from orchestrator.report.topics.runs import Tally
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    FAST,
    ONE_SHOT_ALONE,
    SERIAL,
    a_comparison,
    a_run,
    around,
    finding_of,
    findings_of,
    repeated,
)

approx = pytest.approx


def compared(finding: Finding) -> list[tuple[float, float, str]]:
    """The two values and the decision of each of its comparisons."""
    return [(*map(pytest.approx, each["values"]), each["decision"]) for each in finding.data["compared"]]


def timed(strategy: str | dict[str, Any], mean: float, nodes: int = 2, **fields: Any) -> list[RunResult]:
    """Five seeds of nearly the same time."""
    return repeated(strategy, around(mean, 0.01), nodes=nodes, **fields)


def scored(strategy: str | dict[str, Any], mean: float, nodes: int = 2, **fields: Any) -> list[RunResult]:
    """Five seeds of nearly the same accuracy."""
    return repeated(strategy, around(mean), "accuracy", nodes=nodes, **fields)


# Speed


def test_the_fastest_has_its_numbers_and_runs() -> None:
    serial, slow, fast = timed("serial", 8, 1), timed("ddp", 6), timed("all_reduce", 4)
    finding = finding_of(a_comparison(*serial, *slow, *fast), "fastest")
    data = finding.data
    assert (data["strategy"], data["ranks"], data["fastest"]) == ("all_reduce over mpi", 2, True)
    assert (data["train_s"], data["serial_train_s"]) == (approx(4, rel=1e-3), approx(8, rel=1e-3))
    assert (data["speedup"], data["efficiency"]) == (approx(2, rel=1e-3), approx(1, rel=1e-3))
    low, high = data["speedup_interval"]
    assert 1.7 < low < data["speedup"] < high < 2.3
    assert (data["faster"], data["slower"]) == (True, False)
    assert {row.key for row in finding.rows} == {result.key for result in [*serial, *fast]}
    swapped = a_comparison(*serial, *timed("ddp", 3), *fast)
    assert finding_of(swapped, "fastest").data["strategy"] == "ddp over gloo"


def test_ranks_per_node_count_in_the_efficiency_and_are_no_more_nodes() -> None:
    comparison = a_comparison(
        *timed("serial", 8, 1, cores=1.5),
        *timed("ddp", 4, 1, processes_per_node=2, cores=1.5),
        *timed("ddp", 9, 2, processes_per_node=2, cores=1.5),
        *timed("all_reduce", 7, 2, processes_per_node=2, cores=1.5),
        *timed("all_reduce", 3, 2, cores=1.5),
    )
    fastest = finding_of(comparison, "fastest")
    assert (fastest.data["strategy"], fastest.data["ranks"]) == ("all_reduce over mpi", 4)
    assert fastest.data["efficiency"] == approx(8 / 7 / 4, rel=1e-3)
    assert f"efficiency {percent(fastest.data['efficiency'])}" in fastest.text
    more = finding_of(comparison, "more_nodes").data  # the same number of ranks in each node
    assert (more["strategy"], more["ranks"], more["steps"]) == ("ddp over gloo", [2, 4], ["more"])
    shared = finding_of(comparison, "shared_cores").data
    assert (shared["shapes"], shared["limit"]) == (["1 × 2", "2", "2 × 2"], 1.5)


@pytest.mark.parametrize(
    ("strategy", "fields"),
    [(ONE_SHOT_ALONE, {}), ("one_shot", {"lr_scaling": "linear"})],
    ids=["init", "scaling"],
)
def test_variants_that_do_the_same_work_are_not_ranked_by_time(
    strategy: Any, fields: dict[str, Any]
) -> None:
    default = timed("one_shot", 5, accuracy=0.5)
    variant = timed(strategy, 4, accuracy=0.5, **fields)
    comparison = a_comparison(*default, *variant, *timed("ddp", 9, accuracy=0.5))
    data = finding_of(comparison, "fastest").data
    assert (data["strategy"], data["fastest"]) == ("one_shot over mpi", True)
    assert {key for each in data["compared"] for key in each["left"]} == {run.key for run in default}
    assert "one_shot over mpi" not in finding_of(comparison, "front").data["off"]


@pytest.mark.parametrize(
    ("slower", "faster", "first", "few"),
    [
        (around(4.1, 0.1), around(4, 0.1)[::-1], False, False),
        (around(5, 0.1), around(4, 0.1), True, False),
        (around(5, 0.1, seeds=4), around(4, 0.1, seeds=4), False, True),  # however far apart
    ],
    ids=["undecided", "decided", "four seeds"],
)
def test_only_a_decided_order_names_the_fastest(
    slower: list[float], faster: list[float], first: bool, few: bool
) -> None:
    comparison = a_comparison(*repeated("ddp", slower, nodes=2), *repeated("all_reduce", faster, nodes=2))
    assert finding_of(comparison, "fastest").data["fastest"] is first
    found = [finding.data["all"] for finding in findings_of(comparison, "too_few_seeds")]
    assert found == ([True] if few else [])
    assert ("claims no differences" in seeds_line(comparison)) is few


def test_one_configuration_with_enough_seeds_allows_claims() -> None:
    comparison = a_comparison(*timed("serial", 8, 1), FAST)
    assert "claims no differences" not in seeds_line(comparison)
    assert finding_of(comparison, "too_few_seeds").data["configurations"] == [
        f"all_reduce over mpi on 2{JOIN}nodes"
    ]


@pytest.mark.parametrize("number", [4, 5])
def test_more_than_four_slower_strategies_are_named_by_their_ends(number: int) -> None:
    names = ["all_reduce", "all_gather", "reduce_broadcast", "local_sgd", "gossip"][:number]
    runs = [run for at, name in enumerate(names) for run in timed(name, 9.0 + at, transport="mpi")]
    fast = timed("ddp", 4)
    finding = finding_of(a_comparison(*timed("serial", 8, 1), *runs, *fast), "slower_than_serial")
    named = [f"{name} over mpi" for name in names]
    assert finding.data["named"] == (named if number == 4 else [named[0], named[-1]])
    assert (list(finding.data["train_s"]), finding.data["of"]) == (named, number + 1)
    assert {decision for *_, decision in compared(finding)} == {"more"}


def test_more_nodes_are_compared_with_the_next_fewer() -> None:
    runs = [run for nodes, mean in ((2, 5), (4, 9), (8, 3)) for run in timed("ddp", mean, nodes)]
    finding = finding_of(a_comparison(*runs), "more_nodes")
    assert (finding.data["ranks"], finding.data["steps"]) == ([2, 4, 8], ["more", "less"])
    assert finding.data["whole"] == "less"
    assert [
        (round(left), round(right)) for left, right in (each["values"] for each in finding.data["compared"])
    ] == [
        (9, 5),
        (3, 9),
        (3, 5),
    ]


def test_ways_to_take_the_same_mean_gradient_are_compared_by_step() -> None:
    def taking(strategy: str | dict[str, Any], exchange_s: float) -> list[RunResult]:
        times = around(exchange_s, 0.01)
        return repeated(strategy, times, "communicate_s", nodes=2, transport="mpi", steps=90)

    sign = {"name": "all_reduce", "compression": "sign"}
    runs = [
        *taking("all_gather", 1.8),
        *taking("all_reduce", 0.9),
        *taking("one_shot", 0.1),
        *taking(sign, 0.1),
    ]
    finding = finding_of(a_comparison(*runs), "mean_gradient")
    assert finding.data["exchange_s_per_step"] == {
        "all_reduce": approx(0.01, rel=1e-3),
        "all_gather": approx(0.02, rel=1e-3),
    }
    assert finding.data["bytes_per_step"]["all_reduce"] == approx(1e6 / 90)
    assert [decision for *_, decision in compared(finding)] == ["more"]
    assert findings_of(a_comparison(*runs[:5], *runs[15:]), "mean_gradient") == []


def test_the_front_needs_a_decision_against_every_other() -> None:
    def both(
        strategy: str, train_s: float, accuracy: float, sign: int = 1, step: float = 0.001
    ) -> list[RunResult]:
        pairs = zip(around(train_s, 0.02 * sign), around(accuracy, step * sign), strict=True)
        return [
            a_run(strategy, nodes=2, seed=seed, train_s=time, accuracy=reached)
            for seed, (time, reached) in enumerate(pairs)
        ]

    fast, exact = both("one_shot", 2, 0.90), both("all_reduce", 4, 0.95)
    dominated, similar = both("gossip", 5, 0.85), both("ddp", 4.01, 0.9505, -1)
    data = finding_of(a_comparison(*fast, *exact, *dominated), "front").data
    assert data["on"] == ["one_shot over mpi", "all_reduce over mpi"]
    assert (data["off"], data["undecided"]) == (["gossip over mpi"], [])
    data = finding_of(a_comparison(*fast, *exact, *similar), "front").data
    assert (data["on"], data["off"]) == (["one_shot over mpi"], [])
    assert data["undecided"] == ["all_reduce over mpi", "ddp over gloo"]
    even = [both(name, time, 0.9, step=0.0) for name, time in (("gossip", 2), ("all_reduce", 4))]
    data = finding_of(a_comparison(*even[0], *even[1]), "front").data
    assert data["off"] == ["all_reduce over mpi"]  # slower, and exactly as accurate


def test_the_interval_of_a_speedup_is_over_the_first_serial_configuration() -> None:
    serial = timed("serial", 8, 1)
    kept = timed("serial", 16, 1, checkpoint_epochs=1)
    comparison = a_comparison(*serial, *kept, *timed("ddp", 4))
    interval = speedup_intervals(comparison, Claims())(comparison.groups[-1])
    assert interval is not None
    assert interval[0] < 2 < interval[1] < 4


# Accuracy


def test_every_difference_is_that_of_the_values_beside_it() -> None:
    serial = scored("serial", 0.955, 1)  # one seed is missing
    ddp = repeated("ddp", [0.90, 0.91, 0.92, 0.93, 0.94, 0.98], "accuracy", nodes=2)
    (each,) = finding_of(a_comparison(*serial, *ddp), "best_accuracy").data["compared"]
    low, high = each["interval"]
    assert (low + high) / 2 == approx(each["values"][0] - each["values"][1])
    assert each["values"] == [approx(0.93), approx(0.955)]


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


def test_variants_are_compared_with_the_default_and_not_with_each_other() -> None:
    def compressed(name: str, mean: float, **fields: Any) -> list[RunResult]:
        return scored({"name": "all_reduce", "compression": name}, mean, transport="gloo", **fields)

    found = findings_of(
        a_comparison(
            *compressed("sign", 0.81, bytes_sent=2e4),
            *scored("all_reduce", 0.91, transport="gloo"),
            *compressed("fp16", 0.905, bytes_sent=5e5),
            *scored("ddp", 0.91),
            *scored("pipeline", 0.8),
            *scored({"name": "pipeline", "micro_batches": 8}, 0.9),  # equal mathematics
        ),
        "variant",
    )
    names = ("parameters", "accuracy", "bytes_sent")
    assert [tuple(finding.data[name] for name in names) for finding in found] == [
        (({"compression": "none"}, {"compression": name}), (approx(0.91), approx(accuracy)), (1e6, sent))
        for name, accuracy, sent in (("sign", 0.81, 2e4), ("fp16", 0.905, 5e5))
    ]
    assert [each for finding in found for *_, each in compared(finding)] == ["less", "less"]


# Partitioners


def skewed(strategy: str, accuracies: list[float], label: str = "contiguous") -> list[RunResult]:
    return repeated(strategy, accuracies, "accuracy", nodes=4, transport="mpi", partitioner=label)


@pytest.mark.parametrize(
    ("one_shot", "local_sgd", "expected"),
    [
        (around(0.61), around(0.81), ("one_shot over mpi", "local_sgd over mpi")),
        (around(0.61, 0.03), around(0.63, 0.03)[::-1], ("local_sgd over mpi", None)),
        (around(0.90, 0.03)[::-1], around(0.94, 0.03), None),
        (around(0.95), around(0.98), None),
    ],
    ids=["recovered", "not recovered", "undecided", "gain"],
)
def test_the_loss_under_a_partitioner_and_its_recovery(
    one_shot: list[float], local_sgd: list[float], expected: tuple[str, str | None] | None
) -> None:
    even = [
        *skewed("one_shot", around(0.91), "random_partition"),
        *skewed("local_sgd", around(0.945), "random_partition"),
    ]
    comparison = a_comparison(*even, *skewed("one_shot", one_shot), *skewed("local_sgd", local_sgd))
    found = [finding.data for finding in findings_of(comparison, "partitioner_loss")]
    assert [(data["strategy"], data["best"]) for data in found] == ([expected] if expected else [])


def test_the_largest_loss_is_not_that_of_the_lowest_accuracy() -> None:
    runs = [
        *skewed("one_shot", around(0.6), "random_partition"),
        *skewed("local_sgd", around(0.95), "random_partition"),
        *skewed("one_shot", around(0.5)),
        *skewed("local_sgd", around(0.7)),
    ]
    data = finding_of(a_comparison(*runs), "partitioner_loss").data
    assert (data["strategy"], data["loss"], data["best"]) == ("local_sgd over mpi", approx(0.25), None)


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


def test_all_families_and_rankings_share_the_probability_of_a_false_claim() -> None:
    comparison = a_comparison(
        *timed("serial", 8, 1), *timed("ddp", 7), *scored("gossip", 0.8), *scored("diloco", 0.7)
    )
    serial, *others = comparison.groups

    def width(rankings: int, families: int) -> float:
        claims = Claims()
        claims.with_reference(TRAIN_S, serial, others[:1])
        for group in others[:families]:
            claims.with_reference(ACCURACY, group, [serial])
        for at in range(rankings):
            claims.all_pairs(ACCURACY, [others[at], others[at + 1]])
        (each,) = claims.decided().with_reference(TRAIN_S, serial, others[:1])
        assert (each.level, each.interval is None) == ("shown", False)
        low, high = each.interval or (1.0, 1.0)
        return high / low

    assert width(0, 0) < width(2, 0) < width(2, 2)
    assert width(0, 0) < width(0, 2)


def test_drift_is_that_within_configurations() -> None:
    runs = [
        run.model_copy(update={"started_at": run.started_at + 10.0 * seed + place})
        for place, (name, base, nodes) in enumerate([("serial", 8.0, 1), ("ddp", 4.0, 2)])
        for seed, run in enumerate(repeated(name, [base * 1.1**at for at in range(5)], nodes=nodes))
    ]
    assert finding_of(a_comparison(*runs), "drift").data["factor"] == approx(1.1 ** (41 / 10), rel=0.01)
    assert findings_of(a_comparison(*runs[:2], *runs[5:7]), "drift") == []


def test_runs_that_did_not_learn_are_named() -> None:
    def learned(accuracy: float, **fields: Any) -> RunResult:
        run = a_run(accuracy=accuracy, **fields)
        known = {"test_samples": 360, "chance_accuracy": 0.1}
        return run.model_copy(update={"ranks": [rank.model_copy(update=known) for rank in run.ranks]})

    def rising(run: RunResult, *losses: str) -> RunResult:
        points = [
            point.model_copy(update=dict.fromkeys(losses, float(point.epoch))) for point in run.epochs
        ]
        return run.model_copy(update={"epochs": points})

    chance, trained = learned(0.12), learned(0.3, seed=1)
    finding = finding_of(a_comparison(chance, trained), "not_learned")
    assert [row.key for row in finding.rows] == [chance.key]
    assert finding_of(a_comparison(rising(trained, "loss", "test_loss")), "not_learned")
    assert findings_of(a_comparison(rising(trained, "test_loss")), "not_learned") == []  # overfitted
    assert findings_of(a_comparison(a_run(accuracy=0.05)), "not_learned") == []  # the test set is unknown


def test_shared_cores_bound_the_wall_clock_speedup() -> None:
    small = {"runtime": "docker", "cores": 2, "cpus": 0.4}  # five nodes fit

    def limits(nodes: int, train_s: float, **fields: Any) -> list[tuple[float, float | None]]:
        comparison = a_comparison(a_run(**fields), a_run("ddp", nodes=nodes, train_s=train_s, **fields))
        found = [finding.data for finding in findings_of(comparison, "shared_cores")]
        return [(data["limit"], data.get("beyond_limit")) for data in found]

    assert limits(4, 8.0, cores=4) == limits(5, 8.0, **small) == []
    assert [limits(4, 8.0, cores=2), limits(6, 2.0, **small)] == [[(2, None)], [(5, None)]]
    assert [limits(4, 2.0, cores=2), limits(6, 1.0, **small)] == [[(2, 4.0)], [(5, 8.0)]]


# Cautions


def test_cautions() -> None:
    unverified = a_run("ddp", nodes=2, verified=False, cores=4)
    apart = a_run("all_reduce", nodes=2, digests=["one", "other"], runtime="docker")
    late = a_run("fault_injection", status="timeout", cause="stopped after 9 s")
    lost = [a_run("gossip", nodes=2, seed=seed, status="failed", cause="no room") for seed in range(9)]
    comparison = a_comparison(unverified, apart, late, *lost, pending=["ddp-gloo-n4-s0-0"])
    assert [row.key for row in finding_of(comparison, "not_verified").rows] == [unverified.key]
    assert [row.key for row in finding_of(comparison, "replicas_differ").rows] == [apart.key]
    conditions = {
        finding.data["condition"]: (finding.data["values"], finding.data["compared"])
        for finding in findings_of(comparison, "conditions_differ")
    }
    assert conditions == {"runtime": (["local", "docker"], False), "number of cores": (["4", "8"], True)}
    separate = ["not compared" in finding.text for finding in findings_of(comparison, "conditions_differ")]
    assert separate == [True, False]
    assert [(each.data["status"], len(each.rows)) for each in findings_of(comparison, "failed")] == [
        ("timeout", 1),
        ("failed", 9),
    ]
    assert finding_of(comparison, "pending").data == {"pending": 1, "planned": 13}
    assert {finding.data["reason"] for finding in findings_of(comparison, "no_serial")} == {NO_SERIAL}
    assert {finding.kind for finding in find(comparison) if not finding.rows} == {
        "pending",
        "conditions_differ",
    }


@pytest.mark.parametrize(("reshard", "sent"), [(True, 8e6), (False, 9e6)])
def test_bytes_that_a_library_sends_beyond_the_count_are_stated(reshard: bool, sent: float) -> None:
    """Two all-gathers and a reduce-scatter with reshard, and one of each without it."""
    fields: dict[str, Any] = {"nodes": 2, "transport": "gloo", "bytes_sent": 6e6}
    fsdp = a_run({"name": "fsdp", "reshard": reshard}, **fields)
    others = [a_run("serial", bytes_sent=0.0), a_run("zero2", **fields), a_run("all_reduce", **fields)]
    finding = finding_of(a_comparison(*others, fsdp), "sent_beyond_count")
    assert (finding.data["counted"], finding.data["sent"]) == (6e6, pytest.approx(sent))
    assert ([row.key for row in finding.rows], finding.caution) == ([fsdp.key], True)


# Workloads, and findings as text


def test_findings_name_their_workload_unless_all_have_the_same() -> None:
    comparison = a_comparison(SERIAL, FAST, a_run("ddp", nodes=2, batch_size=16, train_s=1.0))
    first, second = findings_of(comparison, "fastest")
    assert [finding.workload.batch_size for finding in (first, second) if finding.workload] == [32, 16]
    assert ["speedup" in finding.data for finding in (first, second)] == [True, False]
    few = a_comparison(SERIAL, *(a_run(lr=lr) for lr in (0.1, 0.2)))
    finding = finding_of(few, "too_few_seeds")
    assert (finding.workload, len(finding.rows)) == (None, 3)
    some = a_comparison(*timed("serial", 8, 1), *(a_run(lr=lr) for lr in (0.1, 0.2)))
    found = findings_of(some, "too_few_seeds")
    assert [finding.workload.lr for finding in found if finding.workload] == [0.1, 0.2]


def test_the_first_sentence_of_a_finding_ends_at_no_decimal_point() -> None:
    assert Finding("fastest", "It took 1.5 s. More.").first_sentence == "It took 1.5 s."
    assert Finding("fastest", "It took 1.5 s.").first_sentence == "It took 1.5 s."


def test_findings_json_has_all_numbers_in_plain_text() -> None:
    comparison = a_comparison(*timed("serial", 8, 1), *timed("ddp", 4), *timed("gossip", 5))
    findings = find(comparison, asked_by(comparison).decided())
    written = findings_json(findings)
    assert JOIN not in written
    entries = json.loads(written)
    assert [(each["kind"], each["caution"], each["runs"]) for each in entries] == [
        (each.kind, each.caution, [row.key for row in each.rows]) for each in findings
    ]
    (time,) = [each for each in entries[0:] if each["kind"] == "fastest"]
    one, *_ = time["data"]["compared_with_serial"]
    assert (one["scale"], one["level"], len(one["left"]), len(one["right"])) == ("ratio", "shown", 5, 5)
