"""Mistakes in formulas of layouts: what is divided, what hides, bubbles, and crossings. Numbers by hand."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.layouts.advice import Option, crossing
from orchestrator.layouts.formula import Block, Estimate, Sizes, estimate
from orchestrator.layouts.hardware import link_of, links, machine_of, parse_link
from trainer.models.base import ParallelPair
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Link

approx = pytest.approx
# Two blocks of 1,000 parameters and 3 ms a sample each; the second pair of layers is in the second block.
BLOCKS = [
    Block("flatten", 0, 0, output_bytes=400.0, saved_bytes=0.0, seconds=(0.0, 0.0)),
    *(
        Block(name, 1000, 600, output_bytes=400.0, saved_bytes=800.0, seconds=(3e-3, 6e-3))
        for name in ("fc1", "fc2")
    ),
]
SIZES = Sizes(BLOCKS, [ParallelPair("fc1", "fc2", 8)], optimizer=1)
LINK = Link(latency_s=0.01, bytes_per_s=1e5)
SHARED = {
    "dataset": "digits",
    "model": {"name": "mlp", "hidden": [64]},
    "batch_per": "run",
    "batch_size": 16,
}


def of(strategy: Any, nodes: int = 4, **fields: Any) -> Estimate:
    own = {} if strategy == "serial" else {"transport": "gloo", "nodes": nodes}
    run = RunSpec.model_validate({**SHARED, "strategy": strategy, **own, **fields})
    return estimate(run, SIZES, LINK)


def test_replicas_divide_samples_and_exchange_gradients() -> None:
    found, serial = of("all_reduce"), of("serial")
    assert (serial.work_s, serial.exchange_s) == (approx((0.096, 0.192)), (0, 0))
    assert found.work_s == approx((0.024, 0.048))
    sent = 2 * 3 / 4 * 8000
    assert (found.sent_bytes, found.bubble_s) == (approx(sent), (0, 0))
    assert found.exchange_s == approx((2 * 3 * 0.01 + sent / 1e5,) * 2)
    # Weights, gradient and momentum, and the activations of four samples.
    assert found.held_bytes == approx(3 * 8000 + 4 * 1600)


def test_shards_hold_less_and_hide_what_runs_beside_the_backward_pass() -> None:
    zero1, zero2, fsdp = (of(name) for name in ("zero1", "zero2", "fsdp"))
    assert zero1.held_bytes == approx(8000 * (2 + 0.3) + 6400)  # the owner of the largest tensor
    assert zero2.held_bytes == approx(8000 * (1 + 2 / 4) + 6400)
    assert fsdp.held_bytes == approx(8000 * 3 / 4 + 6400)
    assert [each.sent_bytes / 6000 for each in (zero1, zero2, fsdp)] == approx([3, 2, 3])
    hybrid = of({"name": "fsdp", "replicate": 2})
    assert hybrid.held_bytes == approx(8000 * 3 / 2 + 6400)
    assert hybrid.sent_bytes == approx(3 * 8000 / 2 + 2 * 4000 / 2)
    for each in (zero1, zero2, fsdp, hybrid):
        least, most = each.exchange_s
        assert most - least == approx(2 / 3 * 0.024)  # all of the backward pass


def test_a_pipeline_waits_for_its_first_and_last_micro_batches() -> None:
    found = of({"name": "pipeline", "micro_batches": 4}, nodes=2)
    assert found.work_s == approx((0.048, 0.096))
    assert found.bubble_s == approx((0.012, 0.024))  # (2 − 1) / 4 of the work
    assert found.sent_bytes == approx(16 * 400)  # of each rank: activations or their gradients
    # The first stage holds two of four micro-batches.
    assert found.held_bytes == approx(3 * 4000 + 16 * 800 / 2)
    assert found.exchange_s[1] == approx(8 * (0.01 + 1600 / 1e5))


def test_a_tensor_group_divides_pairs_and_sums_their_outputs() -> None:
    found = of("tensor_parallel", nodes=2)
    assert found.work_s == approx((0.048, 0.096))
    assert found.sent_bytes == approx(16 * 400)  # the input of the first layer needs no gradient
    assert found.held_bytes == approx(3 * 4000 + 16 * 800)


def test_activations_that_are_computed_again_cost_a_third_of_the_work() -> None:
    found = of("all_reduce", recompute="full")
    assert found.work_s == approx((0.032, 0.064))
    assert found.held_bytes == approx(3 * 8000 + 4 * 1200)  # the outputs of the blocks


def test_a_strategy_without_a_formula_is_an_error() -> None:
    with pytest.raises(KeyError, match="gossip"):
        of("gossip")


def test_the_batch_from_which_on_a_rival_is_as_fast() -> None:
    """The pipeline sends 800 bytes for each sample, the replicas the same for any batch."""
    specs = [
        RunSpec.model_validate(
            {**SHARED, "batch_size": 2, "transport": "gloo", "nodes": 2, "strategy": strategy}
        )
        for strategy in ({"name": "pipeline", "micro_batches": 1}, "all_reduce")
    ]
    pipeline, replicas = (Option(spec, estimate(spec, SIZES, LINK)) for spec in specs)
    batch = crossing(pipeline, replicas, SIZES, LINK)
    assert batch is not None
    for size, ahead in ((batch * 1.1, False), (batch / 1.2, True)):
        ours, theirs = (estimate(spec, SIZES, LINK, size).middle_s for spec in specs)
        assert (ours < theirs) is ahead
    assert crossing(replicas, pipeline, SIZES, LINK) is None


def test_the_catalogue_has_links_and_machines_with_sources() -> None:
    assert link_of("1gbit") == parse_link("1gbit/100us")
    assert all(each.source and machine_of(name).source for each in links() for name in ("h100", "t4"))
