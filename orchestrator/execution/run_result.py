"""Build the result of a run from its events: times, certificate and flags. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.execution.faults import (
    contradicts,
    fault_flags,
    fault_of_loss,
    injected_faults,
    repeated_steps,
)
from orchestrator.execution.outcome import cause_of_loss, outcome
from orchestrator.results.limits import limit_flags, link_flags, memory_flags, node_speed_flags
from orchestrator.results.records import (
    Certificate,
    CertifiedPart,
    RankResult,
    RunResult,
    RuntimeInfo,
    epochs_of,
    links_of,
    ranks_of,
)
from orchestrator.runtimes.launch_plan import rank_name, rank_noun
from trainer.core.cgroup import NodeUsage
from trainer.core.event_schema import CoverageRecord
from trainer.core.events import Event, combined_digest
from trainer.core.processes import Suspended
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts.attempts import Attempts


@dataclass(frozen=True)
class Place:
    """Where the runs of a sweep are executed.

    Attributes:
        runtime: the name of the runtime. info: what it can do.
        node_kind: the kind of node in a few words.
        cores: the cores that all nodes share.
        environment: the software on the nodes and of the orchestrator.
    """

    runtime: str
    info: RuntimeInfo
    node_kind: str
    cores: float
    environment: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What a run has left, once it was stopped and collected.

    Attributes:
        events: the events of all ranks, in order of time.
        exits: exit codes of its processes by name, see `outcome`.
        started_at, ended_at: seconds since 1970.
        timed_out_s: the time limit, if the run exceeded it.
        runtime_error: an error that the runtime itself found.
        suspended: see `outcome`.
        usage: the usage of the containers, if nodes are containers.
        invalid: why a record of the run cannot be used.
        weights_kept: whether it has saved its final weights.
        untraced: why ranks that should have written a trace have none, by rank.
        launcher_log: what mpirun has written, if it starts the ranks.
        logs: the names of the log files that are not empty.
        warm: whether warm nodes forked the ranks. nodes_replaced: why these nodes were replaced.
        requeues: why a batch system started the run again, one for each time.
        engine_s: seconds in which an engine started and stopped containers.
        order: position among the runs that the sweep command executed, from 0.
    """

    events: Sequence[Event] = ()
    exits: Mapping[str, int] = field(default_factory=dict)
    started_at: float
    ended_at: float
    timed_out_s: float | None = None
    runtime_error: str | None = None
    suspended: Suspended | None = None
    usage: Sequence[NodeUsage] = ()
    invalid: str | None = None
    weights_kept: bool = True
    untraced: Mapping[int, str] = field(default_factory=dict)
    launcher_log: str = ""
    logs: Sequence[str] = ()
    warm: bool = False
    nodes_replaced: str | None = None
    requeues: Sequence[str] = ()
    engine_s: tuple[float, float] = (0.0, 0.0)
    order: int | None = None


def build_result(spec: RunSpec, execution: Execution, place: Place) -> RunResult:
    """Build the result of a run that has been stopped and collected."""
    requeues, usage, started_at = execution.requeues, execution.usage, execution.started_at
    attempts = Attempts(spec.world_size, execution.events)
    events: Sequence[Event] = attempts.events_of(attempts.effective)
    status, cause = outcome(
        attempts,
        execution.exits,
        execution.timed_out_s,
        spec.processes_per_node,
        execution.runtime_error,
        suspended=execution.suspended,
        restarts=spec.restarts,
        continues=spec.on_loss == "continue",
        launcher_log=execution.launcher_log,
    )
    if cause and requeues:
        cause += f", after {len(requeues)} requeue{'s' if len(requeues) > 1 else ''}"
    injected = injected_faults(spec, attempts)
    cause = fault_of_loss(spec, cause, injected)
    if invalid := execution.invalid or _inconsistency(spec, events):
        cause = invalid if status == "ok" else cause
        status = "failed" if status == "ok" else status
        events = []  # a report computes with what is left
    ranks, unattributed = comparable_waits(ranks_of(events), place.info)
    certificate = certify(events, spec.strategy.servers)
    if status == "ok" and spec.strategy.trains:
        cause = _uncertified(certificate, _last_epoch(spec, events)) if place.info.trains else None
        if spec.save_weights and not execution.weights_kept:
            cause = cause or "the final weights were not saved"
        for rank, reason in sorted(execution.untraced.items())[:1]:
            cause = cause or f"{rank_name(rank, spec.processes_per_node)} has no usable trace: {reason}"
        status = "failed" if cause else "ok"
    first = min((e.time for e in events if e.kind == "train_start"), default=None)
    last = max((e.time for e in events if e.kind == "train_end"), default=None)
    overall = "start-up time, wall time and what the nodes used" if usage else "start-up and wall time"
    return RunResult(
        key=spec.key,
        status=status,
        cause=cause,
        log=log_of(cause, execution.logs) if cause else None,
        spec=spec.model_dump(mode="json"),
        topology=spec.topology,
        runtime=place.runtime,
        runtime_info=place.info,
        node_kind=place.node_kind,
        started_at=started_at,
        wall_s=execution.ended_at - started_at,
        restarted=len(requeues) or attempts.effective,
        faults=injected,
        repeated_steps=repeated_steps(attempts),
        elapsed_s=_elapsed_s(attempts, last),
        order=execution.order,
        warm=execution.warm,
        nodes_replaced=execution.nodes_replaced,
        startup_s=None if first is None else first - started_at,
        teardown_s=None if last is None else execution.ended_at - last,
        engine_start_s=execution.engine_s[0],
        engine_stop_s=execution.engine_s[1],
        cores=place.cores,
        flags=[
            *flags(spec, ranks, place.info, place.cores, usage),
            *link_flags(spec, place.info, links_of(events)),
            *unattributed,
            *_uneven_parts(spec, certificate),
            *_hung(spec, events),
            *_resumed(attempts, started_at, overall),
            *fault_flags(spec, injected),
            *(_requeued(requeues, overall) if requeues else _restarted(spec, attempts, overall)),
            *_continued(spec, events),
            *_replaced(execution.nodes_replaced, overall, execution.warm),
        ]
        if status == "ok"
        else [],
        ranks=ranks,
        epochs=epochs_of(events),
        certificate=certificate,
        links=links_of(events),
        usage=list(usage),
        environment=place.environment,
    )


