"""Run the ranks of one process: a single rank, threads, or forked processes."""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.comm.attempt_store import exit_barrier
from trainer.comm.base import Communicator
from trainer.comm.errors import CommunicationError, ExchangeError
from trainer.comm.forked import ForkedCommunicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import MAX_BYTES, EventWriter, signal_name
from trainer.core.record import cut
from trainer.core.registry import ImportedComponent
from trainer.core.result import Diverged, TrainResult
from trainer.core.user_code import ImportFailure, place_of
from trainer.data.base import DataError
from trainer.launch.checked import CheckedCommunicator
from trainer.launch.watchdog import Watchdog
from trainer.spec.registries import TRANSPORTS
from trainer.spec.run_spec import RunSpec
from trainer.training.bare_session import BareSession
from trainer.training.checkpoint_store import CheckpointError
from trainer.training.faults import FaultError
from trainer.training.limits import LinkError, MemoryShortage, QuotaError, wait_for_links
from trainer.training.stopping import Stopped
from trainer.training.task import Task

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from multiprocessing.synchronize import Barrier

SessionOf = Callable[[NodeContext, Task, EventWriter, Communicator], Any]
TEARDOWN_S = 10.0
# The orchestrator stops a run at its time limit, and says where each rank is. Threads start so fast that
# one would sometimes give up before that, and the run would have failed. They wait so many seconds longer.
GIVE_UP_AFTER_S = 10.0
# Errors with self-explanatory messages; others are shown with their type.
EXPLAINED = (
    DataError,
    CommunicationError,
    Diverged,
    CheckpointError,
    LinkError,
    QuotaError,
    FaultError,
    ImportFailure,
    ExchangeError,
    MemoryShortage,
)


def attempt_fields(context: NodeContext) -> dict[str, int]:
    """What the event `start` says about earlier starts of this rank."""
    if context.incarnation:
        return {"incarnation": context.incarnation}
    if context.attempt is not None:
        return {"attempt": context.attempt}
    return {"attempt": context.requeues} if context.requeues else {}


def run_rank(
    context: NodeContext,
    task: Task,
    events: EventWriter,
    watchdog: Watchdog,
    connected: Callable[[], Communicator],
    shared: Any = None,
    session_of: SessionOf | None = None,
) -> bool:
    """Train as one rank and report the result. Returns False after a failure, which it has reported.

    A run that has stopped at a checkpoint has no result, and has not failed.

    connected: connects the rank to the others. Not called for a strategy that does not train. session_of:
    see `train`.
    """
    watchdog.follow(context.rank)
    comm = stopped = None
    try:
        comm = connected() if task.spec.strategy.trains else None
        result = train(context, task, events, comm, shared, session_of)
        events.write("result", **result.model_dump())
        if context.attempt is not None:
            _exit_together(context, events, watchdog, comm)
            return True
        watchdog.exit_within(context.rank, TEARDOWN_S)
        if comm:
            comm.close()
    except Stopped as error:
        stopped = error.with_traceback(None)  # which holds the session; see `train`
    except Exception as error:
        report_failure(events, error)
        if comm:
            comm.abort()
        return False
    if stopped:
        events.write("terminated", cause=f"stopped at a checkpoint: {stopped}")
        watchdog.exit_within(context.rank, TEARDOWN_S)
        if comm:
            with suppress(CommunicationError):
                comm.close()
        return True
    events.write("done")
    return True


def train(
    context: NodeContext,
    task: Task,
    events: EventWriter,
    comm: Communicator | None,
    shared: Any = None,
    session_of: SessionOf | None = None,
) -> TrainResult:
    """Run the strategy in a session of its own.

    The session must be gone before the communicator is closed: gloo can deadlock if it is destroyed while
    a DistributedDataParallel object lives.

    session_of: makes the session of a rank whose training is simulated; None: it trains.
    """
    session: Any
    watched: Any = nullcontext()
    if task.spec.debug and comm and comm.size > 1:
        from trainer.launch.owned_buffers import OwnedBuffers

        comm = CheckedCommunicator(comm, code_of(task.spec))
        watched = OwnedBuffers(comm, code_of(task.spec))
    if comm is None:
        session = BareSession(context, events)
    elif session_of is not None:
        session = session_of(context, task, events, comm)
    else:
        from trainer.training.session import Session

        session = Session(context, task, events, comm, shared)
    strategy = task.spec.strategy
    if comm is not None and comm.clock.given:
        strategy = strategy.stand_in() or strategy
    with watched:
        strategy.train(session)
        result: TrainResult = session.result()
    return result


def code_of(spec: RunSpec) -> Path | None:
    """The directory of a user's strategy."""
    return spec.strategy.imported.directory if isinstance(spec.strategy, ImportedComponent) else None


def _exit_together(
    context: NodeContext, events: EventWriter, watchdog: Watchdog, comm: Communicator | None
) -> None:
    """Exit as one of the ranks that torchrun restarts together.

    After the barrier every result counts, so a rank that is lost while closing is not an error.
    """
    exit_barrier(context)
    events.write("done")
    watchdog.exit_within(context.rank, TEARDOWN_S)
    if comm:
        with suppress(CommunicationError):
            comm.close()


