"""Mistakes in the row of a run: its times, what its certificate covers, what contradicts it, its flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.execution.run_result import Execution, Place, build_result, certify, flags, log_of
from orchestrator.results.records import RankResult, RunResult, RuntimeInfo
from orchestrator.runtimes import RUNTIMES
from orchestrator.runtimes.local.runtime import LocalRuntime
from tests.unit.conftest import event, rank_fields
from trainer.core.cgroup import NodeUsage
from trainer.core.events import Event, combined_digest
from trainer.spec.run_spec import RunSpec

Events = list[Event]
JS = {"js_divergence": 0.1, "js_divergence_so_far": 0.05}


def digest(rank: int, epoch: int = 1) -> str:
    return f"{rank:08x}{epoch:08x}"


def part(rank: int, epoch: int = 1, **changed: Any) -> Event:
    fields = {"samples": 5, "labels": [2, 3, *[0] * 8], "digest": digest(rank, epoch)} | JS
    return event("partition", rank, epoch=epoch, **{**fields, **changed})


def split(nodes: int, epoch: int = 1, first: int = 0, **changed: Any) -> Event:
    """first: the first rank that trains."""
    shares = {"coverage": 1.0, "overlap": 0.0, "coverage_so_far": 1.0, "overlap_so_far": 0.0}
    whole = combined_digest(digest(rank, epoch) for rank in range(first, nodes))
    return event("coverage", first, epoch=epoch, digest=whole, **{**shares, **changed})


def evaluated(rank: int, epoch: int = 1, **changed: Any) -> Event:
    fields = {"epochs": 1, "train_s": 2.0, "loss": 0.5, "accuracy": 0.8, "test_loss": 0.4}
    return event("epoch", rank, time=19, epoch=epoch, **{**fields, **changed})


def rank_events(rank: int, **result: Any) -> Events:
    """Events of a rank that trained from second 12 + rank to second 20 + rank."""
    return [
        event("start", rank, time=11, pid=1),
        event("train_start", rank, time=12 + rank, parameters=50),
        evaluated(rank),
        part(rank),
        event("train_end", rank, time=20 + rank),
        event("result", rank, time=22, **rank_fields(**result)),
        event("done", rank, time=23),
    ]


def trained(*ranks: dict[str, Any]) -> Events:
    events = [each for rank, result in enumerate(ranks) for each in rank_events(rank, **result)]
    return [*events, split(len(ranks))]


def without(*kinds: str) -> Events:
    """The events of two ranks that trained, without these."""
    return [each for each in trained({}, {}) if each.kind not in kinds]


EXECUTION = {field.name for field in fields_of(Execution)}


def row(
    events: Events,
    cores: float = 8,
    runtime: str = "local",
    runtime_info: RuntimeInfo | None = None,
    **options: Any,
) -> RunResult:
    """The row of a run, by default of two nodes. options: fields of its Execution, and of the run."""
    left = {name: options.pop(name) for name in EXECUTION & options.keys()}
    run = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2, "epochs": 1, **options}
    execution = Execution(events=events, started_at=10.0, ended_at=24.5, **left)
    place = Place(
        runtime, runtime_info or RUNTIMES.load(runtime).info, "containers", cores, {"python": "3"}
    )
    return build_result(RunSpec.model_validate(run), execution, place)


def test_a_row_has_the_times_and_values_of_its_ranks_in_any_order_of_events() -> None:
    events = trained({"train_s": 2.0, "accuracy": 0.7}, {"train_s": 3.0, "accuracy": 0.6})
    result = row([*reversed(measured(9.0, 8.0)), *events], engine_s=(1.5, 0.5))
    assert (result.status, result.cause, result.flags) == ("ok", None, [])
    assert (result.engine_start_s, result.engine_stop_s) == (1.5, 0.5)
    assert (result.wall_s, result.startup_s, result.teardown_s, result.elapsed_s) == (14.5, 2.0, 3.5, 9.0)
    assert (result.train_s, result.accuracy) == (3.0, 0.7)  # of the slowest rank, and of rank 0
    assert result.samples_per_s == pytest.approx(200 / 3)
    assert [(each.rank, each.epoch, each.accuracy) for each in result.epochs] == [(0, 1, 0.8), (1, 1, 0.8)]
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert [(link.source, link.to, link.bytes_per_s) for link in result.links] == [(0, 1, 9e6), (1, 0, 8e6)]
    assert (row(events[::-1]).ranks, row(events[::-1]).certificate) == (result.ranks, result.certificate)
    assert RunResult.model_validate_json(result.model_dump_json()) == result


def test_a_run_that_never_trained_has_no_times() -> None:
    result = row([event("failed", cause="no data", peer=False)], logs=["node-0.log", "node-1.log"])
    assert (result.status, result.cause, result.log) == ("failed", "node 0: no data", "node-0.log")
    assert {result.startup_s, result.teardown_s, result.train_s, result.accuracy} == {None}
    assert (result.samples_per_s, result.bytes_sent_per_rank, result.seconds) == (None, None, {})
    assert result.certificate is None


def failing() -> Events:
    """Rank 1 fails after its result, and its samples differ from the split."""
    return [*without("done", "partition"), event("failed", 1, time=30, cause="odd", peer=False)]


def reached(*targets: bool) -> Events:
    """Two ranks that end after the first of three epochs, and report whether the target was reached."""
    reports = [evaluated(rank, epochs=3, target_reached=each) for rank, each in enumerate(targets)]
    return without("epoch") + reports


def measured(*mbytes_per_s: float, to: int = 1) -> Events:
    """Measurements from rank 0 to rank 1, and back."""
    return [
        event("link", rank, to=abs(rank - to), latency_s=0.001, bytes_per_s=speed * 1e6)
        for rank, speed in enumerate(mbytes_per_s)
    ]


WITHOUT_PART = [each for each in trained({}, {}) if (each.kind, each.rank) != ("partition", 1)]
UNTRACED = {"untraced": {1: "it was not saved"}}
NOTHING = without("coverage", "partition", "epoch")
NOT_TRAINED = replace(RUNTIMES.load("virtual").info, trains=False)
PLAYED = {"runtime": "virtual", "runtime_info": NOT_TRAINED}
TARGET = {"epochs": 3, "target_accuracy": 0.8}


@pytest.mark.parametrize(
    ("events", "options", "cause"),
    [
        (WITHOUT_PART, {}, "the nodes trained on other samples"),
        ([*without("partition"), *(part(rank, data="a" * 16) for rank in (0, 1))], {}, None),
        ([*without("partition"), *(part(rank, data=f"{rank}" * 16) for rank in (0, 1))], {},
         "the nodes have different training data"),
        (failing(), {}, "node 1: odd"),
        (trained({}, {}) + rank_events(1)[5:], {}, "node 1's event result contradicts the run: a second"),
        ([*trained({}, {}), evaluated(1, 2)], {}, "node 1's event epoch contradicts the run: epoch"),
        (without("coverage"), {}, "the nodes certified the samples of 0 of 1 epochs"),
        (NOTHING, {"strategy": "fault_injection"}, None),
        (NOTHING, PLAYED, None),
        (NOTHING, {"runtime": "virtual"}, "the nodes certified the samples of 0 of 1 epochs"),
        (trained({}, {}), {"epochs": 2}, "the nodes certified the samples of 1 of 2 epochs"),
        (reached(True, True), TARGET, None),
        (reached(True, False), TARGET, "the nodes certified the samples of 1 of 3 epochs"),
        (reached(True, True), {"epochs": 3}, "the nodes certified the samples of 1 of 3 epochs"),
        ([each for each in reached(True, True) if each.kind != "coverage"], TARGET, "the nodes certified"),
        (trained({}, {}), {"processes_per_node": 2}, "rank 2, 3 did not start"),
        (trained({}, {}), UNTRACED, "node 1 has no usable trace: it was not saved"),
        (trained({}, {}), {**UNTRACED, "nodes": 1, "processes_per_node": 2}, "rank 1 of node 0 has no"),
        (trained({}, {}), {"save_weights": True, "weights_kept": False}, "the final weights were not"),
        (trained({}, {}), {"invalid": "usage.json: is damaged"}, "usage.json: is damaged"),
        (failing(), {"invalid": "usage.json: is damaged"}, "node 1: odd"),
        (measured(9.0, to=0) + trained({}, {}), {}, "node 0's event link contradicts the run: to"),
        (measured(9.0, to=2) + trained({}, {}), {}, "node 0's event link contradicts the run: to"),
    ],
)  # fmt: skip
def test_a_run_fails_if_its_record_is_incomplete_or_contradicts_it(
    events: Events, options: dict[str, Any], cause: str | None
) -> None:
    result = row(events, cores=1, **options)
    assert (result.status == "ok") == (result.cause is None) == bool(result.flags) == (cause is None)
    assert str(result.cause).startswith(str(cause))


def test_straggler_attribution_needs_one_clock() -> None:
    waits = [[0.0, 2.0], [1.0, 0.0]]
    events = trained(*({"wait_s_by_rank": seconds} for seconds in waits))
    for one_clock, kept, flagged in ((True, waits, []), (False, [None, None], [True])):
        result = row(events, runtime_info=replace(LocalRuntime.info, one_clock=one_clock))
        assert [rank.wait_s_by_rank for rank in result.ranks] == kept
        assert ["wait_s_by_rank" in flag for flag in result.flags] == flagged


def test_parts_that_differ_from_the_split_are_not_verified() -> None:
    plan = [{"samples": 5, "digest": digest(rank)} for rank in range(2)]
    died = event("died", 1, cause="killed by SIGKILL")
    for events in (
        [split(2), part(0), part(1, digest="f" * 16)],  # other samples
        [split(2), part(0, digest=digest(1)), part(1, digest=digest(0))],  # parts swapped between ranks
        [split(2), part(0)],  # one part is not reported
        [split(2), part(0), part(1), part(2)],  # one part too many
        [split(2), part(0), part(1), split(2, 2), part(0, 2), part(1, 1)],  # wrong only in epoch 2
        [split(2)],
        [split(1), split(1, coverage=0.5), part(0)],  # two plans
        [split(2), part(0), died],  # no plan lists what was lost
        [split(2, parts=plan), part(0)],  # what is not reported is not lost
        [split(2, parts=plan), part(0), part(1, digest="f" * 16), died],
    ):
        certificate = certify(events)
        assert certificate is not None
        assert (certificate.verified, certificate.samples_lost) == (False, 0)


UNKNOWN = dict.fromkeys(("cpu_s", "throttled_s", "sent_bytes", "received_bytes"))
KILLED = NodeUsage(name="node-1", ranks=[0], memory_peak_mb=2048, out_of_memory=1, **UNKNOWN)
ONE: Sequence[dict[str, Any]] = [{}]
TWO = [*ONE, *ONE]
SERVER = {"strategy": "parameter_server"}
LOCAL_SGD = {"strategy": {"name": "local_sgd", "aggregation": "trimmed_mean"}}
NORMS = ("batch", "sync_batch", "group")
BATCH, SYNC, GROUP = ({"model": {"name": "wide_resnet", "norm": norm}} for norm in NORMS)
EXPERTS = {"dataset": "copy", "model": {"name": "gpt", "experts": 4}}
FREE = {**EXPERTS, "model": {"name": "gpt", "experts": 4, "capacity_factor": None, "balance": 0}}
CONTEXT = {"strategy": "context_parallel", "dataset": {"name": "induction", "length": 7}}
HALF = {"batch_per": "run", "batch_size": 32}


@pytest.mark.parametrize(
    ("ranks", "fields", "expected"),
    [
        (TWO, {"cores": 1}, ["2 nodes × 1 thread shared 1 core: "]),
        (TWO, {"cores": 1, "transport": "nccl"}, []),
        (TWO, {"cpus": 0.4}, ["cpus 0.4 was not enforced"]),
        (TWO, {"runtime": "docker", "usage": [KILLED]}, ["node 0 needed more than 2,048 MiB"]),
        (TWO, {"transport": "memory"}, ["threads of one interpreter"]),
        (ONE, {"transport": "memory"}, []),
        (TWO, {"runtime": "virtual"}, ["ranks were in one process"]),
        (TWO, {"info": NOT_TRAINED}, ["nothing was trained"]),
        (TWO, {"strategy": "hogwild", "transport": "memory"}, ["its ranks share memory"]),
        ([{}, {"aggregations_without_effect": 3}, {}],
         {**LOCAL_SGD, "byzantine": {"nodes": [2], "attack": "label_flip"}}, ["node 2: label_flip", ": 3"]),
        ([{}, {"weights_digest": "f" * 16}], {}, ["different weights"]),
        ([{"samples": 12_345}, {"samples": 100}], {}, ["between 100 and 12,345 samples per node"]),
        ([{"samples": 103}, {"samples": 100}], {"epochs": 3}, []),
        ([{"samples": 0}, {"samples": 100}, {"samples": 101}], SERVER, []),
        ([{"samples": 0}, {"samples": 100}, {"samples": 90}], SERVER, ["unequal work: between 90 and 100"]),
        (TWO, BATCH, []),
        (TWO, {**BATCH, "strategy": "pipeline"}, ["over micro-batches"]),
        (TWO, {**BATCH, "accumulate": 2}, ["over micro-batches"]),
        (TWO, {**BATCH, **HALF}, ["over 16 samples, not the batch of 32"]),
        (TWO, {**SYNC, **HALF}, []),
        (TWO, {**GROUP, **HALF, "strategy": "pipeline"}, []),
        (TWO, {**EXPERTS, **HALF}, ["over 16 samples"]),
        (TWO, {**EXPERTS, **CONTEXT}, ["over some tokens"]),
        (TWO, {**FREE, **HALF}, []),
    ],
)  # fmt: skip
def test_what_limits_a_comparison_is_flagged(
    ranks: Sequence[dict[str, Any]], fields: dict[str, Any], expected: list[str]
) -> None:
    run = {"strategy": "all_reduce", "transport": "gloo", "nodes": len(ranks), **fields}
    info = run.pop("info", RUNTIMES.load(run.pop("runtime", "local")).info)
    cores, usage = run.pop("cores", 8), run.pop("usage", ())
    results = [RankResult(rank=rank, **rank_fields(**result)) for rank, result in enumerate(ranks)]
    found = flags(RunSpec.model_validate(run), results, info, cores, usage)
    assert [text in flag for text, flag in zip(expected, found, strict=True)] == [True] * len(expected)


def uneven(how: str, samples: int) -> Events:
    """Two ranks of a dataset of 10 samples that trained on so many."""
    events = without("partition", "coverage")
    return [*events, part(0, samples=samples - 5), part(1), split(2, uneven=how)]


TEN = {"dataset": {"name": "synthetic", "samples": 10}}
LINK = {"link": {"bandwidth_mbit": 80, "latency_ms": 1}}
HUNG = [*without("done"), event("done", 0), event("done", 1, forced=True)]


def test_what_happened_in_a_run_is_flagged() -> None:
    for events, options, expected in (
        (uneven("join", 9), TEN, []),
        (uneven("drop", 8), TEN, ["uneven=drop: 2 of 10 samples"]),
        (uneven("drop", 10), TEN, []),
        (uneven("pad", 12), TEN, ["uneven=pad: 2 samples"]),
        (uneven("pad", 10), TEN, []),
        (HUNG, {}, ["node 1 hung after its result"]),
        (trained({}, {}), {"warm": True, "nodes_replaced": "it died"}, ["warm nodes were replaced, beca"]),
        (trained({}, {}), {"nodes_replaced": "it died"}, ["nodes were replaced, because it died"]),
        (measured(9e3, 9e3) + trained({}, {}), LINK, ["link requested, not enforced"]),
        (measured(9.5, 9.0) + trained({}, {}), {**LINK, "runtime": "docker"}, []),
        (measured(9.5, 2.0) + trained({}, {}), {**LINK, "runtime": "docker"}, ["from node 1 to node 0, "]),
    ):  # fmt: skip
        result = row(events, **options)
        assert result.status == "ok"
        assert [flag[: len(start)] for flag, start in zip(result.flags, expected, strict=True)] == expected


CONTINUES: dict[str, Any] = {"strategy": "local_sgd", "nodes": 3, "epochs": 2, "on_loss": "continue"}


def planned(rank: int, epoch: int) -> Event:
    """The `coverage` event of one rank of such a run."""
    parts = [{"samples": 5 + each, "digest": digest(each, epoch)} for each in range(3)]
    return replace(split(3, epoch, parts=parts), rank=rank)


def rank_until(rank: int, epochs: int) -> Events:
    """Events of a rank that was lost after this many epochs; of 2: it has finished."""
    start, train_start, _, _, *last = rank_events(rank)
    reports = [
        each
        for epoch in range(1, epochs + 1)
        for each in (part(rank, epoch), planned(rank, epoch), evaluated(rank, epoch, epochs=2))
    ]
    died = event("died", rank, time=19.5, cause="killed by SIGKILL")
    return [start, train_start, *reports, *(last if epochs == 2 else [died])]


def ranks_until(*epochs: int) -> Events:
    return [each for rank, number in enumerate(epochs) for each in rank_until(rank, number)]


@pytest.mark.parametrize(
    ("epochs", "samples_lost"), [((2, 2, 2), 0), ((2, 1, 2), 6), ((2, 0, 2), 12), ((1, 2, 0), 5 + 7 + 7)]
)
def test_samples_of_lost_ranks_are_counted(epochs: tuple[int, ...], samples_lost: int) -> None:
    """Also of node 0, whose place in the row others take."""
    result = row(ranks_until(*epochs), **CONTINUES)
    assert (result.status, result.cause) == ("ok", None)
    assert result.certificate is not None
    assert (result.certificate.verified, result.certificate.samples_lost) == (True, samples_lost)
    assert [each.epoch for each in result.certificate.splits] == [1, 2]
    assert [(each.epoch, each.rank) for each in result.certificate.parts] == [
        (epoch, rank) for epoch in (1, 2) for rank in range(3) if epochs[rank] >= epoch
    ]
    lost = {f"node {rank}" for rank, number in enumerate(epochs) if number < 2}
    assert {flag.split(" was ")[0] for flag in result.flags if "continued without" in flag} == lost
    assert [rank.rank for rank in result.ranks] == [r for r, number in enumerate(epochs) if number == 2]
    assert any("straggler attribution" in flag for flag in result.flags) == bool(lost)
    again = event("start", 1, time=20, pid=2, incarnation=1)
    returned = row([*ranks_until(*epochs), again], **CONTINUES)
    assert "node 1 was started again" in returned.flags


def test_the_log_of_a_failed_run_is_that_of_the_first_process_in_its_cause() -> None:
    for cause, logs, expected in (
        ("node 1 (process 5) was killed by SIGKILL", ["node-0.log", "node-1.log"], "node-1.log"),
        ("node 12: ValueError", ["node-1.log", "node-12.log"], "node-12.log"),
        ("node 2: it lost node 0", ["node-0.log", "node-2.log"], "node-2.log"),
        ("node 1: it broke", ["nodes.log"], "nodes.log"),
        ("mpirun was killed", ["node-0.log", "node-1.log"], None),
        ("node 1: it broke", [], None),
    ):
        assert log_of(cause, logs) == expected
