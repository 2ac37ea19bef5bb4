"""Complete trainings whose ranks are threads of this process, with their exchanges watched."""

from __future__ import annotations

import io
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.comm.errors import CommunicationError
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.comm.nonblocking import Operation
from trainer.core.clock import Clock
from trainer.core.context import NodeContext
from trainer.core.events import Event, EventWriter
from trainer.core.result import TrainResult
from trainer.core.trace import Trace, read_trace
from trainer.data.cache import DatasetCache
from trainer.launch.ranks import rank_clock
from trainer.launch.ranks import train as train_rank
from trainer.spec.run_spec import RunSpec
from trainer.training.session import Session
from trainer.training.task import Task

POLL_S = 0.02
POLLS = 50  # without progress while every rank waits or has ended: they wait for ever


class DeadlockError(Exception):
    """Ranks wait for ever, or call different collectives. The message says what each rank does."""


class RecordedEvents(EventWriter):
    """Collects a rank's events in memory."""

    def __init__(self, rank: int) -> None:
        super().__init__("run", rank, None, io.StringIO())
        self.events: list[Event] = []

    def write(self, kind: str, **fields: Any) -> None:
        self._append(kind, fields)

    def _append(self, kind: str, fields: dict[str, Any]) -> Event:
        self.events.append(Event(time.time(), "run", self.rank, "host", kind, fields))
        return self.events[-1]


@dataclass
class Training:
    """The outcome of a training.

    weights: those of rank 0, float32, shape (state,). results, events, traces: those of each rank.
    """

    weights: npt.NDArray[np.float32]
    results: list[TrainResult]
    events: list[list[Event]]
    traces: list[Trace]

    def of(self, kind: str, rank: int = 0) -> list[Event]:
        """A rank's events of one kind."""
        return [event for event in self.events[rank] if event.kind == kind]

    @property
    def same_weights(self) -> bool:
        """Whether all ranks that have the weights of the whole model agree."""
        return len({result.weights_digest for result in self.results if result.weights_digest}) == 1


class Exchanges:
    """What the ranks of one training exchange.

    Attributes:
        defect: how their collectives differ; empty while they agree.
        deadlock: what each rank does when they wait for ever; empty while they do not.
    """

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._waiting: list[str] = [""] * size
        self._ended = [False] * size
        self._progress = 0
        self._order: dict[tuple[int, ...], list[tuple[int, str]]] = {}  # collectives of each group
        self._taken: dict[tuple[tuple[int, ...], int], int] = {}
        self.defect = self.deadlock = ""

    def start(self, ranks: tuple[int, ...], rank: int, what: str) -> None:
        """A rank starts a collective. Raises CommunicationError if another rank starts another one."""
        with self._lock:
            self._progress += 1
            order, number = self._order.setdefault(ranks, []), self._taken.get((ranks, rank), 0)
            self._taken[ranks, rank] = number + 1
            if number == len(order):
                order.append((rank, what))
            first, expected = order[number]
            if what != expected:
                self.defect = self.defect or (
                    f"exchange {number + 1}: rank {first} calls {expected}, and rank {rank} {what}"
                )
                raise CommunicationError(self.defect)

    def wait(self, rank: int, what: str) -> None:
        """A rank waits in an exchange."""
        with self._lock:
            self._progress += 1
            self._waiting[rank] = what

    def leave(self, rank: int) -> None:
        """A rank has finished an exchange."""
        with self._lock:
            self._progress += 1
            self._waiting[rank] = ""

    def end(self, rank: int) -> None:
        """A rank's thread ends."""
        with self._lock:
            self._progress += 1
            self._ended[rank] = True

    @property
    def blocked(self) -> tuple[bool, int]:
        """Whether every rank waits or has ended, and a number that grows with each step."""
        with self._lock:
            states = zip(self._waiting, self._ended, strict=True)
            return all(waiting or ended for waiting, ended in states), self._progress

    def __str__(self) -> str:
        """What each rank does."""
        with self._lock:
            states = enumerate(zip(self._waiting, self._ended, strict=True))
            return "; ".join(
                f"rank {rank} {'has ended' if ended else f'waits in {waiting}' if waiting else 'computes'}"
                for rank, (waiting, ended) in states
            )


class Watched(Operation):
    """An exchange of one rank, in which the rank waits from `finish` on."""

    def __init__(self, inner: Operation, exchanges: Exchanges, rank: int, what: str) -> None:
        self._inner, self._exchanges, self._rank, self._what = inner, exchanges, rank, what

    def finish(self) -> Any:
        self._exchanges.wait(self._rank, self._what)
        try:
            return self._inner.finish()
        finally:
            self._exchanges.leave(self._rank)

    def done(self) -> bool:
        return self._inner.done()


class WatchedCommunicator(MemoryCommunicator):
    """Like MemoryCommunicator, and says what its rank does."""

    exchanges: Exchanges

    @classmethod
    def watched(
        cls, rank: int, size: int, clock: Clock, group: ThreadGroup, exchanges: Exchanges
    ) -> WatchedCommunicator:
        """The communicator of one rank."""
        made = cls(rank, size, clock, group)
        made.exchanges = exchanges
        return made

    def _meet(
        self, what: str, brings: Any, come_to: Callable[[list[Any]], Any], take: Callable[[Any], Any]
    ) -> Operation:
        rank = self.run_ranks[self.rank]
        self.exchanges.start(tuple(self.run_ranks), rank, what)
        return Watched(super()._meet(what, brings, come_to, take), self.exchanges, rank, what)

    def _irecv(self, buffer: Tensor, source: int) -> Operation:
        what = f"receive of {buffer.numel()} numbers from rank {self.run_ranks[source]}"
        rank = self.run_ranks[self.rank]
        return Watched(super()._irecv(buffer, source), self.exchanges, rank, what)

    def _split(self, groups: list[list[int]], number: int) -> WatchedCommunicator:
        ranks = groups[number]
        shared = self._group.subgroup(ranks, self._next_split())
        return self.watched(ranks.index(self.rank), len(ranks), self.clock, shared, self.exchanges)


