"""Mistakes in layouts: batches, what just fits, the order of advice, and regret against real nodes."""

from __future__ import annotations

import pytest

from orchestrator.layouts.advice import Advice, advise
from orchestrator.layouts.candidates import Impossible, candidates
from orchestrator.layouts.trials import Failed, Network, Trial, step_s
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster, Link

SERIAL = RunSpec.model_validate(
    {
        "strategy": "serial",
        "dataset": {"name": "induction", "length": 15},
        "model": {"name": "gpt", "layers": 2, "width": 16, "heads": 4},
        "batch_size": 16,
        "batch_per": "run",
        "optimizer": "adamw",
    }
)


def run(strategy: str, **fields: object) -> RunSpec:
    shared = {**SERIAL.model_dump(mode="json", exclude_defaults=True), "transport": "gloo", "nodes": 2}
    return RunSpec.model_validate({**shared, "strategy": strategy, **fields})


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
    (experts,) = [
        each for each in found if isinstance(each, Impossible) and each.strategy == "expert_parallel"
    ]
    assert "experts" in experts.reason


def test_meshes_combine_at_least_two_dimensions() -> None:
    found = [each for each in candidates(SERIAL, 8, "gloo") if isinstance(each, RunSpec)]
    meshes = {str(each.strategy.mesh_of(8)) for each in found if each.name_of("strategy") == "hybrid"}
    assert meshes == {
        "{data: 2, pipeline: 4}",
        "{data: 4, pipeline: 2}",
        "{data: 2, tensor: 4}",
        "{data: 4, tensor: 2}",
        "{pipeline: 2, tensor: 4}",
        "{pipeline: 4, tensor: 2}",
        "{data: 2, pipeline: 2, tensor: 2}",
    }


def advice_of(memory: float | None) -> Advice:
    """Three layouts, one of which fits with less memory for activations, and one that fails."""
    known = {
        "all_reduce": trial(run("all_reduce"), 1.0, 300),
        "zero2": trial(run("zero2"), 2.0, 200),
        "pipeline": trial(run("pipeline"), 3.0, 100),
    }
    again = trial(run("all_reduce", recompute="full"), 1.5, 150)

    def try_(spec: RunSpec) -> Trial | Failed:
        if spec.recompute == "full":
            return again if spec.name_of("strategy") == "all_reduce" else Failed(spec, "no memory")
        return known.get(spec.name_of("strategy")) or Failed(spec, "refused")

    found = [*(each.run for each in known.values()), run("fsdp"), Impossible("hybrid", "no mesh")]
    return advise(trial(SERIAL, 2.0, 400), found, try_, memory)


def names(trials: object) -> list[tuple[str, str]]:
    return [(each.run.name_of("strategy"), each.run.recompute) for each in trials]  # type: ignore[attr-defined]


def test_the_fastest_layout_that_fits_comes_first() -> None:
    free = advice_of(None)
    assert names(free.fitting) == [("all_reduce", "none"), ("zero2", "none"), ("pipeline", "none")]
    assert [each.reason for each in free.failed] == ["refused"]
    assert [each.strategy for each in free.impossible] == ["hybrid"]


def test_a_layout_that_does_not_fit_is_tried_without_stored_activations() -> None:
    tight = advice_of(150)  # exactly what the first one needs then
    assert names(tight.fitting) == [("all_reduce", "full"), ("pipeline", "none")]
    assert names(tight.too_large) == [("zero2", "none")]
    least = advice_of(99)
    assert names(least.fitting) == []
    assert names(least.too_large) == [("pipeline", "none"), ("all_reduce", "full"), ("zero2", "none")]


def test_ranks_of_a_node_share_its_memory() -> None:
    two_ranks = run("all_reduce", processes_per_node=2)
    for memory, fitting in ((199, 0), (200, 1), (None, 1)):
        advice = advise(trial(SERIAL, 1, 1), [two_ranks], lambda spec: trial(spec, 1.0, 100), memory)
        assert len(advice.fitting) == fitting


@pytest.mark.parametrize(
    ("real_s", "regret"),
    [([1.0, 2.0], 0.0), ([3.0, 2.0], 0.5), ([1.0], None), ([None, 2.0, 3.0], None)],
)
def test_regret_compares_the_advised_layout_with_the_fastest_real_one(
    real_s: list[float | None], regret: float | None
) -> None:
    times = iter(real_s)

    def try_(spec: RunSpec) -> Trial | Failed:
        seconds = next(times)
        return Failed(spec, "killed") if seconds is None else trial(spec, seconds, 1)

    assert advice_of(None).with_real(try_, len(real_s)).regret == regret


def test_the_first_epoch_does_not_count() -> None:
    assert step_s([1.0, 5.0, 7.0]) == 0.5  # of 4 steps in each epoch


def test_a_link_is_no_faster_than_the_software() -> None:
    known = Cluster(node_speed=[1, 1], link=Link(latency_s=0, bytes_per_s=1e9))
    asked = Link(latency_s=1e-3, bytes_per_s=1e10)
    assert Network(asked, None).of(known, "gloo").link == Link(latency_s=1e-3, bytes_per_s=1e9)
    assert Network(None, None).of(known, "gloo") == known