def log_of(cause: str, logs: Sequence[str]) -> str | None:
    """The log of the first process that the cause names, or the only log.

    logs: file names, such as node-0.log for `node 0`.
    """
    named = {
        name: found.start()
        for name in logs
        if (found := re.search(rf"\b{re.escape(name.removesuffix('.log').replace('-', ' '))}\b", cause))
    }
    if named:
        return min(named, key=named.__getitem__)
    return logs[0] if len(logs) == 1 else None


def _elapsed_s(attempts: Attempts, end: float | None) -> float | None:
    """Seconds from the first training step of any attempt to `end`, in seconds since 1970."""
    events = [event for number in range(attempts.effective + 1) for event in attempts.events_of(number)]
    start = min((event.time for event in events if event.kind == "train_start"), default=None)
    return None if start is None or end is None else max(0.0, end - start)


def _inconsistency(spec: RunSpec, events: Sequence[Event]) -> str | None:
    """What in a rank's events contradicts the spec, or None."""
    reported: set[int] = set()
    for event in events:
        fields = event.fields
        lengths = {"bytes_to": spec.world_size, "wait_s_by_rank": spec.world_size}
        if event.kind == "partition":
            lengths = {"labels": spec.dataset.class_count}
        listed = {name: fields[name] for name in lengths if fields.get(name) is not None}
        wrong = [name for name, values in listed.items() if len(values) != lengths[name]]
        if contradicts(spec, event):
            wrong.append("fault")
        if event.kind == "link" and (fields["to"] >= spec.world_size or fields["to"] == event.rank):
            wrong.append("to")
        if fields.get("epoch", 0) > spec.epochs:
            wrong.append("epoch")
        if event.kind == "result" and event.rank in reported:
            wrong.append("a second one")
        if wrong:
            name = rank_name(event.rank, spec.processes_per_node)
            return f"{name}'s event {event.kind} contradicts the run: {wrong[0]}"
        if event.kind == "result":
            reported.add(event.rank)
    evaluated = {event.fields["epoch"]: event.rank for event in events if event.kind == "epoch"}
    if evaluated and max(evaluated) != len(evaluated):
        name = rank_name(evaluated[max(evaluated)], spec.processes_per_node)
        return f"{name}'s event epoch contradicts the run: no rank has evaluated all epochs before it"
    return None


def _replaced(reason: str | None, overall: str, warm: bool) -> list[str]:
    """Flag a run before or during which nodes that several runs share were replaced."""
    nodes = "warm nodes" if warm else "nodes"
    return [f"{nodes} were replaced, because {reason}: {overall} include that"] if reason else []


def _last_epoch(spec: RunSpec, events: Sequence[Event]) -> int:
    """The last epoch of training: the first in which all ranks have reached the target, else the spec's."""
    reports = [e for e in events if e.kind == "epoch" and e.fields.get("target_reached")]
    reached: set[int] = {event.fields["epoch"] for event in reports}
    together = len(reached) == 1 and {event.rank for event in reports} == set(range(spec.world_size))
    return min(reached) if together and spec.target_accuracy is not None else spec.epochs