@contextmanager
def threads_in_torch(number: int) -> Iterator[None]:
    """Set the number of torch threads in the block, as a node does; idle threads spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(spec: RunSpec, checkpoints: Path | None = None, datasets: DatasetCache | None = None) -> Training:
    """Train as the spec says, on transport memory.

    Args:
        spec: a run with save_weights.
        checkpoints: directory of the checkpoints, if any.
        datasets: what loads the samples.

    Raises:
        DeadlockError: Ranks wait for ever.
        Exception: The first exception of a rank.
    """
    size, task = spec.world_size, Task(spec, Path(), datasets or DatasetCache())
    _ = task.data  # loaded before the ranks are started
    events = [RecordedEvents(rank) for rank in range(size)]
    with tempfile.TemporaryDirectory() as name, threads_in_torch(spec.threads):

        def rank_trains(comm: WatchedCommunicator) -> TrainResult:
            context = NodeContext(
                comm.rank, size, "memory", Path(), out_dir=Path(name), checkpoint_dir=checkpoints
            )
            return train_rank(context, task, events[comm.rank], comm)

        outcomes, exchanges = _on_threads(size, rank_trains)
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        for error in sorted(errors, key=lambda error: isinstance(error, CommunicationError)):
            if isinstance(error, CommunicationError) and (found := exchanges.defect or exchanges.deadlock):
                raise DeadlockError(found) from error
            raise error
        traces = [read_trace(path) for path in sorted(Path(name).glob("trace-*.bin"))]
        weights = np.load(Path(name) / "weights.npy")
        return Training(weights, outcomes, [each.events for each in events], traces)


class UnevaluatedSession(Session):
    """One rank's training, whose result is the final weights alone."""

    def _evaluate_epoch(self, *_: Any, **__: Any) -> bool:
        with self._replica.evaluating():
            return False

    def result(self) -> Any:
        """The flat weights of the whole model; None if another rank has them."""
        return self._replica.full_weights()


def weights_of(task: Task) -> Tensor:
    """The flat weights after a training on transport memory, without evaluation, events and traces.

    Raises the first exception of a rank.
    """
    size = task.spec.world_size
    _ = task.data  # loaded before the ranks are started
    group = ThreadGroup(size)
    outcomes: list[Any] = [None] * size

    def rank_trains(rank: int) -> None:
        context = NodeContext(rank, size, "memory", Path())
        try:
            comm = MemoryCommunicator(rank, size, rank_clock(size), group)
            outcomes[rank] = train_rank(
                context, task, RecordedEvents(rank), comm, session_of=UnevaluatedSession
            )
        except Exception as error:
            outcomes[rank] = error
            group.abort()

    with threads_in_torch(task.spec.threads):
        threads = [threading.Thread(target=rank_trains, args=(rank,)) for rank in range(1, size)]
        for thread in threads:
            thread.start()
        rank_trains(0)
        for thread in threads:
            thread.join()
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    for error in sorted(errors, key=lambda error: isinstance(error, CommunicationError)):
        raise error
    weights: Tensor = outcomes[0]
    return weights


def together(size: int, body: Callable[[WatchedCommunicator], Any]) -> list[Any]:
    """Run `body` on so many ranks. Returns each rank's result, or the exception it raised."""

    def timed(comm: WatchedCommunicator) -> Any:
        comm.clock.start()
        return body(comm)

    outcomes, exchanges = _on_threads(size, timed)
    if exchanges.deadlock:
        raise DeadlockError(exchanges.deadlock)
    return outcomes


def _on_threads(size: int, body: Callable[[WatchedCommunicator], Any]) -> tuple[list[Any], Exchanges]:
    """Run `body` on so many ranks, each a thread, and wait for them.

    Returns:
        Each rank's result, or the exception it raised; and what they have exchanged.
    """
    group, exchanges = ThreadGroup(size), Exchanges(size)
    outcomes: list[Any] = [DeadlockError("a rank does not end")] * size

    def run(rank: int) -> None:
        try:
            comm = WatchedCommunicator.watched(rank, size, rank_clock(size), group, exchanges)
            outcomes[rank] = body(comm)
        except Exception as error:
            outcomes[rank] = error
            group.abort()
        finally:
            exchanges.end(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    _watch(threads, exchanges, group)
    return outcomes, exchanges


def _watch(threads: list[threading.Thread], exchanges: Exchanges, group: ThreadGroup) -> None:
    """Wait for the threads, and end those that wait for ever."""
    unchanged, seen = 0, -1
    while any(thread.is_alive() for thread in threads):
        next(thread for thread in threads if thread.is_alive()).join(POLL_S)
        blocked, progress = exchanges.blocked
        unchanged = unchanged + 1 if blocked and progress == seen else 0
        seen = progress
        if unchanged == POLLS and any(thread.is_alive() for thread in threads):
            exchanges.deadlock = exchanges.deadlock or str(exchanges)
            group.abort()
        elif unchanged > 2 * POLLS:
            break  # a thread waits outside of our exchanges
