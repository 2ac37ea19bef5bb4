"""Mistakes in the conditions of a comparison: a difference that is not found or is none, the wrong batch,
range or name, and what is stated of all."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.report.metrics.fairness import (
    differences,
    global_batch,
    scales_beyond_the_rule,
    unequal_conditions,
)
from orchestrator.results.records import RunResult
from tests.unit.report_support import (
    ONE_SHOT_ALONE,
    a_comparison,
    a_run,
    finding_of,
    findings_of,
    view_of,
    with_certificate,
    with_epochs,
    with_ranks,
)
from tests.unit.training import fields_for
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec

PER_RUN: dict[str, Any] = {"batch_per": "run", "batch_size": 32}
EQUAL = [a_run(**PER_RUN), a_run("all_reduce", nodes=2, **PER_RUN), a_run("ddp", nodes=2, **PER_RUN)]


def found_in(*results: RunResult) -> dict[str, list[str]]:
    """The values of every condition that differs."""
    return {each.condition: list(each.values) for each in differences(view_of(*results))}


def another(strategy: str | dict[str, Any] = "gossip", **fields: Any) -> RunResult:
    return a_run(strategy, nodes=2, **PER_RUN, **fields)


def on_images(run: RunResult, images: int) -> RunResult:
    return with_ranks(run, test_samples=images)


def with_parts(run: RunResult, epoch: int, samples: int) -> RunResult:
    """The run with further parts of its certificate, of an epoch."""
    assert run.certificate
    first = run.certificate.parts
    more = [part.model_copy(update={"epoch": epoch, "samples": samples}) for part in first]
    return with_certificate(run, parts=[*first, *more])


def test_equal_conditions_are_no_difference() -> None:
    assert findings_of(a_comparison(*EQUAL), "conditions_unequal") == []
    assert unequal_conditions(a_comparison(*EQUAL)) == []
    for runs in (
        EQUAL,
        [a_run()],
        [a_run("all_reduce", nodes=2)],
        [on_images(EQUAL[0], 360), *EQUAL[1:]],  # others have not recorded it
        [a_run(vary=[], **PER_RUN), another("ddp", seed=1, vary=[])],
        [EQUAL[0], with_parts(EQUAL[1], 1, 300)],  # of an epoch that was trained again
    ):
        assert found_in(*runs) == {}


@pytest.mark.parametrize(
    ("condition", "values", "others"),
    [
        ("samples per epoch", ["600", "400"], [another(samples=400)]),
        ("samples per epoch", ["600", "400"], [with_parts(EQUAL[1], 2, 100)]),  # in a later epoch
        ("coverage", ["100.0%", "70.0%"], [another(coverage=0.7)]),
        ("seeds", ["0", "0 and 1"], [another("ddp", seed=1)]),
        ("seeds", ["0", "0 to 2"], [another("ddp", seed=seed) for seed in (1, 2)]),
        ("seeds", ["0", "0, 1 and 3"], [another("ddp", seed=seed) for seed in (1, 3)]),
        ("initial weights", ["rank 0's", "each rank's own"], [another(ONE_SHOT_ALONE)]),
        (
            "evaluated model",
            ["the final model", "rank 0's replica, which differs from others"],
            [another("all_gather", digests=["one", "other"])],
        ),
        (
            "model evaluated after epochs",
            ["the common model", "each rank's own model"],
            [another("one_shot")],
        ),
        (
            "model evaluated after epochs",
            ["the common model", "average of the replicas"],
            [with_epochs(another("local_sgd"), consensus_distance=0.1)],
        ),
        ("global batch", ["32", "32 in updates of 16"], [another(steps=60)]),
        ("updates of the model", ["90", "60"], [another("all_gather", steps=60)]),
        ("test images", ["360", "300"], [on_images(EQUAL[0], 360), on_images(EQUAL[1], 300)]),
    ],
    ids=lambda each: each.replace(" ", "-") if isinstance(each, str) else "",
)
def test_a_condition_that_differs_is_found_with_its_values(
    condition: str, values: list[str], others: list[RunResult]
) -> None:
    same = {run.key for run in others}
    found = found_in(*(run for run in EQUAL if run.key not in same), *others)
    assert found[condition] == values
    assert set(found) <= {condition, "global batch", "model evaluated after epochs"}


def test_scaling_and_warm_up_are_differences_only_where_they_have_an_effect() -> None:
    scaled: dict[str, Any] = {"nodes": 2, "lr_scaling": "linear", "warm_up_epochs": 2}
    assert set(found_in(a_run(), a_run("ddp", **scaled), a_run("all_reduce", **scaled))) == {"global batch"}
    found = found_in(a_run(), a_run("ddp", **scaled), a_run("all_reduce", nodes=2))
    assert len(found["learning-rate scaling"]) == 2
    warm = a_run(warm_up_epochs=2)
    assert found_in(warm, a_run("ddp", nodes=2))["warm-up"] == ["2\u00a0epochs", "none"]
    assert set(found_in(warm, a_run("ddp", **scaled))) == {"global batch"}  # a part of the scaling


def test_global_batch_counts_the_replicas_that_train() -> None:
    expected = {"all_reduce": 128, "parameter_server": 96, "pipeline": 32, "hybrid": 64}
    for name, batch in expected.items():
        assert global_batch(RunSpec(strategy=name, nodes=4, batch_size=32)) == batch
    assert global_batch(RunSpec(strategy="all_reduce", nodes=4, **PER_RUN)) == 32


def test_rules_for_large_batches_do_not_cover_updates_with_one_batch() -> None:
    every_step: tuple[dict[str, Any], ...] = (
        {"name": "local_sgd", "local_steps": 1},
        {"name": "diloco", "local_steps": 1},
        {"name": "gossip", "graph": "complete", "order": "step_then_mix"},
    )
    beyond = set()
    for name in STRATEGIES.entries:
        if not STRATEGIES.load(name).trains or name == "serial":
            continue
        fields = {"strategy": name, "nodes": 4, **fields_for(name)}
        scaled = {**fields, "lr_scaling": "linear"}
        beyond |= {name} if scales_beyond_the_rule(RunSpec.model_validate(scaled)) else set()
        for none in (fields, {**scaled, "batch_per": "run", "batch_size": 96}):
            assert not scales_beyond_the_rule(RunSpec.model_validate(none)), name
    local_steps = {"one_shot", "local_sgd", "diloco", "fedopt", "fedprox", "gossip", "hogwild"}
    assert beyond == {*local_steps, "async_parameter_server"}
    for strategy in every_step:
        assert not scales_beyond_the_rule(RunSpec(strategy=strategy, nodes=4, lr_scaling="linear"))
    names = ("ddp", "gossip", "async_parameter_server")
    runs = [a_run(name, nodes=3, lr_scaling="linear") for name in names]
    finding = finding_of(a_comparison(a_run(), *runs), "scaled_beyond_the_rule")
    assert {row.key for row in finding.rows} == {run.key for run in runs[1:]}
    assert finding.data == {"strategies": ["gossip", "async_parameter_server"], "factors": [2, 3]}


def test_unequal_conditions_are_one_caution_per_workload() -> None:
    runs = [a_run(), a_run("ddp", nodes=2), a_run(lr=0.1), a_run("ddp", nodes=2, samples=400, lr=0.1)]
    one, other = findings_of(a_comparison(*runs), "conditions_unequal")
    assert (one.caution, one.data["shape"]) == (True, "2")
    assert one.data["differences"] == {"global batch": {"32": ["serial"], "64": ["ddp over gloo"]}}
    assert set(other.data["differences"]) == {"samples per epoch", "global batch"}
    assert {row.key for row in one.rows} == {runs[0].key, runs[1].key}
