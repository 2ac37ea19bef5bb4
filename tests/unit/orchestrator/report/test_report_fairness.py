"""Conditions of compared configurations: their differences, and where a report names them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.metrics.fairness import (
    CONDITIONS,
    compared_groups,
    described,
    differences,
    global_batch,
    scales_beyond_the_rule,
    stated_conditions,
    unequal_conditions,
)
from orchestrator.report.model.comparison import WorkloadView
from orchestrator.report.model.labels import strategy_label
from orchestrator.report.render.summary import VARIED, seeds_line
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    ONE_SHOT_ALONE,
    a_comparison,
    a_run,
    findings_of,
    write_page,
)
from tests.unit.training import fields_for
from trainer.core.rng import SOURCES
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec

PER_RUN: dict[str, Any] = {"batch_per": "run", "batch_size": 32}
EQUAL = [a_run(**PER_RUN), a_run("all_reduce", nodes=2, **PER_RUN), a_run("ddp", nodes=2, **PER_RUN)]


def view_of(*results: RunResult) -> WorkloadView:
    comparison = a_comparison(*results)
    (workload,) = comparison.workloads
    return comparison.view(workload)


def found_in(*results: RunResult) -> dict[str, dict[str, list[str]]]:
    """The strategies with each value of every condition that differs."""
    return {
        each.condition: {
            value: [group.strategy_label for group in groups] for value, groups in each.values.items()
        }
        for each in differences(view_of(*results))
    }


def evaluated(run: RunResult, **fields: Any) -> RunResult:
    """The run with these fields of its epochs."""
    return run.model_copy(update={"epochs": [point.model_copy(update=fields) for point in run.epochs]})


def on_images(run: RunResult, images: int) -> RunResult:
    ranks = [rank.model_copy(update={"test_samples": images}) for rank in run.ranks]
    return run.model_copy(update={"ranks": ranks})


def enforced(run: RunResult) -> RunResult:
    return run.model_copy(update={"runtime_info": replace(run.runtime_info, enforces_limits=True)})


def test_equal_conditions_are_no_difference() -> None:
    assert found_in(*EQUAL) == {}
    assert findings_of(a_comparison(*EQUAL), "conditions_unequal") == []
    assert unequal_conditions(a_comparison(*EQUAL)) == []


def test_one_configuration_is_compared_with_nothing() -> None:
    assert found_in(a_run()) == {}
    assert found_in(a_run("all_reduce", nodes=2)) == {}


@pytest.mark.parametrize(
    ("other", "condition", "values"),
    [
        (a_run("gossip", nodes=2, samples=400, **PER_RUN), "samples per epoch", ["600", "400"]),
        (a_run("gossip", nodes=2, coverage=0.7, **PER_RUN), "coverage", ["100.0%", "70.0%"]),
        (a_run("ddp", nodes=2, seed=1, lr_scaling="none", **PER_RUN), "seeds", ["0", "0 and 1"]),
        (a_run(ONE_SHOT_ALONE, nodes=2, **PER_RUN), "initial weights", ["rank 0's", "each rank's own"]),
        (
            a_run("all_gather", nodes=2, digests=["one", "other"], **PER_RUN),
            "evaluated model",
            ["the final model", "rank 0's replica, which differs from others"],
        ),
        (
            a_run("one_shot", nodes=2, **PER_RUN),
            "model evaluated after epochs",
            ["the common model", "each rank's own model"],
        ),
        (
            evaluated(a_run("local_sgd", nodes=2, **PER_RUN), consensus_distance=0.1),
            "model evaluated after epochs",
            ["the common model", "average of the replicas"],
        ),
        (a_run("local_sgd", nodes=2, **PER_RUN), "global batch", ["32", "32 in updates of 16"]),
        (a_run("gossip", nodes=2, steps=60, **PER_RUN), "global batch", ["32", "32 in updates of 16"]),
        (
            a_run({"name": "all_gather"}, nodes=2, steps=60, **PER_RUN),
            "updates of the model",
            ["90", "60"],
        ),
    ],
)
def test_a_condition_that_differs_is_found_with_its_values(
    other: RunResult, condition: str, values: list[str]
) -> None:
    found = found_in(*EQUAL, other)
    assert list(found[condition]) == values
    assert found[condition][values[-1]] == [strategy_label(other.run)]
    assert set(found) <= {condition, "global batch", "model evaluated after epochs"}


def test_seeds_that_vary_nothing_are_no_difference() -> None:
    runs = [a_run(vary=[], **PER_RUN), a_run("ddp", nodes=2, seed=1, vary=[], **PER_RUN)]
    assert found_in(*runs) == {}


def test_the_order_of_conditions_is_that_of_their_table() -> None:
    runs = [a_run(), a_run(ONE_SHOT_ALONE, nodes=2, samples=400, coverage=0.7)]
    found = list(found_in(*runs))
    assert len(found) == 5
    assert found == [name for name in CONDITIONS if name in found]


def test_images_that_were_not_recorded_are_no_difference() -> None:
    serial, *others = EQUAL
    assert found_in(on_images(serial, 360), *others) == {}
    found = found_in(on_images(serial, 360), on_images(others[0], 300))
    assert found == {"test images": {"360": ["serial"], "300": ["all_reduce"]}}


def test_samples_are_those_of_whole_runs() -> None:
    """A part that lacks samples in a later epoch is a difference."""
    run = EQUAL[1]
    assert run.certificate
    later = [part.model_copy(update={"epoch": 2, "samples": 100}) for part in run.certificate.parts]
    parts = [*run.certificate.parts, *later]
    fewer = run.model_copy(update={"certificate": run.certificate.model_copy(update={"parts": parts})})
    assert found_in(EQUAL[0], fewer) == {"samples per epoch": {"600": ["serial"], "400": ["all_reduce"]}}


def test_nodes_that_share_one_container_have_other_limits() -> None:
    fields: dict[str, Any] = {"nodes": 2, "runtime": "docker", **PER_RUN}
    serial, ddp = a_run(runtime="docker", **PER_RUN), a_run("ddp", **fields)
    assert "node limits" not in found_in(serial, ddp)
    hogwild = a_run("hogwild", **fields)
    (per_node, together) = found_in(serial, ddp, hogwild)["node limits"].values()
    assert (per_node, together) == (["serial", "ddp"], ["hogwild"])


def test_the_scaling_of_a_learning_rate_that_has_no_effect_is_no_difference() -> None:
    fields: dict[str, Any] = {"nodes": 2, "lr_scaling": "linear", "warm_up_epochs": 2}
    assert set(found_in(a_run(), a_run("ddp", **fields), a_run("all_reduce", **fields))) == {"global batch"}
    found = found_in(a_run(), a_run("ddp", **fields), a_run("all_reduce", nodes=2))
    assert [len(strategies) for strategies in found["learning-rate scaling"].values()] == [1, 1]


def test_a_warm_up_that_others_do_not_have_is_a_difference() -> None:
    warm = a_run(warm_up_epochs=2)
    assert [*found_in(warm, a_run("ddp", nodes=2))["warm-up"]] == ["2\u00a0epochs", "none"]
    both: dict[str, Any] = {"nodes": 2, "lr_scaling": "linear", "warm_up_epochs": 2}
    assert set(found_in(warm, a_run("ddp", **both))) == {"global batch"}


def test_global_batch_counts_the_replicas_that_train() -> None:
    def batch(strategy: str, **fields: Any) -> int:
        return global_batch(RunSpec(strategy=strategy, nodes=4, batch_size=32, **fields))

    assert batch("all_reduce") == 128
    assert batch("parameter_server") == 96
    assert batch("pipeline") == 32
    assert batch("hybrid") == 64
    assert batch("all_reduce", batch_per="run") == 32


LOCAL_STEPS = [
    "one_shot",
    "local_sgd",
    "diloco",
    "fedopt",
    "fedprox",
    "gossip",
    "hogwild",
    "async_parameter_server",
]


@pytest.mark.parametrize(
    "name",
    [name for name in STRATEGIES.entries if STRATEGIES.load(name).trains and name != "serial"],
)
def test_rules_for_large_batches_do_not_cover_steps_with_one_batch(name: str) -> None:
    fields = {"strategy": name, "nodes": 4, **fields_for(name)}
    run = RunSpec.model_validate({**fields, "lr_scaling": "linear"})
    assert scales_beyond_the_rule(run) is (name in LOCAL_STEPS)
    assert not scales_beyond_the_rule(RunSpec.model_validate(fields))
    shared = RunSpec.model_validate(
        {**fields, "lr_scaling": "linear", "batch_per": "run", "batch_size": 96}
    )
    assert not scales_beyond_the_rule(shared)


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "local_sgd", "local_steps": 1},
        {"name": "diloco", "local_steps": 1},
        {"name": "gossip", "graph": "complete", "order": "step_then_mix"},
    ],
)
def test_rules_for_large_batches_cover_averages_in_every_step(strategy: dict[str, Any]) -> None:
    assert not scales_beyond_the_rule(RunSpec(strategy=strategy, nodes=4, lr_scaling="linear"))


def test_scaled_learning_rates_that_no_rule_covers_are_a_caution() -> None:
    covered = a_run("ddp", nodes=3, lr_scaling="linear")
    assert findings_of(a_comparison(a_run(), covered), "scaled_beyond_the_rule") == []
    scaled = [a_run(name, nodes=3, lr_scaling="linear") for name in ("gossip", "async_parameter_server")]
    (finding,) = findings_of(a_comparison(a_run(), covered, *scaled), "scaled_beyond_the_rule")
    assert {row.key for row in finding.rows} == {run.key for run in scaled}
    assert finding.data == {"strategies": ["gossip", "async_parameter_server"], "factors": [2, 3]}


def test_unequal_conditions_are_one_caution_per_workload() -> None:
    runs = [a_run(), a_run("ddp", nodes=2), a_run(lr=0.1), a_run("ddp", nodes=2, samples=400, lr=0.1)]
    one, other = findings_of(a_comparison(*runs), "conditions_unequal")
    assert (one.caution, one.data["shape"]) == (True, "2")
    assert one.data["differences"] == {"global batch": {"32": ["serial"], "64": ["ddp over gloo"]}}
    assert set(other.data["differences"]) == {"samples per epoch", "global batch"}
    assert {row.key for row in one.rows} == {runs[0].key, runs[1].key}


def test_values_name_strategies_and_abbreviate_the_majority() -> None:
    names = ["all_reduce", "all_gather", "reduce_broadcast", "ddp"]
    view = view_of(a_run(), *(a_run(name, nodes=2) for name in names))
    (batch,) = differences(view)
    assert described(view, batch) == "global batch differs: 32 (serial), 64 (all others)"
    few = view_of(a_run(), *(a_run(name, nodes=2) for name in names[:2]))
    assert "64 (all_reduce and all_gather)" in described(few, *differences(few))
    assert ", ".join(names[:3]) in stated_conditions(view)


def test_strategies_of_one_label_are_named_with_what_distinguishes_them() -> None:
    fields: dict[str, Any] = {"nodes": 2, **PER_RUN}
    view = view_of(
        EQUAL[0], a_run("ddp", **fields), a_run("ddp", partitioner="contiguous", coverage=0.7, **fields)
    )
    (coverage,) = differences(view)
    text = described(view, coverage)
    assert "serial and ddp over gloo with random_partition" in text
    assert "70.0% (ddp over gloo with contiguous)" in text


def test_both_pages_name_differences_and_state_conditions(tmp_path: Path) -> None:
    runs = a_run(), a_run("ddp", nodes=2)
    paths = write_page(tmp_path, *runs)
    view = view_of(*runs)
    comparison = a_comparison(*runs)
    (caution,) = findings_of(comparison, "conditions_unequal")
    for page in (re.sub("<[^>]+>", "", paths.html.read_text()), paths.markdown.read_text()):
        assert page.count(caution.text) == 1
        assert page.count(stated_conditions(view)) == 1
        assert page.count(seeds_line(comparison)) == 1


@pytest.mark.parametrize("vary", [[*SOURCES], ["split"], []])
def test_the_report_says_what_seeds_vary(vary: list[str]) -> None:
    line = seeds_line(a_comparison(a_run(vary=vary), a_run("ddp", nodes=2, vary=vary)))
    assert [source for source in SOURCES if VARIED[source] in line] == vary
    assert set(VARIED) == set(SOURCES)


def test_workloads_whose_seeds_vary_other_things_are_not_described_by_one_of_them() -> None:
    line = seeds_line(a_comparison(a_run(), a_run(vary=["split"])))
    assert line
    assert not any(name in line for name in VARIED.values())
    assert seeds_line(a_comparison()) == ""


def test_all_compared_groups_have_a_value_of_the_global_batch() -> None:
    view = view_of(a_run(), a_run("ddp", nodes=2))
    (batch,) = differences(view)
    assert [group for groups in batch.values.values() for group in groups] == compared_groups(view)
