"""Complete trainings on transport memory, in the test process."""

from __future__ import annotations

import io
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.comm.base import CommunicationError
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.context import NodeContext
from trainer.core.events import Event, EventWriter
from trainer.core.result import TrainResult
from trainer.core.trace import Trace, read_trace
from trainer.launch.ranks import rank_clock
from trainer.launch.ranks import train as train_rank
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task

SMALL = {
    "dataset": {"name": "synthetic", "samples": 120, "test_samples": 40, "noise": 1.0},
    "model": {"name": "mlp", "hidden": [8]},
    "batch_size": 10,
    "lr": 0.1,
    "epochs": 2,
}


class Notes(EventWriter):
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

    weights: those of rank 0, float32, shape (state,). results, events and traces: by rank.
    """

    weights: np.ndarray
    results: list[TrainResult]
    events: list[list[Event]]
    traces: list[Trace]

    def of(self, kind: str, rank: int = 0) -> list[Event]:
        return [event for event in self.events[rank] if event.kind == kind]

    @property
    def same_weights(self) -> bool:
        """Whether all ranks that have the weights of the whole model agree."""
        return len({result.weights_digest for result in self.results if result.weights_digest}) == 1


@contextmanager
def threads_in_torch(number: int) -> Iterator[None]:
    """Set the number of torch threads in the block, as a node does; idle threads spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(strategy: Any, ranks: int = 2, checkpoints: Path | None = None, **fields: Any) -> Training:
    """Train with one thread per rank. Raises the first exception of a rank.

    checkpoints: directory of the checkpoints, if any.
    """
    run = {**SMALL, "strategy": strategy, "nodes": ranks, "transport": "memory", **fields}
    spec = RunSpec.model_validate({**run, "save_weights": True})
    task = Task(spec, Path())
    assert task.data  # loaded before the ranks are started
    group = ThreadGroup(spec.world_size, timeout_s=20)
    outcomes: list[TrainResult | Exception] = [TimeoutError("a rank waits for ever")] * spec.world_size
    notes = [Notes(rank) for rank in range(spec.world_size)]
    with tempfile.TemporaryDirectory() as name, threads_in_torch(spec.threads):

        def rank_trains(rank: int) -> None:
            context = NodeContext(
                rank,
                spec.world_size,
                "memory",
                Path(),
                out_dir=Path(name),
                checkpoint_dir=checkpoints,
            )
            try:
                comm = MemoryCommunicator(rank, spec.world_size, rank_clock(spec.world_size), group)
                outcomes[rank] = train_rank(context, task, notes[rank], comm)
            except Exception as error:
                outcomes[rank] = error
                group.abort()

        threads = [
            threading.Thread(target=rank_trains, args=(rank,), daemon=True)
            for rank in range(spec.world_size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        for error in sorted(errors, key=lambda error: isinstance(error, CommunicationError)):
            raise error
        results = [outcome for outcome in outcomes if isinstance(outcome, TrainResult)]
        traces = [read_trace(path) for path in sorted(Path(name).glob("trace-*.bin"))]
        weights = np.load(Path(name) / "weights.npy")
        return Training(weights, results, [each.events for each in notes], traces)
