"""Mistakes in findings and their topics: which configurations and seeds are compared, in which direction,
what waiting is divided by, what faults cost, which curves are pairs, over which links runs compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.report import formats
from orchestrator.report.findings.base import Finding, first_sentence
from orchestrator.report.findings.decide import Ask, Claims
from orchestrator.report.model.comparison import Comparison
from orchestrator.report.model.rows import FAULTS as FAULTY
from orchestrator.report.model.rows import NO_SERIAL, UNEQUAL_NODES
from orchestrator.report.quantities import QUANTITIES, Q
from orchestrator.report.quantities.stragglers import mean_wait_shares, straggler_of, wait_shares
from orchestrator.report.render.columns import FAULTS, columns_of
from orchestrator.report.render.summary import seeds_line
from orchestrator.report.topics import find
from orchestrator.report.topics.faults import NO_COMMON_SEED, NO_COUNTERPART, fault_costs
from orchestrator.report.topics.topic import Findings, Started
from orchestrator.results.records import InjectedFault, LinkResult, RunResult
from orchestrator.sweeps.tolerance import Tolerances
from tests.unit.report_support import (
    ONE_SHOT_ALONE,
    SERIAL,
    a_comparison,
    a_run,
    around,
    cells,
    finding_of,
    findings_of,
    repeated,
    row_of,
    value,
    with_epochs,
    with_ranks,
)
from trainer.core.cgroup import NodeUsage

# Stragglers

# Seconds that each rank (row) waited for each other rank (column), of 10 s of training.
WAITS_FOR_LAST = [[0.0, 0.5, 6.0], [0.25, 0.0, 5.0], [0.0, 0.25, 0.0]]
WAITS_FOR_ALL = [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]


def waiting(seconds: list[list[float]], strategy: Any = "all_reduce", **fields: Any) -> RunResult:
    run = a_run(strategy, nodes=len(seconds), train_s=10.0, **fields)
    return with_ranks(run, *({"wait_s_by_rank": each} for each in seconds))


def over_seeds(*waits: list[list[float]], **fields: Any) -> Comparison:
    """Of a run for each, with its own seed."""
    return a_comparison(*(waiting(seconds, seed=seed, **fields) for seed, seconds in enumerate(waits)))


def test_shares_are_relative_to_the_time_of_the_waiting_rank() -> None:
    run = with_ranks(waiting(WAITS_FOR_LAST), *({"train_s": 10.0 + rank} for rank in range(3)))
    shares = wait_shares(a_comparison(run).rows[0])
    assert shares == pytest.approx(np.array(WAITS_FOR_LAST) / [[10], [11], [12]])
    assert wait_shares(a_comparison(SERIAL).rows[0]) is None  # which recorded nothing
    assert straggler_of(np.zeros((2, 2))) is None


def test_a_straggler_delays_the_others_more_than_its_share_and_in_most_seeds() -> None:
    comparison = over_seeds(*[WAITS_FOR_LAST] * 5)
    most = straggler_of(mean_wait_shares(comparison.groups[0]))
    assert most is not None
    assert (most.rank, most.ranks) == (2, 3)
    assert (most.share_of_time, most.share_of_waiting) == pytest.approx(((0.6 + 0.5) / 2, 11 / 12))
    data = finding_of(comparison, "straggler").data
    assert (data["strategy"], data["rank"]) == ("all_reduce over mpi", 2)
    assert data["compared"][0]["values"] == [pytest.approx(11 / 12 - 1 / 3), 0.0]
    for rank in range(3):  # of which the first is the server
        waits = np.roll(WAITS_FOR_LAST, (rank + 1, rank + 1), (0, 1)).tolist()
        finding = finding_of(over_seeds(*[waits] * 5, strategy="parameter_server"), "straggler")
        assert (finding.data["rank"], "(the server)" in finding.text) == (rank, rank == 0)
    waits_for_first = [row[::-1] for row in WAITS_FOR_LAST[::-1]]
    little = [[seconds / 20 for seconds in row] for row in WAITS_FOR_LAST]
    few = [WAITS_FOR_LAST, WAITS_FOR_LAST, waits_for_first]
    for waits in ([WAITS_FOR_LAST], few, [little] * 5, [WAITS_FOR_ALL] * 5):
        assert findings_of(over_seeds(*waits), "straggler") == []


def test_a_run_with_a_slow_node_has_no_speedup() -> None:
    alike = a_run("all_reduce", nodes=2, train_s=5.0)
    comparison = a_comparison(SERIAL, alike, a_run("all_reduce", nodes=2, node_speed={-1: 0.25}))
    first, last = comparison.rows[1:]
    assert (first.speedup, first.no_speedup) == (8.0 / 5.0, None)
    assert (last.speedup, value(last, "efficiency"), last.no_speedup) == (None, None, UNEQUAL_NODES)
    assert last.shape.label.replace(formats.JOIN, " ") == "2 nodes, node 1 at speed 0.25"
    assert last.workload.label == f"{first.workload.label}, one node at speed 0.25"
    assert [finding.data["reason"] for finding in findings_of(comparison, "no_serial")] == [UNEQUAL_NODES]


# What faults cost

KILL = [{"kill": {"node": 2}, "at": {"epoch": 2}}]
KEPT: dict[str, Any] = {"faults": KILL, "checkpoint_epochs": 1, "restarts": 1}


def disturbed(
    elapsed_s: float = 9.0, repeated_steps: int = 0, samples_lost: int = 0, **fields: Any
) -> RunResult:
    """A run on three nodes; of those with faults, all have fired."""
    run = a_run(**{"strategy": "all_reduce", "nodes": 3, "transport": "gloo", **fields})
    numbers = {"elapsed_s": elapsed_s, "repeated_steps": repeated_steps, "samples_lost": samples_lost}
    fired = [
        InjectedFault(fault=number, node=2, rank=2, action="kill", epoch=2, step=30, second=1.5)
        for number in range(len(run.spec["faults"]))
    ]
    return run.model_copy(update={**numbers, "faults": fired})


def test_cost_is_the_difference_of_runs_with_equal_seeds() -> None:
    plain = [disturbed(8.0 + seed, seed=seed) for seed in range(3)]
    faulty = [disturbed(10.0 + 2 * seed, seed=seed, **KEPT) for seed in (0, 1, 2, 7)]
    comparison = a_comparison(a_run(), *plain, *faulty)
    (cost,) = fault_costs(comparison)
    extra = cost.difference(Q.elapsed_s.of)
    assert extra is not None
    assert (cost.missing, extra.low, extra.high, extra.mean) == (None, 2.0, 4.0, 3.0)
    # Their wall times, which lack lost work, are not compared with those of other runs.
    first, second = comparison.workloads
    assert (first.faults, second.faults) == ("", "kill of node 2 at epoch 2")
    assert (second.faults in second.label, second.faults in first.label) == (True, False)
    assert {row.no_speedup for row in comparison.rows if row.run.faults} == {FAULTY}
    about = {finding.kind for finding in find(comparison) if finding.workload == second}
    assert about.isdisjoint({"fastest", "slower_than_serial", "best_accuracy"})


@pytest.mark.parametrize(
    ("others", "fields", "why"),
    [
        ([], {}, NO_COUNTERPART),
        ([disturbed(seed=5)], {}, NO_COMMON_SEED),
        ([disturbed(status="failed", cause="disk full")], {}, "disk full"),
        ([disturbed(lr=0.3)], {}, NO_COUNTERPART),
        ([disturbed(transport="mpi")], {}, NO_COUNTERPART),
        ([disturbed()], {"status": "failed", "cause": "killed by SIGKILL"}, "SIGKILL"),
    ],
    ids=["none", "other seed", "failed", "other rate", "other transport", "failed itself"],
)
def test_a_run_without_counterpart_says_so(
    others: list[RunResult], fields: dict[str, str], why: str
) -> None:
    comparison = a_comparison(*others, disturbed(faults=KILL, **fields))
    (shown,) = cells(FAULTS, fault_costs(comparison))
    assert why in shown["missing"]
    assert {"extra_time", "repeated_steps", "accuracy_difference"}.isdisjoint(shown)
    assert findings_of(comparison, "fault_cost") == []


def test_the_counterpart_is_the_most_similar_that_finished() -> None:
    plain, saved = disturbed(8.0), disturbed(8.5, checkpoint_epochs=1)
    lost = saved.model_copy(update={"status": "failed", "cause": "gone"})
    for other, expected in ((saved, saved), (lost, plain)):
        (cost,) = fault_costs(a_comparison(plain, other, disturbed(faults=KILL, checkpoint_epochs=1)))
        assert cost.undisturbed
        assert cost.undisturbed.first.key == expected.key


# Textbook optimizers


def trained(optimizer: Any, *losses: float, **fields: Any) -> RunResult:
    """A serial run with these losses after its epochs."""
    return with_epochs(a_run(optimizer=optimizer, **fields), lambda at: {"test_loss": losses[at.epoch - 1]})


def curves(*runs: RunResult) -> list[Finding]:
    return [finding for finding in find(a_comparison(*runs)) if finding.kind.startswith("textbook_curve")]


def test_curves_differ_by_the_worst_seed_relative_to_the_highest_loss() -> None:
    library = [trained("adam", 0.5, 0.25, train_s=4.0, seed=seed) for seed in (2, 1, 0)]
    for ends, kind, difference in (
        ((0.250001, 0.25), "textbook_curve_equal", 2e-6),
        ((0.25, 0.26), "textbook_curve_differs", 0.02),
    ):
        textbook = [trained("textbook_adam", 0.5, end, seed=seed) for seed, end in enumerate(ends)]
        (finding,) = curves(*library, *textbook, trained("textbook_adam", 9.0, 9.0, seed=3))
        assert (finding.kind, finding.caution) == (kind, kind == "textbook_curve_differs")
        assert finding.data["optimizers"] == ("textbook_adam", "adam")
        assert (finding.data["max_difference"], finding.data["seeds"]) == (pytest.approx(difference), 2)
    (equal,) = curves(trained("sgd", 0.5, 0.001), trained("textbook_sgd", 0.5, 0.001002))
    assert equal.kind == "textbook_curve_equal"  # rounding at the end of a curve
    (timed,) = curves(library[2], trained("textbook_adam", 0.5, 0.25, train_s=6.0))
    assert timed.data["compared"][0]["values"] == [pytest.approx(6.0), pytest.approx(4.0)]


@pytest.mark.parametrize(
    ("textbook", "other", "fields"),
    [
        ("textbook_sgd", "sgd", {"lr": 0.1}),
        ("textbook_sgd", "adam", {}),
        ("textbook_momentum", {"name": "momentum", "momentum": 0.5}, {}),
        ("textbook_sgd", "sgd", {"seed": 1}),
        ("textbook_sgd", "sgd", {"strategy": "hogwild", "nodes": 2}),
    ],
    ids=["rate", "optimizer", "parameter", "seed", "irreproducible"],
)
def test_only_runs_with_all_else_equal_are_pairs(textbook: str, other: Any, fields: dict[str, Any]) -> None:
    own = {name: each for name, each in fields.items() if name in ("strategy", "nodes")}
    assert not curves(trained(textbook, 0.5, 0.25, **own), trained(other, 0.5, 0.25, **fields))


# Links

SLOW = {"bandwidth_mbit": 10, "latency_ms": 1}
FAR = {"bandwidth_mbit": 1000, "latency_ms": 10}
ALONE = repeated("serial", around(2.0), cores=2, runtime="docker")


def over(
    link: dict[str, int] | None, strategy: str, mean: float, step: float = 0.001, runtime: str = "docker"
) -> list[RunResult]:
    """Runs whose ranks have measured three links, of which one is far slower."""
    measured = ((0, 1, 0.0011, 1.2e6), (1, 0, 0.001, 1.3e6), (0, 1, 1.0, 1e3))
    links = [LinkResult(source=at, to=to, latency_s=s, bytes_per_s=rate) for at, to, s, rate in measured]
    fields: dict[str, Any] = {"nodes": 2, "cores": 2, "transport": "gloo", "runtime": runtime}
    runs = repeated(strategy, around(mean, step), link=link, **fields)
    return [run.model_copy(update={"links": links}) for run in runs]


@pytest.fixture(scope="module")
def linked() -> Comparison:
    slow = [*over(SLOW, "all_reduce", 9.0), *over(SLOW, "gossip", 5.0)]
    return a_comparison(*ALONE, *slow, *over(FAR, "all_reduce", 3.0), *over(FAR, "gossip", 3.0, -0.002))


def test_each_link_is_a_workload_with_the_same_serial_runs(linked: Comparison) -> None:
    views = [linked.view(workload) for workload in linked.workloads]
    assert [view.workload.link for view in views] == ["10 Mbit/s, 1 ms", "1000 Mbit/s, 10 ms"]
    for view in views:
        assert [group.strategy for group in view.groups] == ["serial", "all_reduce", "gossip"]
        assert view.clock == "wall"
    assert row_of(linked, "all_reduce").speedup == pytest.approx(1.998 / 8.998)
    without = a_comparison(*ALONE, *over(None, "all_reduce", 2.5), *over(SLOW, "all_reduce", 9.0))
    assert [workload.link for workload in without.workloads] == ["", "10 Mbit/s, 1 ms"]
    assert all(without.view(workload).serial for workload in without.workloads)


def test_a_table_shows_the_median_that_was_measured_beside_what_was_requested(linked: Comparison) -> None:
    line = cells(columns_of("results"), linked.groups_in(linked.workloads[0]))[1]
    assert line["link_latency_s"] == "1.10 ms | 1.00 ms requested"
    assert line["link_bytes_per_s"] == "9.60 Mbit/s | 10.0 Mbit/s requested"
    (plain,) = cells(columns_of("results"), a_comparison(over(None, "all_reduce", 2.0)[0]).groups)
    assert "link_latency_s" not in plain
    assert findings_of(linked, "link_not_enforced") == []


# Runtimes, images and containers

DOCKER = {"docker": "26.1.5", "image": "shardyard-trainer from sources 4c3e83f91028d114"}
NEWER = {**DOCKER, "image": "shardyard-trainer from sources cc817da906eec4a9"}


def a_node(name: str, ranks: list[int], **fields: Any) -> NodeUsage:
    counted = {"cpu_s": 3.0, "throttled_s": 0.0, "memory_peak_mb": 256.0, "sent_bytes": 1_100_000}
    counted |= {"received_bytes": 9, "out_of_memory": 0}
    return NodeUsage(name=name, ranks=ranks, **(counted | fields))


def contained(
    strategy: str, *usages: NodeUsage, environment: dict[str, str] = DOCKER, **fields: Any
) -> RunResult:
    """A run of runtime docker; without `usages` all nodes have equal usage."""
    run = a_run(strategy, runtime="docker", **fields)
    usage = usages or [a_node(f"node-{rank.rank + 1}", [rank.rank]) for rank in run.ranks]
    return run.model_copy(update={"usage": list(usage), "environment": environment})


def test_runs_of_two_runtimes_or_images_are_neither_averaged_nor_compared() -> None:
    apart = [contained("all_reduce", nodes=2), a_run("all_reduce", nodes=2, seed=1)]
    comparison = a_comparison(SERIAL, *apart)
    assert [len(group.rows) for group in comparison.groups] == [1, 1, 1]
    _, inside, outside = comparison.rows
    assert (inside.no_speedup, inside.speedup, outside.speedup) == (NO_SERIAL, None, 1.0)
    assert [each.location for each in comparison.workloads] == ["runtime local", "runtime docker"]
    data = finding_of(comparison, "conditions_differ").data
    assert (data["condition"], data["values"], data["compared"]) == ("runtime", ["local", "docker"], False)


ONE = a_node("node-1", [0], memory_peak_mb=512.0, throttled_s=2.0)
OTHER = a_node("node-2", [1], cpu_s=5.0, sent_bytes=1_300_000)
SILENT = a_node("node-2", [1], **dict.fromkeys(("memory_peak_mb", "sent_bytes", "throttled_s")))


@pytest.mark.parametrize(
    ("strategy", "usage", "numbers"),
    [
        ("ddp", [ONE, OTHER, a_node("launcher", [], cpu_s=90.0)], (2, 1e6, 1.2e6, 1.2, 4, 2, 512, 2048)),
        ("ddp", [ONE, SILENT], (2, 1e6, None, None, 3, None, None, 2048)),
        ("ddp", [ONE], (None,) * 8),
        ("hogwild", [a_node("node-1", [0, 1])], (1, None, 1.1e6, None, 3, 0, 256, 4096)),
    ],
    ids=["two and a launcher", "counters missing", "one of two", "all in one"],
)
def test_counters_of_containers_are_known_if_each_node_has_them(
    strategy: str, usage: list[NodeUsage], numbers: tuple[float | None, ...]
) -> None:
    (row,) = a_comparison(contained(strategy, *usage, nodes=2)).rows
    names = [name for name in QUANTITIES if name.startswith("container")]
    assert [value(row, name) for name in names] == [*numbers]


def test_a_location_is_named_only_if_there_are_several() -> None:
    old = contained("ddp", nodes=2)
    same_sources = {**DOCKER, "image": "mine from sources 4c3e83f91028d114"}
    # Without training: what virtual nodes with `compute: sampled` leave.
    run = a_run("ddp", nodes=2, seed=1)
    nothing = {"accuracy": None, "test_loss": None, "weights_digest": None}
    changes: dict[str, Any] = {"runtime_info": replace(run.runtime_info, trains=False), "epochs": []}
    played = with_ranks(run, **nothing).model_copy(update={**changes, "certificate": None})
    for one, other, named in (
        (old, contained("ddp", nodes=2, seed=1, environment=NEWER), ["image 4c3e83f9", "image cc817da9"]),
        (
            old,
            contained("ddp", nodes=2, seed=1, environment=same_sources),
            ["image shardyard-trainer 4c3e83f9", "image mine 4c3e83f9"],
        ),
        (old, contained("ddp", nodes=2, seed=1), [""]),
        (a_run("ddp", nodes=2), run, [""]),
        (a_run("ddp", nodes=2), played, ["", "not trained"]),
    ):
        assert [workload.location for workload in a_comparison(one, other).workloads] == named
    (alone,) = a_comparison(played).rows
    assert (alone.location, alone.replicas_equal) == ("not trained", None)


# Findings on all topics


approx = pytest.approx


def timed(strategy: str | dict[str, Any], mean: float, nodes: int = 2, **fields: Any) -> list[RunResult]:
    """Five seeds of nearly the same time."""
    return repeated(strategy, around(mean, 0.01), nodes=nodes, **fields)


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


def test_shared_cores_limit_speedups_and_the_most_nodes_show_what_more_cores_would_do() -> None:
    runs = [("ddp", 2, 4.0), ("ddp", 4, 3.0), ("ddp", 8, 2.0), ("gossip", 8, 4.0)]
    made = [a_run(name, nodes=nodes, work_cpu_s=work, train_s=7.0, cores=2) for name, nodes, work in runs]
    finding = finding_of(a_comparison(a_run(cores=2), *made), "shared_cores")
    expected = {
        "nodes": ["4", "8\N{NO-BREAK SPACE}nodes"],
        "cores": 2,
        "limit": 2.0,
        "strategy": "ddp over gloo",
        "cpu_time_speedup": approx(8.0 / 2.0),
    }
    assert finding.data == {**finding.data, **expected}
    assert "above that" not in finding.text


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
        behind = [name for each in data["dominated"] for name in each["names"]]
        found = [[name.split()[0] for name in names] for names in (data["on"], behind, data["undecided"])]
        assert found == [on, off, undecided]


# Accuracy


def test_fewer_updates_explain_a_loss_on_the_same_samples_from_the_same_weights() -> None:
    def losing(strategy: Any, steps: int, mean: float = 0.8, **fields: Any) -> list[RunResult]:
        return repeated(strategy, around(mean), "accuracy", nodes=2, steps=steps, **fields)

    comparison = a_comparison(
        *repeated("serial", around(0.9), "accuracy", steps=90),
        *losing("ddp", 60),
        *losing("gossip", 89),
        *losing("local_sgd", 90),  # as many
        *losing("all_reduce", 60, 0.95),
        *losing("all_gather", 60, coverage=0.9),
        *losing("zero1", 60, overlap=0.1),
        *losing(ONE_SHOT_ALONE, 60),
    )
    finding = finding_of(comparison, "fewer_updates")
    updates = {"ddp over gloo": (60, 60), "gossip over mpi": (89, 89)}
    assert (finding.data["updates"], finding.data["serial_updates"]) == (updates, (90, 90))
    assert {row.strategy for row in finding.rows} == {"serial", "ddp", "gossip"}


def test_equal_accuracies_of_one_seed_show_nothing() -> None:
    data = finding_of(a_comparison(a_run("serial"), a_run("ddp", nodes=2)), "best_accuracy").data
    assert {outcome: [*names] for outcome, names in data["from_serial"].items()} == {
        "equal": ["ddp over gloo"]
    }


@pytest.mark.parametrize("field", [{"accumulate": 4}, {"checkpoint_epochs": 1}, {"lr": 0.5}])
def test_variants_of_a_strategy_state_what_differs(field: dict[str, Any]) -> None:
    """Two configurations that a label distinguishes, and that are said to differ in nothing."""
    runs = [a_run("serial"), a_run("ddp", nodes=2), a_run("ddp", nodes=2, **field)]
    finding = finding_of(a_comparison(*runs), "variant")
    assert [[*each] for each in finding.data["parameters"]] == [[*field], [*field]]


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


ON_64_CORES = repeated("serial", around(16, 0.1), accuracy=0.9, cores=64)
FALLING = line("one_shot", (2, 8.0, 0.9), (8, 2.0, 0.89), (32, 1.0, 0.5))
LEVEL = line("all_reduce", (2, 8.0, 0.9), (8, 4.0, 0.9), (32, 3.2, 0.9))
RISING = line("gossip", (2, 20.0, 0.9), (8, 24.0, 0.9), (32, 28.0, 0.9))


def test_the_last_numbers_of_nodes_that_save_time_and_keep_the_accuracy_of_serial() -> None:
    comparison = a_comparison(*ON_64_CORES, *FALLING, *LEVEL, *RISING, tolerance=Tolerances(time="40%"))
    found = finding_of(comparison, "many_nodes").data["strategies"]
    assert {each["strategy"]: (each["falls_until"][0], each["kept_until"][0]) for each in found} == {
        "one_shot over gloo": (32, 2),  # −1 point at 8 nodes may be more than the tolerance
        "all_reduce over gloo": (8, 32),  # from 8 to 32 nodes it saves 20 %, within the tolerance
        "gossip over gloo": (0, 0),
    }


def test_without_serial_the_fewest_nodes_are_the_reference() -> None:
    found = finding_of(a_comparison(*FALLING), "many_nodes").data
    assert found["reference"] == "fewest"
    (only,) = found["strategies"]
    assert (only["falls_until"][0], only["kept_until"][0]) == (32, 0)
    accuracies = [each["values"] for each in found["compared"] if each["quantity"] == "accuracy"]
    assert [right for _, right in accuracies] == approx([0.9, 0.9])
    few_seeds = [run for run in [*ON_64_CORES, *FALLING] if run.run.seed < 4]
    for few in ([*ON_64_CORES, *FALLING[:10]], few_seeds):
        assert not findings_of(a_comparison(*few), "many_nodes")


# Seeds, claims and drift


@pytest.mark.parametrize(("reshard", "sent"), [(True, 8e6), (False, 9e6)])
def test_bytes_that_a_library_sends_beyond_the_count_are_stated(reshard: bool, sent: float) -> None:
    """Two all-gathers and a reduce-scatter with reshard, and one of each without it."""
    fields: dict[str, Any] = {"nodes": 2, "transport": "gloo", "bytes_sent": 6e6}
    fsdp = a_run({"name": "fsdp", "reshard": reshard}, **fields)
    others = [a_run("serial", bytes_sent=0.0), a_run("zero2", **fields), a_run("all_reduce", **fields)]
    over_mpi = a_run("fsdp", **{**fields, "transport": "mpi"})  # every byte is counted
    finding = finding_of(a_comparison(*others, fsdp, over_mpi), "sent_beyond_count")
    assert (finding.data["counted"], finding.data["sent"], finding.caution) == (6e6, approx(sent), True)
    assert [row.key for row in finding.rows] == [fsdp.key]


# Workloads, and findings as text


def test_the_first_sentence_of_a_finding_ends_at_no_decimal_point() -> None:
    for more in ("", " More."):
        assert first_sentence(f"It took 1.5 s.{more}") == "It took 1.5 s."


def test_a_rule_asks_once_and_before_its_findings() -> None:
    """What is compared cannot depend on what is decided."""
    said, told = Finding("pending"), list[Claims]()

    def rule(*steps: Sequence[Ask] | Finding) -> Findings:
        for step in steps:
            told.append((yield step))

    for steps in ((), ([],), (said, said), ([], said)):
        assert Started(rule(*steps)).findings(Claims()) == [step for step in steps if step]
    for steps in (([], []), (said, []), ([], said, [])):
        with pytest.raises(TypeError):
            Started(rule(*steps)).findings(Claims())
