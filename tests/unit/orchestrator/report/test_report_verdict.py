"""Mistakes in the verdict: what may be chosen, what it is compared with, how many seeds it needs, what
limits it and is not said, and units of tolerances."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.report.findings.decide import Claims
from orchestrator.report.formats import ABSENT, JOIN
from orchestrator.report.statistics.chances import Tolerance
from orchestrator.report.topics import find
from orchestrator.report.verdict import Evidence, Verdict, evidence, verdicts
from orchestrator.report.verdict.choice import UNTIMED
from orchestrator.results.records import RunResult
from orchestrator.sweeps.load import load_sweep
from orchestrator.sweeps.stages import Stages
from orchestrator.sweeps.tolerance import Tolerances
from tests.unit.orchestrator.report.test_report_topics import KILL
from tests.unit.report_support import (
    FAILED,
    ONE_SHOT_ALONE,
    a_comparison,
    a_run,
    around,
    beside_load,
    in_cluster_time,
    on_360_images,
    repeated,
    verdicts_of,
    with_epochs,
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


def failing(results: list[RunResult]) -> list[RunResult]:
    """The runs, of which the first has failed."""
    return [results[0].model_copy(update={"status": "failed", "cause": "it crashed"}), *results[1:]]


def the_verdict(*results: RunResult) -> Verdict:
    (verdict,) = verdicts_of(a_comparison(*results))
    return verdict


def measured(text: str) -> list[RunResult]:
    """Runs as in `serial 8 0.9, ddp 4 0.9 seeds=8`: strategy, time, accuracy, and fields of `runs`."""
    found = []
    for each in text.split(", "):
        strategy, time, accuracy, *fields = each.split()
        kinds: dict[str, type] = {"step": float, "spread": float, "seeds": int, "nodes": int}
        named = dict(field.split("=") for field in fields)
        typed = {name: kinds.get(name, str)(given) for name, given in named.items()}
        found += runs(strategy, float(time), float(accuracy), **typed)
    return found


ALONE = measured("serial 8 0.9")
CASES = [  # what was run, how the headline begins, and what the verdict says besides
    (
        "serial 8 0.9, all_reduce 4 0.899, ddp 5 0.9, one_shot 6 0.901",
        "Probably choose all_reduce on 2 nodes: 2.00 times as fast as serial, 89.9% accuracy (serial 90",
        "To be surer, run it again with --repeat 9",
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
    ("serial 8 0.9, all_reduce 4 0.9 spread=0.05", "Perhaps all_reduce", "; serial took 8.00 s"),
    (
        "serial 8 0.9 step=0.2, all_reduce 4.05 0.9 step=0.3, ddp 4.05 0.9 step=-0.25",
        "A toss-up between ",
        "; serial took 7.99 s and reached 90.0%",
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
    assert verdict.decided is not begins.startswith(("A toss-up", "Perhaps"))
    assert ("To be surer" in text) is begins.startswith("Probably")


@pytest.mark.parametrize(
    ("results", "begins", "decided"),
    [
        ("serial 8 0.9, all_reduce 9 0.95, one_shot 1 0.8", "probably choose all_reduce", True),
        ("serial 8 0.9, all_reduce 1 0.895", "probably stay with serial", True),
        ("serial 8 0.9, all_reduce 4 0.9 spread=0.05, ddp 1 0.89 spread=0.05", "", False),
        ("serial 8 0.9 seeds=2, all_reduce 9 0.95 seeds=2", "too few seeds", False),
    ],
)
def test_beside_too_much_load_accuracy_alone_chooses(results: str, begins: str, decided: bool) -> None:
    verdict = the_verdict(*(beside_load(run, 0.9) for run in measured(results)))
    assert verdict.headline.startswith(f"{UNTIMED} By accuracy alone, {begins}")
    assert verdict.decided is decided
    assert {(each.time, each.speedup) for each in verdict.options} == {(ABSENT, ABSENT)}
    assert not re.search(r"\d s\b|fast|slow", plain(verdict) + verdict.better)


@pytest.mark.parametrize("fields", [{"target_accuracy": 0.9}, {"faults": KILL}])
def test_beside_too_much_load_nothing_is_chosen_for_its_time_alone(fields: dict[str, Any]) -> None:
    loaded = [beside_load(run, 0.9) for run in ALONE]
    *_, verdict = verdicts_of(a_comparison(*loaded, *runs("all_reduce", 4.0, 0.9, nodes=3, **fields)))
    assert (verdict.headline, verdict.decided) == (UNTIMED, False)


def test_neither_what_failed_nor_what_did_not_learn_is_chosen() -> None:
    unlearned = map(on_360_images, runs(ONE_SHOT_ALONE, 2.0, 0.1, spread=0.0))
    failed = failing(measured("gossip 3 0.9 seeds=6"))
    verdict = the_verdict(*ALONE, *measured("all_reduce 4 0.9"), *unlearned, *failed)
    assert [option.name for option in verdict.options] == ["all_reduce over mpi", "serial"]
    assert "gossip on 2 nodes (not every run finished)" in plain(verdict)
    assert "(not every run learned)" in verdict.certainty


@pytest.mark.parametrize(
    ("results", "serial", "reason"),
    [
        (ALONE, True, ""),
        ([*ALONE, *failing(measured("gossip 3 0.9"))], True, "not every run finished"),
        ([*ALONE, *measured("gossip 3 0.9 seeds=3")], True, "too few seeds"),
        ([*failing(ALONE), *failing(measured("gossip 3 0.9"))], False, "not every run finished"),
        (failing(measured("gossip 3 0.9")), False, "not every run finished"),
    ],
)
def test_without_a_choice_serial_is_named_if_it_could_be_one(
    results: list[RunResult], serial: bool, reason: str
) -> None:
    verdict = the_verdict(*results)
    assert (verdict.decided, "serial" in verdict.headline) == (False, serial)
    assert reason in plain(verdict)


@pytest.mark.parametrize("seeds", [1, 4])
def test_with_few_seeds_nothing_is_chosen(seeds: int) -> None:
    each = f"0.9 seeds={seeds}"
    verdict = the_verdict(*measured(f"serial 8 {each}, all_reduce 4 {each}, ddp 6 {each}"))
    assert (verdict.decided, {option.chance for option in verdict.options}) == (False, {ABSENT})
    assert verdict.headline.startswith("Too few seeds to choose: as measured, all_reduce")
    assert "--repeat 5" in verdict.certainty


@pytest.mark.parametrize("more", [{"pending": ["serial-memory-n1-s9"]}, {"stages": Stages()}, {}])
@pytest.mark.parametrize("seeds", [3, 5])
def test_a_sweep_that_has_runs_to_come_is_not_to_be_run_again(seeds: int, more: dict[str, Any]) -> None:
    plain_runs = measured(f"serial 8 0.9 seeds={seeds}, all_reduce 7.8 0.9 step=0.3 seeds={seeds}")
    at_target = [
        run for nodes in (2, 4) for run in reaching("all_reduce", 4.0, nodes, 0.2 * nodes, seeds=seeds)
    ]
    for results in (plain_runs, at_target):
        comparison = a_comparison(*results, **more)
        said = [plain(*verdicts_of(comparison)), *(each.text for each in find(comparison))]
        assert any("--repeat" in text for text in said) is not bool(more)


# Targets, faults and labs


def reaching(
    strategy: str, time: float, nodes: int, step: float = 0.02, reached: bool = True, seeds: int = 5
) -> list[RunResult]:
    """Runs with a target accuracy of 90 %, which they reach in their second epoch or never."""
    made = runs(strategy, time, 0.95, step, seeds=seeds, nodes=nodes, epochs=4, target_accuracy=0.9)
    return [with_epochs(run, lambda at: {"target_reached": reached and at.epoch == 2}) for run in made]


def test_with_a_target_the_time_to_it_counts() -> None:
    verdict = the_verdict(
        *reaching("all_reduce", 4.0, 2),
        *reaching("all_reduce", 6.0, 4),
        *reaching("serial", 8.0, 1),
        *reaching("ddp", 2.0, 2, reached=False),
        *failing(reaching("gossip", 3.0, 2, seeds=6)),  # five of them end
    )
    assert verdict.decided
    text = plain(verdict)
    assert "all_reduce over mpi on 2 nodes" in text
    assert "serial (8.00 s) takes 2.00 times as long" in text
    assert "Not with every seed: ddp over gloo" in text
    assert [(option.name.split()[0], option.shape[0], option.chance) for option in verdict.options] == [
        ("all_reduce", "2", "over 99%"),
        ("all_reduce", "4", "under 1%"),
        ("serial", "1", "under 1%"),
    ]
    both = the_verdict(*reaching("all_reduce", 4.0, 2, 0.2), *reaching("ddp", 4.02, 2, -0.2))
    assert not both.decided
    assert all(name in both.headline for name in ("all_reduce", "ddp"))
    apart = the_verdict(*reaching("all_reduce", 4.0, 2, 1.0), *reaching("ddp", 4.6, 2, -1.0))
    assert [name in apart.headline for name in ("all_reduce", "ddp")] == [True, False]
    none = the_verdict(*reaching("all_reduce", 4.0, 2, reached=False))
    assert (none.decided, none.options) == (False, ())


# What it rests on

EQUAL: dict[str, Any] = {"batch_size": 32, "batch_per": "run"}
# Runs without a caution but what is undecided.
SOUND = [
    *repeated("serial", around(8.0, 0.05), **EQUAL),
    *repeated("all_reduce", around(4.0, 0.05), nodes=2, **EQUAL),
]


def lines(*results: RunResult, **fields: Any) -> dict[str, Evidence]:
    """The lines by topic. What limits conclusions has the anchor of a finding."""
    comparison = a_comparison(*results, **fields)
    findings = find(comparison)
    found = evidence(comparison, findings)
    assert {line.anchor for line in found if line.ok is False} <= {finding.anchor for finding in findings}
    return {line.topic: line for line in found}


@pytest.mark.parametrize(
    ("changed", "topic", "anchor"),
    [
        (None, "", ""),
        ({"verified": False}, "Samples", "finding-not_verified"),
        ({"digests": ["one", "other"]}, "Samples", "finding-replicas_differ"),
        (FAILED, "Runs", "finding-failed"),
        ({"samples": 300}, "Fairness", "finding-conditions_unequal"),
        ({"cores": 1}, "Clock", "finding-shared_cores"),
        ({}, "Seeds", "finding-too_few_seeds"),  # of one configuration
    ],
)
def test_what_limits_conclusions_links_to_its_finding(
    changed: dict[str, Any] | None, topic: str, anchor: str
) -> None:
    if changed is None:
        topics = ("Samples", "Fairness", "Clock", "Seeds", "Runs")
        assert {name: line.ok for name, line in lines(*SOUND).items()} == dict.fromkeys(topics, True)
        return
    line = lines(*SOUND, a_run("ddp", nodes=2, train_s=5.0, **EQUAL, **changed))[topic]
    assert (line.ok, line.anchor) == (False, anchor)


@pytest.mark.parametrize("more", [{}, {"target_accuracy": 0.8}], ids=["no target", "target"])
def test_nothing_is_checked_over_runs_that_did_not_finish(more: dict[str, Any]) -> None:
    results = [a_run(**FAILED, **more), a_run("all_reduce", nodes=2, **FAILED, **more)]
    states = {"Fairness": "inapplicable", "Clock": "inapplicable", "Runs": "limited"}
    assert {topic: line.state for topic, line in lines(*results).items()} == states
    (verdict,) = verdicts_of(a_comparison(*results))
    assert ("serial" in verdict.headline, verdict.certainty, verdict.decided) == (False, "", False)
    one = lines(a_run(), a_run("ddp", nodes=2, **FAILED), pending=["ddp-gloo-n2-s0-0"])
    assert (one["Fairness"].state, one["Clock"].state) == ("inapplicable", "ok")
    # The clock is that of workloads with a time.
    cluster, failed = a_run("all_reduce", nodes=2, cores=1), a_run("all_reduce", nodes=2, lr=0.01, **FAILED)
    found = lines(cluster, failed, clusters=[in_cluster_time(cluster, 4.0)])
    assert "wall time;" not in found["Clock"].text


# Tolerances


def loaded(tmp_path: Path, tolerance: Any = None, option: str | None = None) -> Tolerances:
    content = {"name": "trial", "blocks": [{"base": {"strategy": "serial"}}]}
    content |= {"tolerance": tolerance} if tolerance else {}
    (tmp_path / "trial.yml").write_text(json.dumps(content))
    return load_sweep(tmp_path / "trial.yml", tolerance=option).tolerance


def test_an_option_replaces_what_the_file_says(tmp_path: Path) -> None:
    assert loaded(tmp_path) == Tolerances(accuracy="1pt", time="5%")
    of_file = {"accuracy": "0.5pt", "time": "10%"}
    assert loaded(tmp_path, of_file) == Tolerances(**of_file)
    assert loaded(tmp_path, of_file, "accuracy=2pt") == Tolerances(accuracy="2pt", time="10%")
    for tolerance, option, message in (
        ({"accuracy": 1}, None, r"tolerance\.accuracy: .*string"),
        ({"accuracy": "1%"}, None, r"tolerance\.accuracy: "),
        ({"speed": "5%"}, None, r"tolerance\.speed: unknown key"),
        (None, "accuracy=1%", "--tolerance accuracy=1%: 'accuracy=1%' is not one of"),
        (None, "time=5%,time=6%", "each at most once"),
    ):
        with pytest.raises(InputError, match=message):
            loaded(tmp_path, tolerance, option)


def test_what_is_within_the_tolerance_may_be_chosen() -> None:
    results = [
        *repeated("serial", around(0.95, 0.001, seeds=8), "accuracy"),
        *repeated("all_reduce", around(0.93, 0.001, seeds=8), "accuracy", nodes=2, train_s=3.0),
    ]
    for stated, meant, chosen in (
        (Tolerances(), Tolerance(0.01, 0.05), "serial"),
        (Tolerances(accuracy="4pt", time="12.5%"), Tolerance(0.04, 0.125), "all_reduce over mpi"),
    ):
        comparison = a_comparison(*results, tolerance=stated)
        assert comparison.tolerance == meant
        assert [each.name for each in verdicts(comparison, Claims())[0].options if each.first] == [chosen]