def run_process(context: NodeContext, task: Task, events: EventWriter, watchdog: Watchdog) -> bool:
    """The one rank of this process; it connects over the run's transport."""
    if context.incarnation:
        events.write("waiting", incarnation=context.incarnation)
    threads = task.spec.threads_for(context.rank)
    return run_rank(context, task, events, watchdog, lambda: connect(context, threads, events))


def connect(context: NodeContext, threads: int, events: EventWriter | None = None) -> Communicator:
    """Connect this process's only rank, with this many torch threads, over the run's transport.

    events: the events of this rank. A run whose ranks continue when one is lost needs them.
    """
    wait_for_links(context)
    transport = TRANSPORTS.load(context.transport)
    clock = rank_clock(1, computes_alone=threads == 1 and transport.threads_only_communicate)
    if context.membership is not None:
        if events is None:
            raise ValueError("a membership follows from events, and there are none")
        return transport.connect_elastic(context, clock, context.membership, events)
    return transport.connect(context, clock)


def rank_clock(ranks: int, computes_alone: bool = False) -> Clock:
    """The clock of a rank in a process that runs this many ranks.

    A single rank counts the process's CPU time, which includes torch's threads. Ranks that are threads of
    one process count their thread's, as does a single rank whose thread does all computation: the other
    threads move bytes while it computes, as gloo's do in the backward pass of `ddp`.

    Args:
        computes_alone: all other threads of the process communicate.
    """
    if computes_alone and ranks == 1:
        return Clock(cpu=time.thread_time, all_cpu=time.process_time)
    return Clock(cpu=time.thread_time if ranks > 1 else time.process_time)


def report_failure(events: EventWriter, error: Exception) -> None:
    """Write the exit report of a rank that failed. Call it while the exception is being handled."""
    cause = str(error) if isinstance(error, EXPLAINED) else f"{type(error).__name__}: {error}"
    names_place = isinstance(error, ImportFailure | DataError | ExchangeError)
    if not names_place and (place := place_of(error)):
        cause = f"{place}: {cause}"
    trace = traceback.format_exc()
    # Both must fit into one event: keep both ends of the cause and the end of the traceback.
    while len(json.dumps(cause)) > MAX_BYTES * 0.4:
        cause = cut(cause, len(cause) * 3 // 4)
    while len(json.dumps(trace)) > MAX_BYTES * 0.4:
        trace = trace[len(trace) // 4 :]
    # peer: the error is about another rank, which may be the true cause.
    peer = isinstance(error, CommunicationError)
    events.write("failed", cause=cause, peer=peer, traceback=trace)


def run_threads(context: NodeContext, task: Task, events: EventWriter, orchestrator: int | None) -> bool:
    """All ranks as threads of this process; True if all of them succeeded."""
    group = ThreadGroup(context.size, context.timeout_s + GIVE_UP_AFTER_S)
    writers = [events.as_rank(rank) for rank in range(context.size)]
    succeeded = [False] * context.size

    def run(rank: int) -> None:
        def connected() -> Communicator:
            return MemoryCommunicator(rank, context.size, rank_clock(context.size), group)

        succeeded[rank] = run_rank(replace(context, rank=rank), task, writers[rank], watchdog, connected)

    with Watchdog(writers, orchestrator, context.stop_dir) as watchdog:
        for writer in writers:
            writer.write("start", pid=os.getpid(), **attempt_fields(context))
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(context.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return all(succeeded)


def run_forked(context: NodeContext, task: Task, events: EventWriter, orchestrator: int | None) -> bool:
    """All ranks as processes forked from this one, with the strategy's `shared_state`.

    The first rank that fails terminates the others: they may be waiting for it.
    """
    import multiprocessing
    from multiprocessing.connection import wait

    fork = multiprocessing.get_context("fork")
    shared = task.spec.strategy.shared_state(task)
    barrier = fork.Barrier(context.size)
    ranks: dict[int, BaseProcess] = {}
    for rank in range(context.size):
        ranks[rank] = fork.Process(
            target=_forked_rank,
            args=(replace(context, rank=rank), task, events.as_rank, os.getpid(), barrier, shared),
        )
        ranks[rank].start()
    with Watchdog([], orchestrator):
        succeeded = True
        while ranks:
            wait([process.sentinel for process in ranks.values()])
            for rank, process in [*ranks.items()]:
                if process.exitcode is None:
                    continue
                del ranks[rank]
                if process.exitcode == 0:
                    continue
                if succeeded and process.exitcode < 0:
                    name = signal_name(-process.exitcode)
                    events.as_rank(rank).write("died", cause=f"killed by {name}", signal=name)
                succeeded = False
                for other in ranks.values():
                    other.terminate()
    return succeeded


def _forked_rank(
    context: NodeContext,
    task: Task,
    writer_of: Callable[[int], EventWriter],
    parent: int,
    barrier: Barrier,
    shared: Any,
) -> None:
    events = writer_of(context.rank)
    with Watchdog([events], parent) as watchdog:
        events.write("start", pid=os.getpid())
        succeeded = run_rank(
            context, task, events, watchdog, lambda: ForkedCommunicator(rank_clock(1), barrier), shared
        )
    os._exit(0 if succeeded else 1)