def _uncertified(certificate: Certificate | None, epochs: int) -> str | None:
    """Why the certificate does not cover all epochs or samples; None if it does."""
    certified = [split.epoch for split in certificate.splits] if certificate else []
    if certified != list(range(1, epochs + 1)):
        return f"the nodes certified the samples of {len(certified)} of {epochs} epochs"
    if certificate and not certificate.verified:
        return "the nodes trained on other samples than their partitions hold"
    if certificate and len(certificate.data) > 1:
        return (
            "the nodes have different training data; give all of them the same files and version of Python"
        )
    return None


def _resumed(attempts: Attempts, started_at: float, overall: str) -> list[str]:
    """Flag a run that resumed from a checkpoint, and state what its training time excludes.

    overall: the measures that start with the command rather than with the training in the weights.
    """
    resumed = [_resume_events(attempts.events_of(number)) for number in range(attempts.effective + 1)]
    if not resumed[-1]:
        return []
    last = resumed[-1][0].fields
    times = "once" if last["times"] == 1 else f"{last['times']} times"
    steps = f" and {last['step']} steps" if last["step"] else ""
    # A checkpoint older than this command: the weights contain training from before it.
    before = any(event.time - event.fields["age_s"] < started_at for each in resumed for event in each)
    return [
        f"interrupted and resumed from a checkpoint {times}, last from the one after epoch "
        f"{last['epoch']}{steps}, {last['age_s']:.0f} s later: training time excludes work lost after a "
        "checkpoint, and writing the checkpoints it resumed from"
        + (f"; {overall} cover the last command only" if before else "")
    ]


def _resume_events(events: Sequence[Event]) -> list[Event]:
    """The `resumed` events of the rank that counts how often the run has resumed."""
    return [event for event in events if event.kind == "resumed" and event.fields["times"]]


def comparable_waits(ranks: list[RankResult], runtime: RuntimeInfo) -> tuple[list[RankResult], list[str]]:
    """Drop straggler attribution, which compares the ranks' clocks, where there is no common clock.

    Returns:
        The ranks, and a flag that states the reason if anything was dropped.
    """
    if runtime.one_clock or all(rank.wait_s_by_rank is None for rank in ranks):
        return ranks, []
    reason = "straggler attribution (wait_s_by_rank) is not reported: the ranks do not share a clock"
    return [rank.model_copy(update={"wait_s_by_rank": None}) for rank in ranks], [reason]


def _hung(spec: RunSpec, events: Sequence[Event]) -> list[str]:
    hung = [str(event.rank) for event in events if event.kind == "done" and event.fields.get("forced")]
    names = f"{rank_noun(spec.processes_per_node)} {', '.join(hung)}"
    return [f"{names} hung after its result was written, and was stopped"] if hung else []


def _restarted(spec: RunSpec, attempts: Attempts, overall: str) -> list[str]:
    """Flag lost ranks and restarts, and what they mean for `overall`, as in `_resumed`."""
    each, allowed = spec.processes_per_node, spec.restarts
    found = [
        f"{cause_of_loss(attempts, number, each)}; "
        f"all ranks were restarted ({number + 1} of {allowed} restarts)"
        for number in range(attempts.effective)
    ]
    if found:
        found.append(
            f"{overall} include the attempts before the last restart; training time excludes work they lost"
        )
    late = attempts.killed(attempts.effective) if allowed else []  # no rank depended on it any more
    found += [f"{rank_name(rank, each)} was killed after its result was written" for rank in late]
    return found


def _requeued(causes: Sequence[str], overall: str) -> list[str]:
    """Flag the requeues of a batch system, and what they mean for `overall`, as in `_resumed`."""
    found = [f"requeue {number}: {cause}" for number, cause in enumerate(causes, start=1)]
    return [
        *found,
        f"{overall} include the time in the queue and what ran before the last requeue; training time "
        "excludes work lost there",
    ]


def _continued(spec: RunSpec, events: Sequence[Event]) -> list[str]:
    """Flag the ranks that were lost while the others continued, and those that returned."""
    found = []
    for event in events if spec.on_loss == "continue" else ():
        name = rank_name(event.rank, spec.processes_per_node)
        if event.kind == "died":
            found.append(f"{name} was {event.fields['cause']}; the others continued without it")
        elif event.kind == "start" and event.fields.get("incarnation"):
            found.append(f"{name} was started again")
    if found:
        found.append(
            "straggler attribution is not reported: lost nodes took the times of their exchanges along"
        )
    return found


