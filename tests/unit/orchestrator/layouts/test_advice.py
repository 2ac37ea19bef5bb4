"""Mistakes in layouts: batches, what just fits, the order of advice, and regret against real nodes."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from orchestrator.layouts.advice import Advice, advise
from orchestrator.layouts.candidates import Impossible, candidates
from orchestrator.layouts.trials import Failed, Network, Trial, step_s
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, Link

GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4}
SHARED = {"dataset": {"name": "induction", "length": 15}, "model": GPT, "optimizer": "adamw"}
SERIAL = RunSpec.model_validate({**SHARED, "strategy": "serial", "batch_size": 16, "batch_per": "run"})


def run(strategy: str, **fields: object) -> RunSpec:
    shared = {**SERIAL.model_dump(mode="json", exclude_defaults=True), "transport": "gloo", "nodes": 2}
    return RunSpec.model_validate({**shared, "strategy": strategy, **fields})


def name(spec: RunSpec) -> str:
    return f"{spec.name_of('strategy')} {spec.recompute}"


def trial(spec: RunSpec, step: float, held: int) -> Trial:
    return Trial(spec, step, communication=0.1, step_bytes=1.0, held_bytes=held)


def test_layouts_train_the_same_with_the_same_global_batch() -> None:
    found = [*candidates(SERIAL, 4, "gloo")]
    runs = [each for each in found if isinstance(each, RunSpec)]
    assert {each.batch_per_replica * each.strategy.replicas(4) for each in runs} == {16}
    assert {(each.nodes, each.transport, each.name_of("optimizer")) for each in runs} == {
        (4, "gloo", "adamw")
    }
    assert {each.strategy.claimed_equal for each in runs} <= {None, "serial", "all_reduce"}
    assert len({each.key for each in runs}) == len(runs)
    names = {each.name_of("strategy") for each in runs}
    assert names >= {"all_reduce", "zero2", "tensor_parallel", "context_parallel", "pipeline", "hybrid"}
    reasons = {each.strategy: each.reason for each in found if isinstance(each, Impossible)}
    assert "experts" in reasons["expert_parallel"]


def advice_of(memory: float | None) -> Advice:
    """Three layouts, one of which fits with less memory for activations, and one that fails."""
    known = {
        "all_reduce none": trial(run("all_reduce"), 1.0, 300),
        "zero2 none": trial(run("zero2"), 2.0, 200),
        "pipeline none": trial(run("pipeline"), 3.0, 100),
        "all_reduce full": trial(run("all_reduce", recompute="full"), 1.5, 150),
    }
    found = [run("all_reduce"), run("zero2"), run("pipeline"), run("fsdp"), Impossible("hybrid", "no mesh")]
    return advise(
        trial(SERIAL, 2.0, 400), found, lambda spec: known.get(name(spec), Failed(spec, "refused")), memory
    )


@pytest.mark.parametrize(
    ("memory", "fitting", "too_large"),
    [
        (None, ["all_reduce none", "zero2 none", "pipeline none"], []),
        (150, ["all_reduce full", "pipeline none"], ["zero2 none"]),  # exactly what the first one needs
        (99, [], ["pipeline none", "all_reduce full", "zero2 none"]),
    ],
)
def test_the_fastest_layout_that_fits_comes_first_if_need_be_without_stored_activations(
    memory: float | None, fitting: Sequence[str], too_large: Sequence[str]
) -> None:
    advice = advice_of(memory)
    assert [name(each.run) for each in advice.fitting] == fitting
    assert [name(each.run) for each in advice.too_large] == too_large
    assert [each.run for each in advice.failed] == [run("fsdp")]
    assert advice.impossible == [Impossible("hybrid", "no mesh")]


def test_ranks_of_a_node_share_its_memory() -> None:
    two_ranks = run("all_reduce", processes_per_node=2)
    for memory, fitting in ((199, 0), (200, 1), (None, 1)):
        advice = advise(trial(SERIAL, 1, 1), [two_ranks], lambda spec: trial(spec, 1.0, 100), memory)
        assert len(advice.fitting) == fitting


def test_regret_compares_the_advised_layout_with_the_fastest_real_one() -> None:
    advice = advice_of(None)
    for real_s, regret in (([1, 2], 0.0), ([3, 2], 0.5), ([1], None), ([None, 2, 3], None)):
        pairs = zip(advice.fitting, real_s, strict=False)
        real = [trial(each.run, s, 1) if s else Failed(each.run, "killed") for each, s in pairs]
        assert advice.with_real(Mock(side_effect=real), len(real_s)).regret == regret


def test_the_first_epoch_does_not_count() -> None:
    assert step_s([1.0, 5.0, 7.0]) == 0.5  # of 4 steps in each epoch


def test_a_link_is_no_faster_than_the_software() -> None:
    known = Cluster(node_speed=[1, 1], link=Link(latency_s=0, bytes_per_s=1e9))
    asked = Link(latency_s=1e-3, bytes_per_s=1e10)
    assert Network(asked, None).of(known, "gloo").link == Link(latency_s=1e-3, bytes_per_s=1e9)
    assert Network(None, None).of(known, "gloo") == known
