"""Trains the ranks of a run as virtual nodes of this process, or of a few that it forks."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.registry import ImportedComponent
from trainer.launch.ranks import SessionOf, attempt_fields, report_failure, run_rank
from trainer.launch.watchdog import GONE, Watchdog
from trainer.spec.run_spec import RunSpec
from trainer.time_model.described import cluster_of_run
from trainer.time_model.outcome import RankReplay
from trainer.training.task import Task
from trainer.virtual.clock import StepCosts, VirtualClock
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.group import VirtualGroup
from trainer.virtual.memory import check_memory
from trainer.virtual.options import VirtualOptions
from trainer.virtual.sample import Sample, given_costs
from trainer.virtual.sampled import SampledCommunicator, SampledSession
from trainer.virtual.shared_module import SharedModule, VirtualSession
from trainer.virtual.simulation import VirtualSimulation
from trainer.virtual.turns import ThreadRank, TrainingRank, VirtualRank
from trainer.virtual.worker_simulation import RemoteRank, WorkerSimulation
from trainer.virtual.workers import Share, has_ended

FILES_PER_RANK = 2


def run_virtual(
    context: NodeContext, task: Task, events: EventWriter, orchestrator: int | None, options: VirtualOptions
) -> bool:
    """Train all ranks of a run, or simulate their exchanges alone; True if all of them succeeded."""
    workers = min(options.workers, context.size)
    try:
        costs = given_costs(task, options)
        sample = None if options.trains else Sample(task, costs)
        if sample is None:
            check_memory(task, workers, session_kind(task, None) is not None)
    except Exception as error:
        report_failure(events, error)
        return False
    _allow_files(FILES_PER_RANK * context.size)
    if workers == 1:
        return _train_ranks(range(context.size), context, task, events, orchestrator, costs, sample)
    share = Share.fork(workers, context.size)
    train = partial(_train_ranks, share.ranks, context, task, events, orchestrator, costs, share=share)
    return share.run(train, events.as_rank)


def _train_ranks(
    ranks: range,
    context: NodeContext,
    task: Task,
    events: EventWriter,
    orchestrator: int | None,
    costs: StepCosts | None,
    sample: Sample | None = None,
    share: Share | None = None,
) -> bool:
    """Train the ranks of this process; True if all of them succeeded."""
    session_of = session_kind(task, sample)
    writers = {rank: events.as_rank(rank) for rank in ranks}
    succeeded = dict.fromkeys(ranks, False)

    def train(comm: VirtualCommunicator) -> None:
        own = replace(context, rank=comm.rank)
        succeeded[comm.rank] = run_rank(
            own, task, writers[comm.rank], watchdog, lambda: comm, session_of=session_of
        )
        watchdog.has_closed(comm.rank)

    parent, loss = orchestrator, GONE
    if share and share.parent:
        parent, loss = share.parent, has_ended(0)
    with Watchdog([*writers.values()], parent, loss=loss) as watchdog:
        for writer in writers.values():
            writer.write("start", pid=os.getpid(), **attempt_fields(context))
        in_turns(train, task.spec, costs, sample, share)
    return all(succeeded.values())


def _allow_files(number: int) -> None:
    """Let this process open so many files beside others, if the hard limit permits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = soft + number if hard == resource.RLIM_INFINITY else min(soft + number, hard)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def in_turns(
    body: Callable[[VirtualCommunicator], object],
    spec: RunSpec,
    costs: StepCosts | None = None,
    sample: Sample | None = None,
    share: Share | None = None,
) -> Sequence[RankReplay]:
    """Run `body` on every rank of a run, one at a time, in the order of their clocks.

    Args:
        body: gets the rank's communicator. It catches its own errors, and then calls `comm.abort()`.
        spec: of the run, which describes the cluster.
        costs: what ranks pay for a step; None: the CPU time that it takes.
        sample: the replica whose costs the ranks pay; None: they compute.
        share: the ranks on which this process runs it, while others do so on the rest; None: it has all.

    Returns:
        The times of each rank.
    """
    costs = sample.costs if sample else costs
    kind, connected = _kind_of_rank(spec, sample), SampledCommunicator if sample else VirtualCommunicator
    cluster = cluster_of_run(spec)
    own = share.ranks if share else range(cluster.size)
    ranks = [
        (kind if rank in own else RemoteRank)(VirtualClock(cluster.speed_of(rank), costs))
        for rank in range(cluster.size)
    ]
    simulation: VirtualSimulation
    if share:
        simulation = WorkerSimulation(ranks, cluster, spec.transport, share)
        shared: VirtualGroup = simulation.group
    else:
        simulation = VirtualSimulation(ranks, cluster, spec.transport)
        shared = VirtualGroup.of(simulation, own)
    for number in own:
        ranks[number].start(partial(body, connected(number, ranks[number].clock, shared)))
    return simulation.run()


def _kind_of_rank(spec: RunSpec, sample: Sample | None) -> type[VirtualRank]:
    """How ranks take turns: the cheapest way that keeps the state of their computation apart."""
    if sample is not None:
        return VirtualRank
    in_backward = spec.strategy.needs_thread or spec.model.has_synchronous_layers
    return ThreadRank if in_backward else TrainingRank


def session_kind(task: Task, sample: Sample | None) -> SessionOf | None:
    """How the ranks of a run train; None: as real ones do."""
    spec = task.spec
    if sample is not None:
        return partial(SampledSession, sample=sample)
    if spec.strategy.partitions_model or _kind_of_rank(spec, sample) is ThreadRank:
        return None  # modules differ, or a turn may end within a pass through one
    components = spec.strategy, spec.model, spec.optimizer
    if any(isinstance(each, ImportedComponent) for each in components):
        return None  # users' code may keep state in a module
    return partial(VirtualSession, shared=SharedModule(task))