def _uneven_parts(spec: RunSpec, certificate: Certificate | None) -> list[str]:
    """Flag samples repeated or dropped so that all nodes take equally many steps."""
    whole = spec.partitioner.disjoint and spec.partitioner.covers and spec.strategy.rounds is None
    if certificate is None or not whole:
        return []
    more = sum(part.samples for part in certificate.first_epoch()) - spec.dataset.train_samples
    if certificate.splits[0].uneven == "pad" and more > 0:
        return [f"uneven=pad: {more:,} samples were repeated in epoch 1"]
    if certificate.splits[0].uneven == "drop" and more < 0:
        return [
            f"uneven=drop: {-more:,} of {spec.dataset.train_samples:,} samples were left out of epoch 1"
        ]
    return []


def certify(events: Sequence[Event], servers: int = 0) -> Certificate | None:
    """The certificate: the samples trained on, checked against the partition. None without training.

    servers: ranks before the first that has samples.
    """
    reported = [CoverageRecord(**event.fields) for event in events if event.kind == "coverage"]
    # Of a run that continues without a lost rank, every rank reports the same plan.
    splits = [*{split.epoch: split for split in reported}.values()]
    parts = [
        CertifiedPart(rank=event.rank, **event.fields) for event in events if event.kind == "partition"
    ]
    if not splits:
        return None
    digests: dict[int, dict[int, str]] = defaultdict(dict)
    for part in parts:
        digests[part.epoch][part.rank] = part.digest
    died = {event.rank for event in events if event.kind == "died"}
    lost = 0
    for split in splits:
        for rank, planned in enumerate(split.parts or (), start=servers):
            if rank in died and rank not in digests[split.epoch]:
                lost += planned.samples
                digests[split.epoch][rank] = planned.digest
    verified = all(split in splits for split in reported) and all(
        split.digest == combined_digest(digest for _, digest in sorted(digests[split.epoch].items()))
        for split in splits
    )
    splits.sort(key=lambda split: split.epoch)
    parts.sort(key=lambda part: (part.epoch, part.rank))
    return Certificate(verified=verified, splits=splits, parts=parts, samples_lost=lost)


def _batch_of_layers(run: RunSpec) -> str | None:
    """What layers such as BatchNorm take for the batch, if it is less than that of a serial step."""
    if not run.model.batch_statistics:
        return None
    if run.strategy.micro_batch_count > 1 or (run.accumulate > 1 and run.world_size > 1):
        return "micro-batches, not batches"
    if run.strategy.splits_samples and run.world_size > 1:
        return "some tokens of each sample, not all"
    if run.batch_per_replica < run.batch_size and not run.model.has_synchronous_layers:
        return f"{run.batch_per_replica} samples, not the batch of {run.batch_size}"
    return None


def flags(
    spec: RunSpec,
    ranks: Sequence[RankResult],
    runtime: RuntimeInfo,
    cores: float,
    usage: Sequence[NodeUsage] = (),
) -> list[str]:
    """What limits the comparison with other runs, as sentences."""
    found = [
        *limit_flags(spec, runtime, cores),
        *node_speed_flags(spec, runtime, ranks, usage),
        *memory_flags(spec, usage),
    ]
    if spec.ranks_are_threads:
        found.append(
            "ranks were threads of one interpreter and slowed each other down: times do not compare, "
            "and each rank's memory is that of all ranks"
        )
    elif not runtime.trains:
        found.append(
            "nothing was trained (compute: sampled): work cost what a few measured steps did, or what was "
            "given, so there is no accuracy, no loss and no certificate"
        )
    elif runtime.simulates_time and spec.world_size > 1:
        found.append("ranks were in one process: each rank's memory is that of all ranks")
    if runtime.trains and (over := _batch_of_layers(spec)):
        found.append(f"{spec.model.per_batch} over {over}: training is not equivalent to serial")
    if runtime.trains and spec.strategy.caveat:
        found.append(spec.strategy.caveat)
    if spec.byzantine_label:
        found.append(spec.byzantine_label)
    if without_effect := max((rank.aggregations_without_effect or 0 for rank in ranks), default=0):
        found.append(
            "aggregations of too few vectors, which kept the weights or gave a gradient of 0: "
            f"{without_effect}"
        )
    if len({rank.weights_digest for rank in ranks if rank.weights_digest}) > 1:
        found.append("replicas ended with different weights; the accuracy is rank 0's")
    reports_samples = spec.strategy.reports_samples
    samples = {rank.samples for rank in ranks if reports_samples(rank.rank, spec.world_size)}
    if samples and max(samples) - min(samples) > spec.epochs:
        noun = rank_noun(spec.processes_per_node)
        found.append(f"unequal work: between {min(samples):,} and {max(samples):,} samples per {noun}")
    return found
