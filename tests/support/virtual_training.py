"""Complete trainings on virtual nodes, in this process."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.core.context import NodeContext
from trainer.core.events import Event
from trainer.core.result import TrainResult
from trainer.core.trace import Trace, read_trace
from trainer.data.cache import DatasetCache
from trainer.launch.ranks import train as train_rank
from trainer.launch.threads import RecordedEvents, threads_in_torch
from trainer.spec.run_spec import RunSpec
from trainer.time_model.outcome import RankReplay
from trainer.training.task import Task
from trainer.virtual.communicator import VirtualCommunicator
from trainer.virtual.options import MEASURED, VirtualOptions
from trainer.virtual.run import in_turns, session_kind
from trainer.virtual.sample import Sample, given_costs
from trainer.virtual.workers import Share


@dataclass
class VirtualTraining:
    """The outcome of a training: weights of rank 0, if it has saved them; the others by rank."""

    weights: npt.NDArray[np.float32]
    results: list[TrainResult]
    events: list[list[Event]]
    traces: list[Trace]
    times: Sequence[RankReplay]

    @property
    def cluster_s(self) -> float:
        return max(rank.end_s for rank in self.times)


def train_virtually(
    spec: RunSpec,
    options: VirtualOptions = MEASURED,
    datasets: DatasetCache | None = None,
    checkpoints: Path | None = None,
) -> VirtualTraining:
    """Train as the spec says. Raises the first exception of a rank.

    checkpoints: directory of the checkpoints, if any.
    """
    task, size = Task(spec, Path(), datasets or DatasetCache()), spec.world_size
    _ = task.data
    events = [RecordedEvents(rank) for rank in range(size)]
    outcomes: list[TrainResult | Exception | None] = [None] * size
    with tempfile.TemporaryDirectory() as name, threads_in_torch(1):
        costs = given_costs(task, options)
        sample = None if options.trains else Sample(task, costs)
        session_of = session_kind(task, sample)

        def train(comm: VirtualCommunicator) -> None:
            context = NodeContext(
                comm.rank, size, spec.transport, Path(), out_dir=Path(name), checkpoint_dir=checkpoints
            )
            try:
                outcomes[comm.rank] = train_rank(
                    context, task, events[comm.rank], comm, session_of=session_of
                )
            except Exception as error:
                outcomes[comm.rank] = error
                comm.abort()

        workers = min(options.workers, size)
        share = Share.fork(workers, size) if workers > 1 else None

        def train_share() -> bool:
            times.extend(in_turns(train, spec, costs, sample, share))
            if share and share.parent:
                found = [(outcomes[rank], events[rank].events) for rank in share.ranks]
                (Path(name) / f"outcomes-{share.ranks[0]}").write_bytes(pickle.dumps(found))
            return True

        times: list[RankReplay] = []
        if share is None:
            train_share()
        elif share.run(train_share, lambda rank: events[rank]):
            for path in Path(name).glob("outcomes-*"):
                first = _rank(path)
                for rank, (outcome, own) in enumerate(pickle.loads(path.read_bytes()), first):
                    outcomes[rank], events[rank].events[:] = outcome, own
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        results = [outcome for outcome in outcomes if isinstance(outcome, TrainResult)]
        paths = sorted(Path(name).glob("trace-*.bin"), key=_rank)
        traces = [read_trace(path) for path in paths]
        weights = np.load(Path(name) / "weights.npy") if options.trains else np.zeros(0, np.float32)
    return VirtualTraining(weights, results, [each.events for each in events], traces, times)


def _rank(path: Path) -> int:
    return int(path.stem.partition("-")[2])
