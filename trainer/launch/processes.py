"""Complete trainings whose ranks are processes of this machine, for strategies that need a process each."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.comm.base import Communicator
from trainer.comm.forked import ForkedCommunicator
from trainer.core.context import NodeContext
from trainer.core.events import Event, EventReader, EventWriter, how_ended
from trainer.core.failure import RankFailure
from trainer.core.forked import Child, Ended
from trainer.core.processes import end_with_parent
from trainer.core.result import TrainResult
from trainer.core.trace import read_trace
from trainer.core.user_code import frames_in, place_in
from trainer.data.cache import DatasetCache
from trainer.launch.interface import VARIABLES
from trainer.launch.ranks import code_of, connect, rank_clock, run_rank
from trainer.launch.threads import DeadlockError, Training
from trainer.launch.threads import train as train_on_threads
from trainer.launch.watchdog import Watchdog
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task

TRANSPORTS = ("gloo", "rpc")  # over which ranks find each other without a launcher
LOOPBACK = "lo"
TRIAL_S = 5.0  # to try threads; a strategy for which they take longer has processes
PEERS_S = 2.0  # after a rank has failed, for the others to report why, or that they have lost it
STACK_S = 2.0  # for a rank to write where it is
POLL_S = 0.02
# By torch, when an optimizer or DistributedDataParallel is created. Each rank would take a second for it.
IMPORTED_LATER = ("torch._dynamo", "torch.distributed.fsdp")


def trains_on_threads(spec: RunSpec) -> bool:
    """Whether a strategy trains with threads as ranks, as one does that calls only the communicator.

    It is tried in a process of its own: autograd and torch.distributed can leave threads behind, after
    which this process could not fork ranks that train.
    """
    _import_for_ranks()

    def trains(_: bytes) -> bytes:
        try:
            train_on_threads(spec)
        except DeadlockError:
            pass  # its ranks exchange; the law `ends` says what each does
        except Exception:
            return b""
        return b"it does"

    with closing(Child(trains)) as child, suppress(Ended):
        return bool(child.ask(b"", TRIAL_S))
    return False


def _import_for_ranks() -> None:
    for module in IMPORTED_LATER:
        import_module(module)


def train(spec: RunSpec, limit_s: float, datasets: DatasetCache) -> Training:
    """Train as the spec says, with a process for each rank.

    Call it in a process in which no backward pass has run, since ranks are forked from it.

    Args:
        spec: a run with save_weights, over a transport of TRANSPORTS, or over memory if the strategy forks.
        limit_s: seconds in which every rank must have ended.
        datasets: what loads the samples.

    Returns:
        What the ranks have reported.

    Raises:
        DeadlockError: A rank has not ended in time.
        RankFailure: The first failure of a rank that is not about another rank.
    """
    task = Task(spec, Path(), datasets)
    _import_for_ranks()
    _ = task.data  # loaded before the ranks are forked
    with tempfile.TemporaryDirectory() as name, _forked_ranks(task, Path(name)) as ranks:
        in_time = _wait(ranks, limit_s)
        where = "" if in_time else _whereabouts(ranks, Path(name), code_of(spec))
        reported = EventReader(Path(name), spec.world_size).new()
        events = [[each for each in reported if each.rank == rank] for rank in range(spec.world_size)]
        if failure := _failure([process.exitcode for process in ranks], events, code_of(spec)):
            raise RankFailure(failure)
        if not in_time:
            raise DeadlockError(f"after {limit_s:g} s, {where}")
        results = [_last(each, "result") for each in events]
        return Training(
            np.load(Path(name) / "weights.npy"),
            [TrainResult.model_validate(result.fields) for result in results if result],
            events,
            [read_trace(path) for path in sorted(Path(name).glob("trace-*.bin"))],
        )


@contextmanager
def _forked_ranks(task: Task, directory: Path) -> Iterator[list[ForkProcess]]:
    """The ranks of a run, which are gone after the block. directory: the directory for their reports."""
    fork, spec = get_context("fork"), task.spec
    size, forks = spec.world_size, spec.strategy.forks
    shared = spec.strategy.shared_state(task) if forks else None
    barrier = fork.Barrier(size) if forks else None
    ranks = []
    try:
        for rank in range(size):
            context = NodeContext(
                rank,
                size,
                spec.transport,
                Path(),
                local_rank=0 if spec.topology == "single" else rank,
                # A file, because another process could take a port.
                rendezvous=f"{directory}/rendezvous",
                oversubscribed=spec.oversubscribed,
                timeout_s=spec.timeout_s,
                out_dir=directory,
            )
            process = fork.Process(target=_run, args=(context, task, shared, barrier, os.getpid()))
            process.start()
            ranks.append(process)
        yield ranks
    finally:
        for process in ranks:
            process.kill()
        for process in ranks:
            process.join()


def _run(context: NodeContext, task: Task, shared: Any, barrier: Barrier | None, parent: int) -> None:
    """Run a rank in a forked process, with the environment of a local run.

    shared, barrier: those of ranks that share memory.
    """

    def connected() -> Communicator:
        if barrier is not None:
            return ForkedCommunicator(rank_clock(1), barrier)
        return connect(context, task.spec.threads_for(context.rank))

    end_with_parent()
    if context.out_dir is None or os.getppid() != parent:
        os._exit(1)
    # The rank may be inside a C call, where only this handler runs.
    faulthandler.register(
        signal.SIGUSR1, _stack(context.out_dir, context.rank).open("w"), all_threads=False
    )
    os.environ.update(dict.fromkeys(VARIABLES.get(task.spec.topology, ()), LOOPBACK))
    os.environ.update(
        RANK=str(context.rank), LOCAL_RANK=str(context.local_rank), WORLD_SIZE=str(context.size)
    )
    torch.set_num_threads(task.spec.threads_for(context.rank))
    warnings.simplefilter("ignore")  # every rank of every training would show them again
    events = EventWriter(task.spec.key, context.rank, context.out_dir, io.StringIO())
    with Watchdog([events], parent) as watchdog:
        succeeded = run_rank(context, task, events, watchdog, connected, shared)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if succeeded else 1)  # not through Python's exit, see trainer/__main__.py


def _wait(ranks: Sequence[ForkProcess], limit_s: float) -> bool:
    """Wait for the ranks, after a failure only shortly. Returns whether all ended, or one failed."""
    end, failed = time.monotonic() + limit_s, False
    while running := [process for process in ranks if process.exitcode is None]:
        if not wait([process.sentinel for process in running], max(0.0, end - time.monotonic())):
            return failed
        if not failed and any(process.exitcode for process in ranks):
            failed, end = True, min(end, time.monotonic() + PEERS_S)
    return True


def _whereabouts(ranks: Sequence[ForkProcess], directory: Path, code: Path | None) -> str:
    """What each rank does. directory: that of their reports. code: that of users' code."""
    running = {rank: process for rank, process in enumerate(ranks) if process.exitcode is None}
    for process in running.values():
        os.kill(process.pid or os.getpid(), signal.SIGUSR1)
    end = time.monotonic() + STACK_S
    while time.monotonic() < end and not all(_is_written(_stack(directory, rank)) for rank in running):
        time.sleep(POLL_S)
    time.sleep(POLL_S)  # for the rest of what has been begun
    return "; ".join(
        f"rank {rank} {_place(_stack(directory, rank), code) if rank in running else 'has ended'}"
        for rank in range(len(ranks))
    )


