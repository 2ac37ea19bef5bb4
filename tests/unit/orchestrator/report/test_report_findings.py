"""Findings: their kinds, numbers and runs, and when they appear."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.findings.base import Finding
from orchestrator.report.formats import JOIN
from orchestrator.report.model.rows import NO_SERIAL
from orchestrator.report.render.summary import seeds_line
from orchestrator.report.statistics.drift import WIDE
from orchestrator.report.topics import find
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


def test_fastest_has_its_numbers_and_runs() -> None:
    serial, slow = repeated("serial", around(8, 0.05)), repeated("ddp", around(6, 0.05), nodes=2)
    fast = repeated("all_reduce", around(4, 0.05), nodes=2)
    finding = finding_of(a_comparison(*serial, *slow, *fast), "fastest")
    data = finding.data
    assert (data["strategy"], data["ranks"], data["fastest"]) == ("all_reduce over mpi", 2, True)
    assert (data["train_s"], data["serial_train_s"]) == (approx(4, rel=1e-3), approx(8, rel=1e-3))
    assert data["speedup"] == approx(data["serial_train_s"] / data["train_s"])
    low, high = data["speedup_interval"]
    assert 1.7 < low < data["speedup"] < high < 2.3
    assert data["efficiency"] == approx(data["speedup"] / 2)
    assert {row.key for row in finding.rows} == {result.key for result in [*serial, *fast]}
    swapped = a_comparison(*serial, *repeated("ddp", around(3, 0.05), nodes=2), *fast)
    assert finding_of(swapped, "fastest").data["strategy"] == "ddp over gloo"


@pytest.mark.parametrize(
    ("strategy", "fields"), [(ONE_SHOT_ALONE, {}), ("one_shot", {"lr_scaling": "linear"})]
)
def test_variants_that_do_the_same_work_are_not_ranked_by_time(
    strategy: Any, fields: dict[str, Any]
) -> None:
    default = repeated("one_shot", around(5, 0.05), nodes=2, accuracy=0.5)
    variant = repeated(strategy, around(4, 0.05), nodes=2, accuracy=0.5, **fields)
    comparison = a_comparison(*default, *variant, *repeated("ddp", around(9, 0.05), nodes=2, accuracy=0.5))
    data = finding_of(comparison, "fastest").data
    assert (data["strategy"], data["fastest"]) == ("one_shot over mpi", True)
    assert {key for each in data["compared"] for key in each["left"]} == {run.key for run in default}
    assert "one_shot over mpi" not in finding_of(comparison, "front").data["off"]


@pytest.mark.parametrize(
    ("slower", "faster", "first", "few"),
    [
        (around(4.1, 0.1), around(4, 0.1)[::-1], False, False),
        (around(5, 0.1), around(4, 0.1), True, False),
        ([5, 5.1], [4, 4.1], False, True),  # two seeds, however far apart
        ([5], [4], False, True),
    ],
)
def test_only_a_decided_order_names_the_fastest(
    slower: list[float], faster: list[float], first: bool, few: bool
) -> None:
    comparison = a_comparison(*repeated("ddp", slower, nodes=2), *repeated("all_reduce", faster, nodes=2))
    assert finding_of(comparison, "fastest").data["fastest"] is first
    found = [finding.data["all"] for finding in findings_of(comparison, "too_few_seeds")]
    assert found == ([True] if few else [])


def test_strategies_slower_than_serial_and_more_nodes() -> None:
    comparison = a_comparison(
        *repeated("serial", around(8, 0.05)),
        *repeated("ddp", around(5, 0.05), nodes=2),
        *repeated("ddp", around(9, 0.05), nodes=4, communicate_s=4.0),
        *repeated("one_shot", around(9, 0.05), nodes=2),
        *repeated("one_shot", around(4, 0.05), nodes=4),
    )
    steps = {each.data["strategy"]: each.data for each in findings_of(comparison, "more_nodes")}
    assert steps["ddp over gloo"]["ranks"] == [2, 4]
    assert steps["ddp over gloo"]["steps"] == ["more"]
    assert steps["one_shot over mpi"]["steps"] == ["less"]
    slower = finding_of(comparison, "slower_than_serial")
    assert slower.data["train_s"] == {"ddp over gloo": approx(9, rel=1e-3)}
    assert [each["decision"] for each in slower.data["compared"]] == ["more"]


def test_of_many_slower_strategies_the_first_and_the_last_are_named() -> None:
    names = ["all_reduce", "all_gather", "reduce_broadcast", "local_sgd", "gossip"]
    runs = [
        run
        for at, name in enumerate(names)
        for run in repeated(name, around(9.0 + at, 0.01), nodes=2, transport="mpi")
    ]
    data = finding_of(a_comparison(*repeated("serial", around(8, 0.01)), *runs), "slower_than_serial").data
    assert data["named"] == ["all_reduce over mpi", "gossip over mpi"]
    assert (len(data["train_s"]), data["of"]) == (5, 5)


def test_transports_and_ddp_are_compared() -> None:
    comparison = a_comparison(
        *repeated("all_reduce", around(4, 0.05), nodes=2, transport="mpi", communicate_s=0.5),
        *repeated("all_reduce", around(8, 0.05), nodes=2, transport="gloo", communicate_s=4.0),
        *repeated("ddp", around(6, 0.05), nodes=2, communicate_s=3.0),
    )
    transports = finding_of(comparison, "transports")
    assert transports.data["communicate_s"] == {"mpi": approx(0.5), "gloo": approx(4.0)}
    assert compared(transports) == [(approx(4, rel=1e-3), approx(8, rel=1e-3), "less")]
    exchange = finding_of(comparison, "all_reduce_and_ddp")
    assert set(exchange.data["exchange_share"]) == {"all_reduce", "ddp"}
    assert compared(exchange) == [(approx(6, rel=1e-3), approx(8, rel=1e-3), "less")]


def test_accuracy_is_compared_with_serial_and_with_every_other() -> None:
    serial = repeated("serial", around(0.955), "accuracy", steps=90)
    ddp = repeated("ddp", around(0.905), "accuracy", nodes=2, steps=45)
    one_shot = repeated("one_shot", around(0.51), "accuracy", nodes=2, steps=45)
    comparison = a_comparison(*serial, *ddp, *one_shot)
    finding = finding_of(comparison, "best_accuracy")
    assert (finding.data["best"], finding.data["worst"]) == ("ddp over gloo", "one_shot over mpi")
    assert compared(finding) == [
        (approx(0.905), approx(0.955), "less"),
        (approx(0.51), approx(0.955), "less"),
        (approx(0.905), approx(0.51), "more"),
    ]
    fewer = finding_of(comparison, "fewer_updates").data
    assert fewer["updates"] == {"ddp over gloo": (45, 45), "one_shot over mpi": (45, 45)}
    assert fewer["serial_updates"] == (90, 90)
    close = a_comparison(*serial, *repeated("ddp", around(0.9548)[::-1], "accuracy", nodes=2, steps=45))
    assert [decision for *_, decision in compared(finding_of(close, "best_accuracy"))] == ["undecided"]
    assert findings_of(close, "fewer_updates") == []


def test_steps_of_all_ranks_update_a_shared_model() -> None:
    serial = repeated("serial", around(0.955), "accuracy", steps=90)
    hogwild = repeated("hogwild", around(0.90), "accuracy", nodes=2, steps=45)
    assert findings_of(a_comparison(*serial, *hogwild), "fewer_updates") == []
    ddp = repeated("ddp", around(0.90), "accuracy", nodes=2, steps=45)
    data = finding_of(a_comparison(*serial, *hogwild, *ddp), "fewer_updates").data
    assert list(data["updates"]) == ["ddp over gloo"]  # hogwild does not suppress it


def test_runs_on_fewer_samples_do_not_lose_by_fewer_updates() -> None:
    serial = repeated("serial", around(0.955), "accuracy", steps=90)
    half = repeated("ddp", around(0.90), "accuracy", nodes=2, steps=45, coverage=0.5)
    assert findings_of(a_comparison(*serial, *half), "fewer_updates") == []


def test_every_difference_is_that_of_the_values_beside_it() -> None:
    serial = repeated("serial", around(0.955, seeds=5), "accuracy")  # one seed is missing
    ddp = repeated("ddp", [0.90, 0.91, 0.92, 0.93, 0.94, 0.98], "accuracy", nodes=2)
    (each,) = finding_of(a_comparison(*serial, *ddp), "best_accuracy").data["compared"]
    low, high = each["interval"]
    assert (low + high) / 2 == approx(each["values"][0] - each["values"][1])
    assert each["values"] == [approx(0.93), approx(0.955)]


@pytest.mark.parametrize(
    ("finals", "effect"),
    [
        (around(0.81), "more"),
        (around(0.21), "less"),
        ([0.6] * 5, "equal"),
        (around(0.6, 0.02), "undecided"),
        ([0.8, 0.82], "too_few_seeds"),
    ],
)
def test_averaging_gains_or_loses(finals: list[float], effect: str) -> None:
    runs = repeated("one_shot", finals, "accuracy", nodes=2, own=[0.5, 0.7])
    data = finding_of(a_comparison(*runs), "averaging").data
    assert data["local_accuracy"] == approx(0.6)
    assert data["effect"] == effect


def test_variants_of_a_strategy_are_compared_with_its_default() -> None:
    runs = [
        *repeated("one_shot", around(0.81), "accuracy", nodes=2),
        *repeated(ONE_SHOT_ALONE, around(0.21), "accuracy", nodes=2),
    ]
    data = finding_of(a_comparison(*runs), "variant").data
    assert data["parameters"] == ({"init": "broadcast"}, {"init": "independent"})
    assert data["accuracy"] == (approx(0.81), approx(0.21))
    assert [each["decision"] for each in data["compared"]] == ["less"]
    assert findings_of(a_comparison(*runs[:5]), "variant") == []


def test_compressions_are_compared_with_none_by_accuracy_and_bytes() -> None:
    def compressed(name: str, **fields: Any) -> list[RunResult]:
        return repeated({"name": "all_reduce", "compression": name}, around(0.81), "accuracy", **fields)

    common = {"nodes": 2, "transport": "gloo"}
    comparison = a_comparison(
        *compressed("sign", bytes_sent=2e4, **common),
        *repeated("all_reduce", around(0.91), "accuracy", **common),
        *compressed("fp16", bytes_sent=5e5, **common),
        *repeated("ddp", around(0.91), "accuracy", **common),
    )
    data = [
        finding.data for finding in findings_of(comparison, "variant")
    ]  # each with the default, not with each other
    assert [each["parameters"] for each in data] == [
        ({"compression": "none"}, {"compression": name}) for name in ("sign", "fp16")
    ]
    assert [each["bytes_sent"] for each in data] == [(1e6, 2e4), (1e6, 5e5)]
    # A compression changes the mathematics: only the plain all_reduce is compared with ddp.
    assert len(findings_of(comparison, "all_reduce_and_ddp")) == 1


def test_partitioners_are_compared_by_coverage_overlap_and_accuracy() -> None:
    sampling = {"partitioner": "random_sampling", "coverage": 0.75, "overlap": 0.25}
    comparison = a_comparison(
        *repeated("ddp", around(0.91), "accuracy", nodes=2),
        *repeated("ddp", around(0.81), "accuracy", nodes=2, **sampling),
    )
    finding = finding_of(comparison, "partitioner_effect")
    assert (finding.data["partitioner"], finding.data["reference"]) == (
        "random_sampling",
        "random_partition",
    )
    assert compared(finding) == [(approx(0.81), approx(0.91), "less")]
    assert (finding.data["coverage"], finding.data["overlap"]) == (0.75, 0.25)


def with_part_sizes(run: RunResult, sizes: list[int]) -> RunResult:
    assert run.certificate is not None
    parts = [
        part.model_copy(update={"samples": samples})
        for part, samples in zip(run.certificate.parts, sizes, strict=True)
    ]
    return run.model_copy(update={"certificate": run.certificate.model_copy(update={"parts": parts})})


def test_unequal_parts_show_what_they_cost_in_time() -> None:
    even = repeated("ddp", around(0.91), "accuracy", nodes=2, train_s=4.0)
    slow = repeated("ddp", around(0.9), "accuracy", nodes=2, train_s=7.0, partitioner="quantity")
    uneven = [with_part_sizes(run, [900, 300]) for run in slow]
    finding = finding_of(a_comparison(*even, *uneven), "partitioner_effect")
    assert finding.data["train_s"] == {"ddp over gloo": (approx(7.0), approx(4.0))}
    assert "ddp over gloo 7.00 s and 4.00 s" in finding.text.replace(JOIN, " ")
    equal = finding_of(
        a_comparison(*even, *repeated("ddp", around(0.9), "accuracy", nodes=2, partitioner="contiguous")),
        "partitioner_effect",
    )
    assert "4.00 s" not in equal.text


def skewed(strategy: str, accuracies: list[float], label: str = "contiguous") -> list[RunResult]:
    return repeated(strategy, accuracies, "accuracy", nodes=4, transport="mpi", partitioner=label)


EVEN = [
    *skewed("one_shot", around(0.91), "random_partition"),
    *skewed("local_sgd", around(0.945), "random_partition"),
]


@pytest.mark.parametrize(
    ("one_shot", "local_sgd", "loss", "best"),
    [
        (around(0.61), around(0.81), 0.3, "local_sgd over mpi"),
        (around(0.61), around(0.94), 0.3, "local_sgd over mpi"),
        (around(0.90, 0.03)[::-1], around(0.94, 0.03), None, None),  # undecided: no loss
        (around(0.61, 0.03), around(0.63, 0.03)[::-1], 0.3, None),  # undecided: recovers nothing
        ([0.61, 0.62], [0.81, 0.82], None, None),  # too few seeds
    ],
)
def test_the_loss_under_a_partitioner_and_its_recovery(
    one_shot: list[float], local_sgd: list[float], loss: float | None, best: str | None
) -> None:
    comparison = a_comparison(*EVEN, *skewed("one_shot", one_shot), *skewed("local_sgd", local_sgd))
    found = [
        (finding.data["loss"], finding.data["best"])
        for finding in findings_of(comparison, "partitioner_loss")
    ]
    assert found == ([] if loss is None else [(approx(loss, abs=0.02), best)])


def test_a_gain_is_not_a_loss() -> None:
    even = skewed("one_shot", around(0.9), "random_partition")
    comparison = a_comparison(*even, *skewed("one_shot", around(0.95)))
    assert len(findings_of(comparison, "partitioner_effect")) == 1
    assert findings_of(comparison, "partitioner_loss") == []


def test_gradient_averaging_strategies_are_compared_by_step() -> None:
    def taking(strategy: str, exchange_s: float) -> list[RunResult]:
        return [
            a_run(strategy, seed=seed, nodes=2, transport="mpi", communicate_s=value, steps=90)
            for seed, value in enumerate(around(exchange_s, 0.01))
        ]

    runs = [*taking("all_reduce", 0.9), *taking("all_gather", 1.8), *taking("one_shot", 0.1)]
    runs += repeated({"name": "all_reduce", "compression": "sign"}, around(8), nodes=2, transport="mpi")
    finding = finding_of(a_comparison(*runs), "mean_gradient")
    assert finding.data["exchange_s_per_step"] == {
        "all_reduce": approx(0.01, rel=1e-3),
        "all_gather": approx(0.02, rel=1e-3),
    }
    assert finding.data["bytes_per_step"]["all_reduce"] == approx(1e6 / 90)
    assert [decision for *_, decision in compared(finding)] == ["less"]
    assert findings_of(a_comparison(*runs[:5]), "mean_gradient") == []


def test_the_front_needs_a_decision_against_every_other() -> None:
    def both(strategy: str, train_s: float, accuracy: float, sign: int = 1) -> list[RunResult]:
        return [
            a_run(strategy, nodes=2, seed=seed, train_s=time, accuracy=reached)
            for seed, (time, reached) in enumerate(
                zip(around(train_s, 0.02 * sign), around(accuracy, 0.001 * sign), strict=True)
            )
        ]

    fast, exact = both("one_shot", 2, 0.90), both("all_reduce", 4, 0.95)
    dominated, similar = both("gossip", 5, 0.85), both("ddp", 4.01, 0.9505, -1)
    data = finding_of(a_comparison(*fast, *exact, *dominated), "front").data
    assert data["on"] == ["one_shot over mpi", "all_reduce over mpi"]
    assert (data["off"], data["undecided"]) == (["gossip over mpi"], [])
    data = finding_of(a_comparison(*fast, *exact, *similar), "front").data
    assert (data["on"], data["off"]) == (["one_shot over mpi"], [])
    assert data["undecided"] == ["all_reduce over mpi", "ddp over gloo"]


def test_undecided_comparisons_are_counted_with_the_seeds_that_would_decide_them() -> None:
    runs = [
        *repeated("serial", around(8, 0.3)),
        *repeated("ddp", around(7.5, 0.3)[::-1], nodes=2),
    ]
    data = finding_of(a_comparison(*runs), "undecided").data
    assert (data["undecided"], data["hopeless"]) == (1, 1)  # two sessions differ as much
    losing = [
        *repeated("serial", around(0.9, 0.05), "accuracy"),
        *repeated("ddp", around(0.82, 0.05)[::-1], "accuracy", nodes=2),
    ]
    data = finding_of(a_comparison(*losing), "undecided").data
    assert data["undecided"] == len(data["seeds"]) + data["beyond"] == 1
    assert data["seeds"][0] > 5
    decided = [*runs[:5], *repeated("ddp", around(2, 0.03), nodes=2)]
    assert findings_of(a_comparison(*decided), "undecided") == []


def test_drift_is_that_within_configurations() -> None:
    def run(strategy: str, seed: int, at: float, train_s: float) -> RunResult:
        result = a_run(strategy, nodes=1 if strategy == "serial" else 2, seed=seed, train_s=train_s)
        return result.model_copy(update={"started_at": result.started_at + at})

    runs = [
        run(strategy, seed, 10.0 * seed + place, base * 1.1**seed)
        for seed in range(5)
        for place, (strategy, base) in enumerate([("serial", 8.0), ("ddp", 4.0)])
    ]
    data = finding_of(a_comparison(*runs), "drift").data
    assert data["factor"] == approx(1.1 ** (41 / 10), rel=0.01)
    assert findings_of(a_comparison(*runs[:4]), "drift") == []


def test_a_drift_that_is_excluded_is_no_caution() -> None:
    runs = [
        run.model_copy(update={"started_at": run.started_at + 10.0 * place})
        for place, run in enumerate(repeated("serial", [8.0, 8.1, 8.0, 8.1, 8.0]))
    ]
    low, high = finding_of(a_comparison(*runs), "no_drift").data["interval"]
    assert low < 1 < high < WIDE * low


def test_runs_that_did_not_learn_are_named() -> None:
    def learned(accuracy: float, **fields: Any) -> RunResult:
        run = a_run(accuracy=accuracy, **fields)
        ranks = [
            rank.model_copy(update={"test_samples": 360, "chance_accuracy": 0.1}) for rank in run.ranks
        ]
        return run.model_copy(update={"ranks": ranks})

    chance, trained = learned(0.12), learned(0.3, seed=1)
    assert [row.key for row in finding_of(a_comparison(chance, trained), "not_learned").rows] == [
        chance.key
    ]

    def rising(*losses: str) -> RunResult:
        points = [
            point.model_copy(update=dict.fromkeys(losses, float(point.epoch))) for point in trained.epochs
        ]
        return trained.model_copy(update={"epochs": points})

    worse = rising("loss", "test_loss")
    assert len(finding_of(a_comparison(worse), "not_learned").rows) == 1
    overfitted = rising("test_loss")
    assert findings_of(a_comparison(overfitted), "not_learned") == []
    assert findings_of(a_comparison(a_run(accuracy=0.05)), "not_learned") == []  # the test set is unknown


def test_comparisons_share_the_probability_of_a_false_claim() -> None:
    """A report with more families of comparisons has wider intervals."""
    runs = [*repeated("serial", around(8, 0.3)), *repeated("ddp", around(7, 0.3), nodes=2)]
    more = [*runs, *repeated(ONE_SHOT_ALONE, around(0.8), "accuracy", nodes=2)]
    more += repeated("one_shot", around(0.81), "accuracy", nodes=2, own=[0.5, 0.7])

    def width(results: list[RunResult]) -> float:
        found = finding_of(a_comparison(*results), "more_nodes").data["compared"]
        low, high = found[0]["interval"]
        return float(high / low)

    four = repeated("ddp", around(5, 0.3), nodes=4)
    assert width([*runs, *four]) < width([*more, *four])


def test_shared_cores_bound_the_wall_clock_speedup() -> None:
    run = a_run("ddp", nodes=4, cores=2, train_s=8.0, work_cpu_s=2.5)
    data = finding_of(a_comparison(SERIAL, run), "shared_cores").data
    assert (data["shapes"], data["cores"], data["limit"]) == (["4"], 2, 2)
    assert data["cpu_time_speedup"] == pytest.approx(3.2)
    assert findings_of(a_comparison(SERIAL, a_run("ddp", nodes=4, cores=4)), "shared_cores") == []


def test_quotas_that_fit_share_no_cores() -> None:
    small = {"runtime": "docker", "cores": 2, "cpus": 0.4}
    serial = a_run(train_s=8.0, **small)
    assert findings_of(a_comparison(serial, a_run("ddp", nodes=5, **small)), "shared_cores") == []
    for train_s, beyond in ((8.0, None), (1.0, 8.0), (2.0, None)):
        run = a_run("ddp", nodes=6, train_s=train_s, **small)
        data = finding_of(a_comparison(serial, run), "shared_cores").data
        assert (data["limit"], data.get("beyond_limit")) == (5, beyond)


def test_ranks_per_node_are_part_of_the_shape() -> None:
    comparison = a_comparison(
        *repeated("serial", around(8, 0.05), cores=1.5),
        *repeated("ddp", around(4, 0.05), nodes=1, processes_per_node=2, cores=1.5),
        *repeated("ddp", around(9, 0.05), nodes=2, processes_per_node=2, cores=1.5),
        *repeated("all_reduce", around(7, 0.05), nodes=2, processes_per_node=2, cores=1.5),
        *repeated("all_reduce", around(3, 0.05), nodes=2, cores=1.5),
    )
    fastest = finding_of(comparison, "fastest").data
    assert (fastest["strategy"], fastest["ranks"]) == ("all_reduce over mpi", 4)
    assert fastest["efficiency"] == pytest.approx(fastest["speedup"] / 4)
    more = finding_of(comparison, "more_nodes").data  # the same number of ranks in each node
    assert (more["strategy"], more["ranks"], more["steps"]) == ("ddp over gloo", [2, 4], ["more"])
    shared = finding_of(comparison, "shared_cores").data
    assert (shared["shapes"], shared["limit"]) == (["1 × 2", "2", "2 × 2"], 1.5)


def test_a_speedup_beyond_the_cores_is_reported_as_noise() -> None:
    runs = [*repeated("serial", [8, 10]), a_run("ddp", nodes=4, seed=1, cores=2, train_s=4.0)]
    assert finding_of(a_comparison(*runs), "shared_cores").data["beyond_limit"] == 2.5


def test_cautions() -> None:
    unverified = a_run("ddp", nodes=2, verified=False, cores=4)
    apart = a_run("all_reduce", nodes=2, digests=["one", "other"], runtime="docker")
    late = a_run("fault_injection", status="timeout", cause="stopped after 9 s")
    comparison = a_comparison(unverified, apart, late, pending=["ddp-gloo-n4-s0-0"])
    assert [row.key for row in finding_of(comparison, "not_verified").rows] == [unverified.key]
    assert [row.key for row in finding_of(comparison, "replicas_differ").rows] == [apart.key]
    conditions = {
        finding.data["condition"]: finding.data for finding in findings_of(comparison, "conditions_differ")
    }
    assert conditions["runtime"]["values"] == ["local", "docker"]
    assert not conditions["runtime"]["compared"]
    assert conditions["number of cores"]["values"] == ["4", "8"]
    assert finding_of(comparison, "failed").data == {"status": "timeout", "cause": "stopped after 9 s"}
    assert finding_of(comparison, "pending").data == {"pending": 1, "planned": 4}
    assert {finding.data["reason"] for finding in findings_of(comparison, "no_serial")} == {NO_SERIAL}


def test_the_best_loss_of_generated_tokens_is_stated() -> None:
    tokens = {"dataset": {"name": "copy", "length": 4, "tokens": 16}, "model": {"name": "gpt", "width": 8}}
    serial, ddp = (a_run(name, nodes=nodes, **tokens) for name, nodes in (("serial", 1), ("ddp", 2)))
    finding = finding_of(a_comparison(serial, ddp), "best_loss")
    # Four random tokens, the same again: 3 of 7 targets are random, with 4 bits each.
    assert finding.data["bits_per_token"] == pytest.approx(3 * 4 / 7)
    assert not findings_of(a_comparison(SERIAL, FAST), "best_loss")


def test_other_steps_are_other_workloads_and_micro_batches_other_configurations() -> None:
    steps: list[dict[str, Any]] = [{}, {"accumulate": 2}, {"clip_norm": 0.5}, {"precision": "bf16"}]
    runs = [
        a_run(name, nodes=nodes, **each) for name, nodes in (("serial", 1), ("ddp", 2)) for each in steps
    ]
    comparison = a_comparison(*runs)
    assert len(comparison.workloads) == 3
    labels = {group.strategy_label for group in comparison.groups}
    assert labels == {"serial", "serial accumulate=2", "ddp", "ddp accumulate=2"}
    assert any("clipped to norm 0.5" in workload.label for workload in comparison.workloads)


def with_data(run: RunResult, digest: str) -> RunResult:
    assert run.certificate is not None
    parts = [part.model_copy(update={"data": digest}) for part in run.certificate.parts]
    return run.model_copy(update={"certificate": run.certificate.model_copy(update={"parts": parts})})


def test_runs_on_different_texts_are_reported() -> None:
    one, same, other = (a_run("ddp", nodes=2, seed=seed) for seed in (1, 2, 3))
    alike = with_data(one, "a" * 16), with_data(same, "a" * 16)
    assert not findings_of(a_comparison(*alike), "conditions_differ")
    (finding,) = findings_of(a_comparison(*alike, with_data(other, "b" * 16)), "conditions_differ")
    assert finding.data["values"] == ["a" * 16, "b" * 16]
    assert finding.data["compared"]


def test_failures_with_one_cause_are_one_finding() -> None:
    runs = [a_run("ddp", nodes=2, seed=seed, status="failed", cause="no room") for seed in range(9)]
    finding = finding_of(a_comparison(*runs), "failed")
    assert (finding.data["cause"], len(finding.rows)) == ("no room", 9)


def test_workloads_have_separate_findings() -> None:
    comparison = a_comparison(SERIAL, FAST, a_run("ddp", nodes=2, batch_size=16, train_s=1.0))
    first, second = findings_of(comparison, "fastest")
    assert [finding.workload.batch_size for finding in (first, second) if finding.workload] == [32, 16]
    assert "speedup" in first.data
    assert "speedup" not in second.data


def test_a_finding_on_every_workload_is_merged() -> None:
    comparison = a_comparison(SERIAL, *(a_run(lr=lr) for lr in (0.1, 0.2)))
    finding = finding_of(comparison, "too_few_seeds")
    assert (finding.workload, len(finding.rows)) == (None, 3)


def test_a_finding_on_some_workloads_names_them() -> None:
    serial = repeated("serial", around(8, 0.05))
    comparison = a_comparison(*serial, *(a_run(lr=lr) for lr in (0.1, 0.2)))
    found = findings_of(comparison, "too_few_seeds")
    assert [finding.workload.lr for finding in found if finding.workload] == [0.1, 0.2]


def test_findings_without_runs_are_about_the_sweep() -> None:
    comparison = a_comparison(SERIAL, FAST, pending=["ddp-gloo-n4-s0-0"])
    assert {finding.kind for finding in find(comparison) if not finding.rows} == {"pending"}


def test_a_report_without_enough_seeds_says_at_the_top_that_it_claims_nothing() -> None:
    four, five = (a_comparison(*repeated("serial", around(8, seeds=seeds))) for seeds in (4, 5))
    assert "claims no differences" in seeds_line(four)
    assert "claims no differences" not in seeds_line(five)


@pytest.mark.parametrize(("reshard", "sent"), [(True, 8e6), (False, 9e6)])
def test_bytes_that_a_library_sends_beyond_the_count_are_stated(reshard: bool, sent: float) -> None:
    """Two all-gathers and a reduce-scatter with reshard, and one of each without it."""
    fields: dict[str, Any] = {"nodes": 2, "transport": "gloo", "bytes_sent": 6e6}
    fsdp = a_run({"name": "fsdp", "reshard": reshard}, **fields)
    others = [a_run("serial", bytes_sent=0.0), a_run("zero2", **fields), a_run("all_reduce", **fields)]
    finding = finding_of(a_comparison(*others, fsdp), "sent_beyond_count")
    assert finding.data["counted"] == 6e6
    assert finding.data["sent"] == pytest.approx(sent)
    assert [row.key for row in finding.rows] == [fsdp.key]
    assert finding.caution
    assert not findings_of(a_comparison(*others), "sent_beyond_count")
