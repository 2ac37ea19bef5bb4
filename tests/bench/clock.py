"""The clock and what is built on it: what recording costs, and cluster time as a prediction.

Overhead of recording: ranks train as in a local run, and take turns from epoch to epoch: no trace, `steps`,
`full`. All ranks change at the same time, so other load on the machine affects all three. CPU time says
more than wall time where ranks share cores with each other or with other processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from tests.bench import predictions
from tests.bench.measuring import ratio
from tests.bench.ranks import measure_as_rank, measured_by_ranks
from trainer.comm.base import Communicator
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.trace import Kind
from trainer.core.tracer import Tracer
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.spec.traces import untraced_reason
from trainer.training.session import Session
from trainer.training.task import Task

MODES = ("none", "steps", "full")
TURNS = 30
PATIENCE_S = 300
MAX_RECORDS = 10**6
# Steps of about a millisecond: the shorter the step, the larger the share of its records.
RUN: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": 1280, "test_samples": 32},
    "model": {"name": "mlp", "hidden": [64]},
    "batch_size": 32,
    "lr": 0.01,
    "timeout_s": PATIENCE_S,
}
Turns = dict[str, list[list[float]]]  # wall and CPU seconds of a step, and its records, by mode and turn


def main() -> None:
    recording()
    predictions.main()


def recording() -> None:
    """Print what recording costs, for each strategy that is traced."""
    print(f"overhead of recording: mlp, batches of {RUN['batch_size']}, {TURNS} turns of an epoch per mode")
    print(f"  a record takes {1e6 * seconds_per_record():.2f} µs of CPU time in a loop")
    print("  rank 0's step without a trace, and ratios (quartiles of the turns' ratios)")
    for name, kind in ((name, STRATEGIES.load(name)) for name in STRATEGIES.entries):
        # The ranks are processes of their own, as they are in containers.
        transport = next((each for each in kind.transports if each in ("gloo", "rpc")), "memory")
        ranks, epochs = 1 if name == "serial" else max(2, kind.min_nodes), len(MODES) * (TURNS + 1)
        fields = {"strategy": name, "transport": transport, "nodes": ranks, "epochs": epochs}
        run = RunSpec.model_validate({**RUN, **fields})
        found = untraced_reason(run) or row(measured_by_ranks(run, __name__, PATIENCE_S))
        print(f"  {name:24} {transport:6} {ranks} ranks  {found}", flush=True)


def seconds_per_record() -> float:
    """CPU seconds of a record, where exchanges and work alternate; the best of several loops."""
    found = []
    for _ in range(5):
        seconds = {"data": 0.0, "compute": 0.0, "other": 0.0}
        tracer = Tracer(seconds, 0.0, "steps", range(2), MAX_RECORDS)
        began = time.thread_time()
        for _ in range(50_000):
            seconds["compute"] += 0.001
            tracer.exchange(Kind.ALL_REDUCE, 0, 1.0, 2.0, 4096)
        found.append((time.thread_time() - began) / tracer.count)
    return min(found)


def row(turns: Turns) -> str:
    """A step in milliseconds, and the ratios of wall and CPU time."""
    cells = [f"{1e3 * median(wall for wall, _, _ in turns['none']):6.2f} ms"]
    for mode in MODES[1:]:
        for index, what in enumerate(("wall", "CPU")):
            one, other = ([each[index] for each in turns[name]] for name in (mode, "none"))
            cells.append(f"{mode} {what} {ratio(one, other, 3)}")
    records = [f"{max(each[2] for each in turns[mode]):.1f}" for mode in MODES[1:]]
    return "  ".join([*cells, f"records per step {', '.join(records)}"])


def turns_of(comm: Communicator, context: NodeContext, run: RunSpec) -> Turns:
    """What a rank measures."""
    with open(os.devnull, "w") as nowhere:
        events = EventWriter(run.key, context.rank, None, nowhere)
        session = TakesTurns(context, Task(run, context.data_dir), events, comm)
        run.strategy.train(session)
        session.clock.stop()
        return session.turns


class TakesTurns(Session):
    """A session whose epochs take turns in what they record."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.turns: Turns = {mode: [] for mode in MODES}
        self._tracers: Mapping[str, Tracer | None] = {}

    def _start_trace(self, complete: bool) -> None:
        def tracer(mode: Any) -> Tracer:
            clock = self.clock
            return Tracer(clock.cpu_seconds, clock.booked_until, mode, range(self.size), MAX_RECORDS)

        self._tracers = {"none": None, "steps": tracer("steps"), "full": tracer("full")}

    def epochs(self, **options: Any) -> Iterator[int]:
        for number, epoch in enumerate(super().epochs(**options)):
            turn, index = divmod(number, len(MODES))
            mode = MODES[(index + turn) % len(MODES)]  # another one is first in each turn
            self.clock.tracer = tracer = self._tracers[mode]
            if tracer:
                tracer.skip_work()
            before, records, steps = self.clock.lap(), tracer.count if tracer else 0, self.steps_taken
            yield epoch
            gained = [b - a for a, b in zip(before, self.clock.lap(), strict=True)]
            gained.append(tracer.count - records if tracer else 0)
            if turn:  # the first one warms up
                self.turns[mode].append([each / (self.steps_taken - steps) for each in gained])


if __name__ == "__main__":
    measure_as_rank(turns_of)