def _stack(directory: Path, rank: int) -> Path:
    """The file to which a rank writes its stack."""
    return directory / f"stack-{rank}.txt"


def _is_written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _place(stack: Path, code: Path | None) -> str:
    """What a rank does by its stack: the innermost function, and the innermost line of users' code."""
    frames = frames_in(stack.read_text(encoding="utf-8", errors="replace")) if stack.exists() else []
    if not frames:
        return "does not say where it is"
    file, line, function = frames[0]
    own = place_in(((file, line) for file, line, _ in frames), code)
    return f"is at {own or f'{Path(file).name}:{line}'}, in {function}"


def _last(events: Sequence[Event], kind: str) -> Event | None:
    return next((event for event in reversed(events) if event.kind == kind), None)


def _failure(
    codes: Sequence[int | None], events: Sequence[Sequence[Event]], code: Path | None
) -> str | None:
    """Why the training has failed; None if it has not. code: directory of users' code.

    The first cause, since other ranks fail because they have lost one: a death without a report, then the
    earliest report that is not about another rank.
    """
    causes: list[tuple[int, float, str]] = []
    for rank, (exit_code, reported) in enumerate(zip(codes, events, strict=True)):
        if failed := _last(reported, "failed"):
            causes.append((3 if failed.fields["peer"] else 2, failed.time, _located(failed, code)))
        elif exit_code or (exit_code == 0 and not _last(reported, "result")):
            causes.append((0 if exit_code < 0 else 1, 0.0, f"rank {rank} {how_ended(exit_code)}"))
    return min(causes)[2] if causes else None


def _located(failed: Event, code: Path | None) -> str:
    """What `located` says of an exception, from its report."""
    frames = reversed(frames_in(failed.fields["traceback"]))
    place = place_in(((file, line) for file, line, _ in frames), code)
    cause = " ".join(failed.fields["cause"].split())
    return f"{place}: {cause}" if place else cause
