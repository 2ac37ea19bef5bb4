"""Runs that continue, with random schedules of nodes that are lost and return.

A run passes when it is ok, all nodes that finish have the same weights, no process is left, and the
certificate's lost samples equal a recount: those of the partitions of nodes and epochs without a record.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.results.records import RunResult
from tests.support.processes import node_processes
from tests.support.runs import RecordingDisplay, data_directory, execute
from trainer.core.events import Event
from trainer.core.rng import RngFactory
from trainer.spec.run_spec import RunSpec
from trainer.training.partition import partition

STRATEGIES = ["local_sgd", "diloco", "gossip"]
PARTITIONERS: list[Any] = ["random_partition", "quantity", {"name": "dirichlet", "alpha": 0.3}]


def main(times: int, seed: int) -> int:
    """Execute runs `seed`, `seed` + 1, … on local processes; returns the exit code."""
    happened, bad = Counter[str](), 0
    with TemporaryDirectory(prefix="shardyard-losses-") as name:
        for number in range(seed, seed + times):
            run, display = draw(number), RecordingDisplay()
            result = execute(run, Path(name) / str(number), display=display)
            wrong = judge(result, display.seen, Path(name))
            happened.update(event.kind for event in display.seen)
            bad += bool(wrong)
            faults = [fault.model_dump(exclude_none=True) for fault in run.faults] if wrong else ""
            what = f"{run.name_of('strategy')} on {run.size_label}, {len(run.faults)} losses"
            print(f"{number}: {what}: {'; '.join(wrong) or 'ok'} {faults}", flush=True)
    happenings = f"{happened['died']} losses, {happened['waiting']} returns"
    print(f"{times - bad} of {times} good: {happenings}")
    return 1 if bad else 0


def draw(seed: int) -> RunSpec:
    """A run with up to three losses. One node is never lost: it keeps the weights."""
    draws = random.Random(seed)
    nodes = draws.choice([3, 4])
    others = draws.sample(range(nodes), nodes - 1)
    fields = {
        "strategy": draws.choice(STRATEGIES),
        "partitioner": draws.choice(PARTITIONERS),
        "faults": [loss(draws, draws.choice(others)) for _ in range(draws.randint(1, 3))],
    }
    common = {"transport": "gloo", "dataset": "digits", "model": "mlp", "epochs": 12, "timeout_s": 60}
    return RunSpec.model_validate({**common, **fields, "on_loss": "continue", "nodes": nodes, "seed": seed})


def loss(draws: random.Random, node: int) -> dict[str, Any]:
    """The loss of a node before a step or in the middle of anything."""
    step = draws.randint(1, 100)
    # Not before the first step: only node 0 has the first weights, and the run ends with it.
    second = max(0.1, round(draws.uniform(0, 2), 2))
    returns = {"return_after": round(draws.uniform(0.05, 1), 2)} if draws.random() < 0.75 else {}
    return {"kill": {"node": node, **returns}, "at": draws.choice([{"step": step}, {"second": second}])}


def judge(result: RunResult, events: Sequence[Event], directory: Path) -> list[str]:
    """The failures of a run. directory: of all results."""
    wrong = [f"process {process.pid} is left" for process in node_processes(directory)]
    if result.status != "ok":
        return [f"{result.status}: {result.cause}", *wrong]
    if not result.replicas_equal:
        wrong.append("weights differ")
    if (counted := recount(result.run, events)) != result.samples_lost:
        wrong.append(f"{result.samples_lost} samples lost, recounted {counted}")
    return wrong


def recount(run: RunSpec, events: Sequence[Event]) -> int:
    """The samples of all partitions and epochs of which no node has written a record."""
    trained = {(event.fields["epoch"], event.rank) for event in events if event.kind == "partition"}
    labels, rngs = run.dataset.load(data_directory()).train.labels, RngFactory(run.seed, run.vary)
    return sum(
        len(part)
        for epoch in range(1, run.epochs + 1)
        for rank, part in enumerate(partition(run, rngs, labels, run.num_replicas, epoch))
        if (epoch, rank) not in trained
    )
