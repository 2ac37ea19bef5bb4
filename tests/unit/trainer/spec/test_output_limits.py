"""Mistakes in what a run may write: too little for a valid run, too much for a disk, attempts left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.conftest import event, rank_fields
from trainer.core.trace import ANY_RUN, CHECKSUM_BYTES, MAX_RECORDS, RECORD, TraceHeader, TraceLimits
from trainer.core.trace import MAX_BYTES as TRACE_BYTES
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec
from trainer.spec.traces import untraced_reason

THIRD = 1 / 3
CONTINUES = {"strategy": "gossip", "transport": "gloo", "on_loss": "continue"}


def spec(**fields: Any) -> RunSpec:
    return RunSpec.model_validate({"strategy": "all_reduce", "nodes": 2, **fields})


def longest_events(spec: RunSpec, checkpoints: int) -> int:
    """Bytes of as many and as long events as a rank can write in one attempt."""
    counts = {"epoch": 10_000, "step": 10**9}
    of_step = {"epochs": 10_000, "steps": 10**9, "loss": THIRD, "accuracy": THIRD, "samples_per_s": 1e6 / 3}
    part = {"epoch": 1, "samples": 10**6, "digest": "0" * 16}
    labels = [spec.dataset.train_samples] * spec.dataset.class_count
    skew = dict.fromkeys(["js_divergence", "js_divergence_so_far", "earth_movers_distance"], THIRD)
    shares = dict.fromkeys(["coverage", "overlap", "coverage_so_far", "overlap_so_far"], THIRD)
    parts = [{"samples": 10**6, "digest": "0" * 16}] * spec.world_size
    planned = {"parts": None} if spec.on_loss == "stop" else {"parts": parts}
    epoch = dict.fromkeys(["train_s", "loss", "accuracy", "test_loss", "lr", "consensus_distance"], THIRD)
    written: list[tuple[int, str, dict[str, Any]]] = [
        (1, "start", {"pid": 2**22, "attempt": 100}),
        (1, "result", rank_fields(wait_s_by_rank=[THIRD] * 64, bytes_to=[10**9] * 64)),
        (1, "failed", {"cause": "x" * 3000, "traceback": "x" * 3000}),
        (int(2 * spec.timeout_s), "step", {**counts, **of_step}),
        (spec.epochs, "partition", {**part, "labels": labels, **skew}),
        (spec.epochs, "coverage", {"epoch": 1, "digest": "0" * 16, "uneven": "join", **shares, **planned}),
        (spec.epochs, "epoch", {"epoch": 1, "epochs": 10_000, **epoch, "target_reached": False}),
        (spec.epochs + checkpoints, "checkpoint", {**counts, "bytes": 10**10, "seconds": THIRD}),
    ]
    return sum(
        count * len(event(kind, 10_000, 1700000000.123456, **fields).to_line())
        for count, kind, fields in written
    )


def test_longest_valid_run_is_allowed() -> None:
    for fields in (
        {"epochs": 1, "timeout_s": 0.1},
        {"epochs": 100, "timeout_s": 3600},
        {"dataset": {"name": "synthetic", "classes": 500}},
        {"batch_size": 1, "checkpoint_steps": 1},
        {**CONTINUES, "nodes": 128, "epochs": 1000, "timeout_s": 0.1},
    ):
        run = spec(**fields)
        checkpoints = 3 * 1500 if run.checkpoint_steps else 0
        assert longest_events(run, checkpoints) < OutputLimits.of(run).event_bytes


def test_limits_of_a_small_run_are_small_and_grow_with_its_attempts() -> None:
    run = spec(nodes=3, transport="gloo", timeout_s=1)
    limits, again = OutputLimits.of(run), OutputLimits.of(run, requeues=2, simulated=True)
    assert (limits.ranks, limits.restarts, limits.weight_bytes) == (3, 0, 0)
    assert OutputLimits.of(spec(save_weights=True)).weight_bytes == 2048 * 2**20
    assert limits.event_bytes < 2 * 2**20
    assert limits.trace_bytes < 15 * 2**20
    assert (again.restarts, again.event_bytes) == (2, 3 * limits.event_bytes)
    assert limits.trace == TraceLimits(seconds=10, bytes=16 * 2048 * 2**20, epochs=3)
    assert again.trace == replace(limits.trace, seconds=ANY_RUN.seconds)


def test_runs_whose_traces_would_be_wrong_or_incomplete_have_none() -> None:
    untraced = [{"trace": "none"}, {"threads": 2}, {"cpus": 2.0}, {"transport": "nccl"}, CONTINUES]
    untraced += [{"strategy": each} for each in ("hogwild", "fault_injection")]
    for fields in (*untraced, {"transport": "gloo", "restarts": 1}):
        limits = OutputLimits.of(spec(**fields))
        assert untraced_reason(spec(**fields))
        assert (limits.trace_records, limits.trace_bytes) == (0, 0)


def test_traces_of_a_node_fit_into_half_of_its_file_system() -> None:
    for fields in (
        {"epochs": 10_000, "dataset": "mnist"},
        {"epochs": 1000, "strategy": "pipeline", "transport": "memory", "nodes": 4, "model": "vgg_small"},
        {"epochs": 1000, "transport": "mpi", "processes_per_node": 64},
        {"epochs": 1000, "transport": "memory", "nodes": 512},
    ):
        run = spec(**fields)
        limits = OutputLimits.of(run)
        ranks = run.world_size if run.transport == "memory" else run.processes_per_node
        assert 1 < limits.trace_records <= MAX_RECORDS
        assert ranks * limits.trace_records * RECORD.itemsize <= 2**28
        header = TraceHeader(
            run=run.key, rank=0, size=run.world_size, transport="memory", mode="full",
            groups=[[*range(run.world_size)]] * 3, started_s=1e9 / 7, count=limits.trace_records,
        )  # fmt: skip
        longest = len(header.model_dump_json()) + 1 + limits.trace_records * RECORD.itemsize
        assert longest + CHECKSUM_BYTES <= limits.trace_bytes <= TRACE_BYTES
