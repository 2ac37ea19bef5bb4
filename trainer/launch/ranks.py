"""Running the ranks of one process: one, or several as threads, or several as forked processes."""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from trainer.comm.attempt_store import exit_barrier
from trainer.comm.base import CommunicationError
from trainer.comm.memory import ThreadGroup
from trainer.core.context import NodeContext
from trainer.core.events import MAX_BYTES, EventWriter, signal_name
from trainer.core.result import Diverged
from trainer.data.base import DataError
from trainer.launch.watchdog import Watchdog
from trainer.training.checkpoint_store import CheckpointError
from trainer.training.task import Task

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

TEARDOWN_S = 10.0
# Failures that a message explains; anything else is shown with its type and, in the log, its traceback.
EXPLAINED = (DataError, CommunicationError, Diverged, CheckpointError)


def run_rank(context: NodeContext, task: Task, events: EventWriter, watchdog: Watchdog) -> bool:
    """Train as one rank and report; False after a failure, which is an event by then."""
    try:
        result = task.spec.strategy.train(context, task, events)
        events.write("result", **result.model_dump())
        if context.attempt is not None:
            _leave_together(context, events, watchdog)
            return True
        watchdog.leave_within(context.rank, TEARDOWN_S)
        context.close()
    except Exception as error:
        report_failure(events, error)
        context.abort()
        return False
    events.write("done")
    return True


def _leave_together(context: NodeContext, events: EventWriter, watchdog: Watchdog) -> None:
    """End as one of ranks that torchrun starts again together, or not at all.

    From the last meeting on every result counts, and who is lost while they part is not missed.
    """
    exit_barrier(context)
    events.write("done")
    watchdog.leave_within(context.rank, TEARDOWN_S)
    with suppress(CommunicationError):
        context.close()


def report_failure(events: EventWriter, error: Exception) -> None:
    """The last word of a rank that an exception ends; called while it is being handled."""
    cause = str(error) if isinstance(error, EXPLAINED) else f"{type(error).__name__}: {error}"
    trace = traceback.format_exc()
    # An event has room for two texts of 0.4 of its size; of a cause the beginning counts, of a
    # traceback the end.
    while len(json.dumps(cause)) > MAX_BYTES * 0.4:
        cause = cause[: len(cause) * 3 // 4]
    while len(json.dumps(trace)) > MAX_BYTES * 0.4:
        trace = trace[len(trace) // 4 :]
    # peer: it complains of another rank, which may be gone and the true cause.
    peer = isinstance(error, CommunicationError)
    events.write("failed", cause=cause, peer=peer, traceback=trace)


def run_threads(context: NodeContext, task: Task, events: EventWriter, orchestrator: int | None) -> bool:
    """All ranks as threads of this process; True if all of them succeeded."""
    room = ThreadGroup(context.size, context.timeout_s)
    writers = [events.as_rank(rank) for rank in range(context.size)]
    succeeded = [False] * context.size

    def run(rank: int) -> None:
        succeeded[rank] = run_rank(context.as_rank(rank, room), task, writers[rank], watchdog)

    with Watchdog(writers, orchestrator) as watchdog:
        for writer in writers:
            writer.write("start", pid=os.getpid())
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(context.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return all(succeeded)


def run_forked(context: NodeContext, task: Task, events: EventWriter, orchestrator: int | None) -> bool:
    """All ranks as processes forked from this one, sharing what the strategy's `share` makes.

    The first that ends badly ends the others: they may be waiting for it.
    """
    import multiprocessing
    from multiprocessing.connection import wait

    fork = multiprocessing.get_context("fork")
    context.shared = task.spec.strategy.share(context, task)
    ranks: dict[int, BaseProcess] = {}
    for rank in range(context.size):
        ranks[rank] = fork.Process(
            target=_forked_rank, args=(context.as_rank(rank), task, events.as_rank, os.getpid())
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
    context: NodeContext, task: Task, writer_of: Callable[[int], EventWriter], parent: int
) -> None:
    events = writer_of(context.rank)
    with Watchdog([events], parent) as watchdog:
        events.write("start", pid=os.getpid())
        succeeded = run_rank(context, task, events, watchdog)
    os._exit(0 if succeeded else 1)
