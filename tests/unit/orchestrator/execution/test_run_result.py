"""The result row of a run, built from its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.execution.run_result import Execution, Place, build_result, certify, log_of
from orchestrator.execution.run_result import flags as flags_of
from orchestrator.results.records import RunResult, RuntimeInfo
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.unit.conftest import event, rank_fields
from trainer.core.cgroup import NodeUsage
from trainer.core.events import Event, combined_digest
from trainer.core.result import TrainResult
from trainer.spec.run_spec import RunSpec

JS = {"js_divergence": 0.1, "js_divergence_so_far": 0.05}


def digest(rank: int, epoch: int = 1) -> str:
    return f"{rank:08x}{epoch:08x}"


def part(rank: int, epoch: int = 1, **changed: Any) -> Event:
    fields = {"samples": 5, "labels": [2, 3, *[0] * 8], "digest": digest(rank, epoch)} | JS
    return event("partition", rank, epoch=epoch, **{**fields, **changed})


def split(nodes: int, epoch: int = 1, first: int = 0) -> Event:
    """first: the first rank that trains."""
    shares = {"coverage": 1.0, "overlap": 0.0, "coverage_so_far": 1.0, "overlap_so_far": 0.0}
    return event(
        "coverage",
        first,
        epoch=epoch,
        digest=combined_digest(digest(r, epoch) for r in range(first, nodes)),
        **shares,
    )


def rank_events(rank: int, **result: Any) -> list[Event]:
    """Events of a rank that trained from second 12 + rank to second 20 + rank."""
    return [
        event("start", rank, time=11, pid=1),
        event("train_start", rank, time=12 + rank, parameters=50),
        event(
            "epoch", rank, time=19, epoch=1, epochs=1, train_s=2.0, loss=0.5, accuracy=0.8, test_loss=0.4
        ),
        part(rank),
        event("train_end", rank, time=20 + rank),
        event("result", rank, time=22, **rank_fields(**result)),
        event("done", rank, time=23),
    ]


def trained(*ranks: dict[str, Any]) -> list[Event]:
    events = [e for rank, result in enumerate(ranks) for e in rank_events(rank, **result)]
    return [*events, split(len(ranks))]


def row(
    events: list[Event],
    cores: float = 8,
    runtime: str = "local",
    runtime_info: RuntimeInfo | None = None,
    usage: Sequence[NodeUsage] = (),
    untraced: dict[int, str] | None = None,
    warm: bool = False,
    nodes_replaced: str | None = None,
    requeues: Sequence[str] = (),
    **fields: Any,
) -> RunResult:
    run = RunSpec.model_validate(
        {"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 1, **fields}
    )
    execution = Execution(
        events=events,
        started_at=10.0,
        ended_at=24.5,
        usage=usage,
        untraced=untraced or {},
        warm=warm,
        nodes_replaced=nodes_replaced,
        requeues=requeues,
    )
    info = runtime_info or RUNTIMES.load(runtime).info
    return build_result(run, execution, Place(runtime, info, "containers", cores, {"python": "3"}))


def test_row_of_a_successful_run() -> None:
    result = row(trained({"train_s": 2.0, "accuracy": 0.7}, {"train_s": 3.0, "accuracy": 0.6}))
    assert (result.status, result.cause, result.flags) == ("ok", None, [])
    assert (result.wall_s, result.startup_s, result.teardown_s) == (14.5, 2.0, 3.5)
    assert (result.elapsed_s, result.faults, result.repeated_steps) == (9.0, [], 0)
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert [(point.rank, point.epoch, point.accuracy) for point in result.epochs] == [
        (0, 1, 0.8),
        (1, 1, 0.8),
    ]
    assert result.train_s == 3.0  # of the slowest rank
    assert result.accuracy == 0.7  # of rank 0
    assert result.samples_per_s == pytest.approx(200 / 3)
    assert result.run.key == result.key
    assert result.run.nodes == 2
    assert RunResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize(("processes", "name"), [(1, "node 1"), (2, "rank 1 of node 0")])
def test_a_run_without_a_trace_has_failed_and_its_node_is_named(processes: int, name: str) -> None:
    untraced = {1: "it was not saved"}
    result = row(trained({}, {}), untraced=untraced, nodes=2 // processes, processes_per_node=processes)
    assert result.status == "failed"
    assert str(result.cause).startswith(name)
    assert "it was not saved" in str(result.cause)


def test_a_run_that_trains_nothing_is_ok_without_a_certificate_and_is_flagged() -> None:
    played = [each for each in trained({}, {}) if each.kind not in ("partition", "coverage", "epoch")]
    runtime = replace(RUNTIMES.load("virtual").info, trains=False)
    result = row(played, runtime="virtual", runtime_info=runtime)
    assert (result.status, result.certificate) == ("ok", None)
    assert ["nothing was trained" in flag for flag in result.flags] == [True]
    assert row(played, runtime="virtual").status == "failed"


def test_ranks_are_sorted() -> None:
    events = trained({"steps": 7}, {"steps": 8})
    assert row(events[::-1]).ranks == row(events).ranks
    assert row(events[::-1]).certificate == row(events).certificate


def test_a_run_that_never_trained_has_no_times() -> None:
    result = row([event("failed", cause="no data", peer=False)])
    assert (result.status, result.cause) == ("failed", "node 0: no data")
    assert (result.startup_s, result.teardown_s, result.train_s, result.accuracy) == (None,) * 4
    assert (result.samples_per_s, result.bytes_sent_per_rank, result.seconds) == (None, None, {})
    assert result.certificate is None


def test_every_field_of_a_result_event_is_in_the_row() -> None:
    sent = TrainResult(
        steps=1, samples=2, train_s=3.0, work_cpu_s=4.0, seconds={"data": 5.0}, bytes_sent=6.0
    )
    run = row([event("result", 0, **sent.model_dump())])
    assert run.ranks[0].model_dump(exclude={"rank"}) == sent.model_dump()


@pytest.mark.parametrize("one_clock", [True, False])
def test_straggler_attribution_needs_one_clock(one_clock: bool) -> None:
    runtime = replace(LocalRuntime.info, one_clock=one_clock)
    waits = [[0.0, 2.0], [1.0, 0.0]]
    result = row(trained(*({"wait_s_by_rank": seconds} for seconds in waits)), runtime_info=runtime)
    assert result.runtime_info == runtime
    assert [rank.wait_s_by_rank for rank in result.ranks] == (waits if one_clock else [None, None])
    assert ["wait_s_by_rank" in flag for flag in result.flags] == ([] if one_clock else [True])


# The certificate


def test_certificate_is_sorted_by_epoch_and_rank() -> None:
    events = [part(1, 2), split(2, 2), part(0, 2), part(1), part(0), split(2)]
    certificate = certify(events)
    assert certificate is not None
    assert certificate.verified
    assert [(p.epoch, p.rank) for p in certificate.parts] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [s.epoch for s in certificate.splits] == [1, 2]
    assert [p.rank for p in certificate.first_epoch()] == [0, 1]


@pytest.mark.parametrize(
    "events",
    [
        [split(2), part(0), part(1, digest="f" * 16)],  # other samples
        [split(2), part(0, digest=digest(1)), part(1, digest=digest(0))],  # parts swapped between ranks
        [split(2), part(0)],  # one part is not reported
        [split(2), part(0), part(1), part(2)],  # one part too many
        [split(2), part(0), part(1), split(2, 2), part(0, 2), part(1, 1)],  # wrong only in epoch 2
        [split(2)],
    ],
)
def test_parts_that_differ_from_the_split_are_not_verified(events: list[Event]) -> None:
    certificate = certify(events)
    assert certificate is not None
    assert not certificate.verified


def test_unverified_samples_fail_a_run_that_would_be_ok() -> None:
    events = [e for e in trained({}, {}) if not (e.kind == "partition" and e.rank == 1)]
    result = row(events)
    assert result.status == "failed"
    assert "other samples" in str(result.cause)
    assert result.flags == []


def test_nodes_with_different_data_fail_a_run_that_would_be_ok() -> None:
    others = [e for e in trained({}, {}) if e.kind != "partition"]
    assert row([*others, *(part(rank, data="a" * 16) for rank in (0, 1))]).status == "ok"
    result = row([*others, *(part(rank, data=str(rank) * 16) for rank in (0, 1))])
    assert result.status == "failed"
    assert "different training data" in str(result.cause)


def failing() -> list[Event]:
    """Rank 1 fails after its result, and its samples differ from the split."""
    events = [e for e in trained({}, {}) if e.kind not in ("done", "partition")]
    return [*events, event("failed", 1, time=30, cause="odd", peer=False)]


def test_failed_run_with_unverified_samples_keeps_its_cause() -> None:
    assert row(failing()).cause == "node 1: odd"


def test_no_training_no_certificate() -> None:
    events = [e for e in trained({}, {}) if e.kind not in ("partition", "coverage", "epoch")]
    result = row(events, strategy="fault_injection")
    assert (result.status, result.certificate) == ("ok", None)


@pytest.mark.parametrize("lost", [("coverage",), ("coverage", "partition")])
def test_training_without_certificate_events_fails(lost: tuple[str, ...]) -> None:
    assert row([e for e in trained({}, {}) if e.kind not in lost]).status == "failed"


def test_training_with_a_missing_epoch_fails() -> None:
    assert row(trained({}, {}), epochs=2).status == "failed"


def stopped(*targets_reached: bool) -> list[Event]:
    """One epoch of as many ranks, each of which reports whether the target was reached."""
    events = [e for e in trained(*({} for _ in targets_reached)) if e.kind != "epoch"]
    reports = {"epoch": 1, "epochs": 3, "train_s": 2.0, "loss": 0.5, "accuracy": 0.8, "test_loss": 0.4}
    return events + [
        event("epoch", rank, **reports, target_reached=reached)
        for rank, reached in enumerate(targets_reached)
    ]


def test_training_that_stops_at_its_target_is_ok() -> None:
    result = row(stopped(True, True), epochs=3, target_accuracy=0.8)
    assert (result.status, result.cause) == ("ok", None)
    assert [point.target_reached for point in result.epochs] == [True, True]


@pytest.mark.parametrize(
    ("targets_reached", "target"), [((False, False), 0.8), ((True, False), 0.8), ((True, True), None)]
)
def test_training_that_stops_before_its_target_fails(
    targets_reached: tuple[bool, bool], target: float | None
) -> None:
    result = row(stopped(*targets_reached), epochs=3, target_accuracy=target)
    assert result.status == "failed"
    assert result.cause == "the nodes certified the samples of 1 of 3 epochs"


def test_certificate_covers_epochs_up_to_the_target() -> None:
    events = [e for e in stopped(True, True) if e.kind != "coverage"]
    assert row(events, epochs=3, target_accuracy=0.8).status == "failed"


# Flags


@pytest.mark.parametrize(
    ("uneven", "samples", "expected"),
    [
        ("join", 9, []),
        ("drop", 8, ["uneven=drop: 2 "]),
        ("drop", 10, []),
        ("pad", 12, ["uneven=pad: 2 "]),
        ("pad", 10, []),
    ],
)
def test_samples_left_out_or_repeated_to_even_out_steps_are_flagged(
    uneven: str, samples: int, expected: list[str]
) -> None:
    events = [e for e in trained({}, {}) if e.kind not in ("partition", "coverage")]
    events += [part(0, samples=samples - 5), part(1)]
    events += [event("coverage", **{**split(2).fields, "uneven": uneven})]
    data = {"name": "synthetic", "samples": 10}
    result = row(events, dataset=data)
    assert result.status == "ok"
    assert [flag[: len(prefix)] for flag, prefix in zip(result.flags, expected, strict=True)] == expected


def flags(*ranks: dict[str, Any], cores: float = 8, **fields: Any) -> list[str]:
    result = row(trained(*ranks), cores, **{"nodes": len(ranks), **fields})
    assert result.status == "ok"
    return result.flags


def test_no_flags_for_equal_work_and_enough_cores() -> None:
    assert flags({"samples": 101}, {"samples": 100}) == []
    assert flags({}, strategy="serial", transport="memory") == []
    assert flags({}, {}, cores=2) == []


def test_more_threads_than_cores() -> None:
    (flag,) = flags({}, {}, cores=1)
    assert flag == (
        "2 nodes × 1 thread shared 1 core: wall-clock speedup cannot exceed 1; compare cluster times"
    )
    (flag,) = flags({}, {}, cores=3, threads=2)
    assert flag.startswith("2 nodes × 2 threads shared 3 cores: wall-clock speedup cannot exceed 3;")


def test_more_ranks_than_cores() -> None:
    assert flags({}, {}, {}, {}, nodes=2, processes_per_node=2, cores=4) == []
    (flag,) = flags({}, {}, {}, {}, nodes=2, processes_per_node=2, cores=2)
    assert flag.startswith("2 nodes × 2 ranks × 1 thread shared 2 cores: ")


def test_every_rank_of_every_node_must_succeed() -> None:
    result = row(trained({}, {}), nodes=2, processes_per_node=2)
    assert (result.status, result.cause) == (
        "failed",
        "rank 2, 3 did not start (exit code 0); see its log",
    )


def test_container_quotas_that_exceed_the_cores() -> None:
    (flag,) = flags({}, {}, {}, {}, runtime="docker", cores=2)
    assert flag == (
        "4 nodes × 1 cpu shared 2 cores: wall-clock speedup cannot exceed 2; "
        "compare cluster times, or give each node fewer cpus (0.5)"
    )


def test_container_quotas_within_the_cores() -> None:
    assert flags({}, {}, {}, {}, runtime="docker", cores=2, cpus=0.5) == []
    assert flags({}, runtime="docker", cores=1, memory_mb=512, shm_mb=64, pids=99) == []


def test_local_processes_have_no_limits() -> None:
    (flag,) = flags({}, {}, cpus=0.4)
    assert "cpus 0.4 was not enforced" in flag
    (flag,) = flags({}, {}, cpus=2, threads=1, memory_mb=512, pids=64, shm_mb=64)
    assert "cpus 2, memory_mb 512, pids 64, shm_mb 64 were not enforced" in flag


def test_gpu_ranks_have_no_core_flag() -> None:
    assert flags({}, {}, cores=1, transport="nccl") == []


def test_threads_of_one_interpreter() -> None:
    (flag,) = flags({}, {}, transport="memory")
    assert "threads of one interpreter" in flag
    assert flags({}, transport="memory") == []


@pytest.mark.parametrize(
    ("fields", "over"),
    [
        ({}, None),
        ({"batch_per": "run", "batch_size": 32}, "16 samples"),
        ({"strategy": "context_parallel", "dataset": {"name": "induction", "length": 7}}, "some tokens"),
    ],
    ids=str,
)
def test_routers_that_see_less_than_a_batch(fields: dict[str, Any], over: str | None) -> None:
    found = []
    for mixture in ({}, {"capacity_factor": None, "balance": 0}):
        run = {"strategy": "all_reduce", "nodes": 2, "dataset": "copy", **fields}
        spec = RunSpec.model_validate({**run, "model": {"name": "gpt", "experts": 4, **mixture}})
        found.append([each for each in flags_of(spec, [], LocalRuntime.info, 8) if "experts" in each])
    limited, free = found
    assert free == []
    assert len(limited) == (over is not None)
    assert not over or over in limited[0]


def test_byzantine_nodes_and_aggregations_without_effect() -> None:
    strategy = {"name": "local_sgd", "aggregation": "trimmed_mean"}
    byzantine = {"nodes": [2], "attack": "label_flip"}
    found = flags({}, {"aggregations_without_effect": 3}, {}, strategy=strategy, byzantine=byzantine)
    assert found[0] == "Byzantine node 2: label_flip"
    assert found[1].endswith(": 3")
    assert flags({}, {}, {}, strategy=strategy) == []


def test_caveat_of_the_strategy() -> None:
    run = RunSpec.model_validate({"strategy": "hogwild"})
    assert flags({}, {}, strategy="hogwild", transport="memory") == [run.strategy.caveat]


@pytest.mark.parametrize("warm", [True, False])
def test_nodes_that_were_replaced(warm: bool) -> None:
    result = row(trained({}, {}), warm=warm, nodes_replaced="job 7 was preempted")
    (flag,) = (each for each in result.flags if "job 7 was preempted" in each)
    assert ("warm nodes" in flag) is warm


def test_different_weights() -> None:
    (flag,) = flags({}, {"weights_digest": "f" * 16})
    assert "different weights" in flag


@pytest.mark.parametrize(
    ("norm", "fields", "over"),
    [
        ("batch", {"strategy": "pipeline"}, "micro-batches"),
        ("batch", {"strategy": {"name": "pipeline", "micro_batches": 1}}, None),
        ("batch", {"accumulate": 2}, "micro-batches"),
        ("batch", {"batch_per": "run"}, "16 samples, not the batch of 32"),
        ("batch", {}, None),
        ("sync_batch", {"batch_per": "run"}, None),
        ("group", {"strategy": "pipeline", "batch_per": "run"}, None),
    ],
)
def test_batch_norm_over_other_samples_than_serial_is_flagged(
    norm: str, fields: dict[str, Any], over: str | None
) -> None:
    found = flags({}, {}, model={"name": "wide_resnet", "norm": norm}, **fields)
    assert [over in flag for flag in found if over] == ([True] if over else [])
    assert bool(found) == bool(over)


def test_unequal_work() -> None:
    (flag,) = flags({"samples": 12_345}, {"samples": 100})
    assert "unequal work: between 100 and 12,345 samples" in flag


def test_server_without_samples_is_not_unequal_work() -> None:
    def with_server(*samples: int) -> RunResult:
        events = trained(*({"samples": number} for number in samples))
        mine = [e for e in events if e.kind != "coverage" and (e.kind, e.rank) != ("partition", 0)]
        return row([*mine, split(len(samples), first=1)], strategy="parameter_server", nodes=len(samples))

    result = with_server(0, 100, 101)
    assert (result.status, result.flags) == ("ok", [])
    assert result.samples_per_s == pytest.approx(201 / 2)
    assert "unequal work: between 90 and 100 samples" in with_server(0, 100, 90).flags[0]


def test_a_failed_run_has_no_flags() -> None:
    assert row(failing(), cores=1).flags == []


def test_out_of_memory_kill_in_a_successful_run_is_flagged() -> None:
    usage = NodeUsage(
        name="node-1",
        ranks=[0],
        cpu_s=1.0,
        throttled_s=0.0,
        memory_peak_mb=2048.0,
        sent_bytes=1,
        received_bytes=1,
        out_of_memory=1,
    )
    (flag,) = row(trained({}, {}), runtime="docker", usage=[usage]).flags
    assert flag.startswith("node 0 needed more than 2,048 MiB of memory")
    assert row(failing(), runtime="docker", usage=[usage]).flags == []


# Runs that continue without a lost rank

CONTINUES: dict[str, Any] = {"strategy": "local_sgd", "nodes": 3, "epochs": 2, "on_loss": "continue"}


def planned(rank: int, epoch: int) -> Event:
    """The `coverage` event of one rank of such a run."""
    whole = split(3, epoch)
    parts = [{"samples": 5 + each, "digest": digest(each, epoch)} for each in range(3)]
    return replace(whole, rank=rank, fields={**whole.fields, "parts": parts})


def rank_until(rank: int, epochs: int) -> list[Event]:
    """Events of a rank that was lost after this many epochs; of 2: it has finished."""
    all_events = rank_events(rank)
    first = [each for each in all_events if each.kind in ("start", "train_start")]
    last = [each for each in all_events if each.kind in ("train_end", "result", "done")]
    reports = [
        each
        for epoch in range(1, epochs + 1)
        for each in (
            part(rank, epoch),
            planned(rank, epoch),
            event(
                "epoch", rank, 19, epoch=epoch, epochs=2, train_s=2.0, loss=0.5, accuracy=0.8, test_loss=1
            ),
        )
    ]
    died = event("died", rank, time=19.5, cause="killed by SIGKILL")
    return [*first, *reports, *(last if epochs == 2 else [died])]


def continued(*epochs: int) -> RunResult:
    """The row of a run whose ranks have trained for so many epochs."""
    return row([e for rank, number in enumerate(epochs) for e in rank_until(rank, number)], **CONTINUES)


@pytest.mark.parametrize(
    ("epochs", "samples_lost"),
    [((2, 2, 2), 0), ((2, 1, 2), 6), ((2, 0, 2), 12), ((1, 2, 0), 5 + 7 + 7)],
)
def test_samples_of_lost_ranks(epochs: tuple[int, ...], samples_lost: int) -> None:
    """Also of node 0, whose place in the row others take."""
    result = continued(*epochs)
    assert (result.status, result.cause) == ("ok", None)
    assert result.certificate is not None
    assert result.certificate.verified
    assert result.certificate.samples_lost == samples_lost
    assert [each.epoch for each in result.certificate.splits] == [1, 2]
    assert len(result.certificate.parts) == sum(epochs)
    lost = {f"node {rank}" for rank, number in enumerate(epochs) if number < 2}
    assert {flag.split(" was ")[0] for flag in result.flags if "continued without" in flag} == lost
    assert [rank.rank for rank in result.ranks] == [r for r, number in enumerate(epochs) if number == 2]
    assert any("straggler attribution" in flag for flag in result.flags) == bool(lost)


def test_rank_that_returns_is_flagged() -> None:
    events = [e for rank, number in enumerate((2, 1, 2)) for e in rank_until(rank, number)]
    again = event("start", 1, time=20, pid=2, incarnation=1)
    assert any("node 1 was started again" in flag for flag in row([*events, again], **CONTINUES).flags)


@pytest.mark.parametrize(
    "change",
    [
        # Of a rank that is left, a part that was not reported is not lost.
        lambda events: [
            e for e in events if (e.kind, e.rank, e.fields.get("epoch")) != ("partition", 0, 2)
        ],
        # The lost rank has trained on other samples.
        lambda events: [
            part(1, 1, digest="f" * 16) if (e.kind, e.rank) == ("partition", 1) else e for e in events
        ],
        # The ranks that are left disagree about the plan.
        lambda events: [
            replace(e, fields={**e.fields, "coverage": 0.5}) if (e.kind, e.rank) == ("coverage", 2) else e
            for e in events
        ],
    ],
    ids=["a part is missing", "other samples", "another plan"],
)
def test_certificate_of_a_continuing_run_is_not_verified(change: Any) -> None:
    events = [e for rank, number in enumerate((2, 1, 2)) for e in rank_until(rank, number)]
    result = row(change(events), **CONTINUES)
    assert result.certificate is not None
    assert not result.certificate.verified
    assert result.status == "failed"


def test_run_without_a_plan_has_no_lost_samples() -> None:
    """Its parts are not listed: nothing can stand in for a part that was not reported."""
    events = [
        replace(e, fields={**e.fields, "parts": None}) if e.kind == "coverage" else e
        for e in rank_until(0, 2)
    ]
    certificate = certify([*events, *rank_until(1, 0)])
    assert certificate is not None
    assert (certificate.samples_lost, certificate.verified) == (0, False)


@pytest.mark.parametrize(
    ("cause", "logs", "expected"),
    [
        ("node 1 (process 5) was killed by SIGKILL", ["node-0.log", "node-1.log"], "node-1.log"),
        ("node 12: ValueError", ["node-1.log", "node-12.log"], "node-12.log"),
        ("node 2: it lost node 0", ["node-0.log", "node-2.log"], "node-2.log"),
        ("node 1: it broke", ["nodes.log"], "nodes.log"),
        ("mpirun was killed", ["node-0.log", "node-1.log"], None),
        ("node 1: it broke", [], None),
    ],
)
def test_log_of_a_failed_run(cause: str, logs: list[str], expected: str | None) -> None:
    assert log_of(cause, logs) == expected


LINK = {"bandwidth_mbit": 80, "latency_ms": 1}


def measured(*mbytes_per_s: float) -> list[Event]:
    """Measurements from rank 0 to rank 1, and back."""
    return [
        event("link", rank, to=1 - rank, latency_s=0.001, bytes_per_s=speed * 1e6)
        for rank, speed in enumerate(mbytes_per_s)
    ]


def test_measured_links_are_in_the_row() -> None:
    result = row([*reversed(measured(9.0, 8.0)), *trained({}, {})])
    assert [(link.source, link.to, link.bytes_per_s) for link in result.links] == [(0, 1, 9e6), (1, 0, 8e6)]
    assert (row(trained({}, {})).links, result.flags) == ([], [])


def test_links_that_a_runtime_does_not_enforce_are_flagged() -> None:
    result = row([*measured(9000.0, 9000.0), *trained({}, {})], link=LINK)
    (flag,) = result.flags
    assert flag.startswith("link requested, not enforced")
    assert "cluster time" in flag
    assert flags({}, strategy="serial", transport="memory", link=LINK) == []


@pytest.mark.parametrize(("mbytes_per_s", "flagged"), [((9.5, 9.0), False), ((9.5, 2.0), True)])
def test_links_slower_than_requested_are_flagged(mbytes_per_s: tuple[float, ...], flagged: bool) -> None:
    events = [*measured(*mbytes_per_s), *trained({}, {})]
    found = row(events, link=LINK, runtime="docker").flags
    assert [flag.startswith("from node 1 to node 0") for flag in found] == [True] * flagged


@pytest.mark.parametrize("to", [0, 2])
def test_a_measured_link_to_no_other_rank_fails_the_run(to: int) -> None:
    odd = event("link", 0, to=to, latency_s=0.1, bytes_per_s=1.0)
    result = row([odd, *trained({}, {})])
    assert result.status == "failed"
    assert "link" in str(result.cause)
