"""Mistakes in what a run may write: too little for a valid run, too much for a disk, attempts left out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.conftest import event, rank_fields
from trainer.core.trace import ANY_RUN, CHECKSUM_BYTES, MAX_RECORDS, RECORD, TraceHeader
from trainer.core.trace import MAX_BYTES as TRACE_BYTES
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec
from trainer.spec.traces import untraced_reason

THIRD = 1 / 3
CONTINUES = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}


def longest_events(spec: RunSpec, checkpoints: int) -> int:
    """Bytes of as many and as long events as a rank can write in one attempt."""
    counts = {"epoch": 10_000, "step": 10**9}
    step = {
        **counts,
        "epochs": 10_000,
        "steps": 10**9,
        "loss": THIRD,
        "accuracy": THIRD,
        "samples_per_s": 1e6 / 3,
    }
    labels = [spec.dataset.train_samples] * spec.dataset.class_count
    skew = dict.fromkeys(["js_divergence", "js_divergence_so_far", "earth_movers_distance"], THIRD)
    shares = dict.fromkeys(["coverage", "overlap", "coverage_so_far", "overlap_so_far"], THIRD)
    parts = [{"samples": 10**6, "digest": "0" * 16}] * spec.world_size * (spec.on_loss == "continue")
    coverage = {"epoch": 1, "uneven": "join", **shares, "digest": "0" * 16, "parts": parts or None}
    part = {"epoch": 1, "samples": 10**6, "labels": labels, **skew, "digest": "0" * 16}
    epoch = dict.fromkeys(["train_s", "loss", "accuracy", "test_loss", "lr", "consensus_distance"], THIRD)
    written: list[tuple[int, str, dict[str, Any]]] = [
        (1, "start", {"pid": 2**22, "attempt": 100}),
        (1, "result", rank_fields(wait_s_by_rank=[THIRD] * 64, bytes_to=[10**9] * 64)),
        (1, "failed", {"cause": "x" * 3000, "traceback": "x" * 3000}),
        (int(2 * spec.timeout_s), "step", step),
        (spec.epochs, "partition", part),
        (spec.epochs, "coverage", coverage),
        (spec.epochs, "epoch", {"epoch": 1, "epochs": 10_000, **epoch, "target_reached": False}),
        (spec.epochs + checkpoints, "checkpoint", {**counts, "bytes": 10**10, "seconds": THIRD}),
    ]
    return sum(
        count * len(event(kind, 10_000, 1700000000.123456, **fields).to_line())
        for count, kind, fields in written
    )


@pytest.mark.parametrize(
    ("fields", "checkpoints"),
    [
        ({}, 0),
        ({"epochs": 1, "timeout_s": 0.1}, 0),
        ({"epochs": 100, "timeout_s": 3600}, 0),
        ({"dataset": {"name": "synthetic", "classes": 500}}, 0),
        ({"batch_size": 1, "checkpoint_steps": 1}, 3 * 1500),
        ({**CONTINUES, "nodes": 128, "epochs": 1000, "timeout_s": 0.1}, 0),
    ],
)
def test_longest_valid_run_is_allowed(fields: dict[str, Any], checkpoints: int) -> None:
    spec = RunSpec.model_validate({"strategy": "all_reduce", "nodes": 2, **fields})
    assert longest_events(spec, checkpoints) < OutputLimits.of(spec).event_bytes


def test_limits_of_a_small_run_are_small_and_grow_with_its_attempts() -> None:
    fields = {"strategy": "all_reduce", "nodes": 3}
    spec, again = (RunSpec.model_validate({**fields, **more}) for more in ({}, {"save_weights": True}))
    limits = OutputLimits.of(spec)
    assert (limits.ranks, limits.restarts, limits.weight_bytes) == (3, 0, 0)
    assert OutputLimits.of(again).weight_bytes == 2048 * 2**20
    assert limits.event_bytes < 2 * 2**20
    assert limits.trace_bytes < 15 * 2**20
    requeued = OutputLimits.of(spec, requeues=2)
    assert (requeued.restarts, requeued.event_bytes) == (2, 3 * limits.event_bytes)


@pytest.mark.parametrize(
    "fields",
    [
        {"trace": "none"},
        {"strategy": "hogwild"},
        {"strategy": "fault_injection"},
        {"threads": 2},
        {"cpus": 2.0},
        {"transport": "nccl"},
        {"transport": "gloo", "restarts": 1},
        CONTINUES,
    ],
    ids=str,
)
def test_runs_whose_traces_would_be_wrong_or_incomplete_have_none(fields: dict[str, Any]) -> None:
    spec = RunSpec.model_validate({"strategy": "all_reduce", "nodes": 2, **fields})
    assert untraced_reason(spec)
    limits = OutputLimits.of(spec)
    assert (limits.trace_records, limits.trace_bytes) == (0, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"epochs": 10_000, "dataset": "mnist"},
        {"epochs": 1000, "strategy": "pipeline", "transport": "memory", "nodes": 4, "model": "vgg_small"},
        {"epochs": 1000, "transport": "mpi", "processes_per_node": 64},
        {"epochs": 1000, "transport": "memory", "nodes": 512},
    ],
    ids=str,
)
def test_traces_of_a_node_fit_into_half_of_its_file_system(fields: dict[str, Any]) -> None:
    spec = RunSpec.model_validate({"strategy": "all_reduce", "nodes": 2, **fields})
    limits = OutputLimits.of(spec)
    ranks = spec.world_size if spec.transport == "memory" else spec.processes_per_node
    assert 1 < limits.trace_records <= MAX_RECORDS
    assert limits.trace_bytes <= TRACE_BYTES
    assert ranks * limits.trace_records * RECORD.itemsize <= 2**28
    groups = [list(range(spec.world_size))] * 3
    header = TraceHeader(
        run=spec.key,
        rank=0,
        size=spec.world_size,
        transport="memory",
        mode="full",
        groups=groups,
        started_s=1e9 / 7,
        count=limits.trace_records,
    )
    longest = len(header.model_dump_json()) + 1 + limits.trace_records * RECORD.itemsize + CHECKSUM_BYTES
    assert longest <= limits.trace_bytes


def test_simulated_times_are_not_bounded_by_the_time_limit() -> None:
    spec = RunSpec.model_validate(
        {"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "timeout_s": 1}
    )
    assert OutputLimits.of(spec).trace.seconds < 100
    assert OutputLimits.of(spec, simulated=True).trace.seconds == ANY_RUN.seconds
