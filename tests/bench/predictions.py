"""Cluster time as a prediction: from recorded runs, written and hashed before the runs that it predicts.

An experiment records runs, predicts from their traces how long other runs will take, prints the SHA-256 of
the predictions, executes these runs, and compares their wall time with the predictions. So does the report,
except that its runs predict their own time.

- A core for each rank: recorded on one core, measured on as many cores as there are ranks. What exchanges
  cost is learned from runs of other seeds with a core for each rank.
- Quotas: recorded in containers that share the cores, measured with a quota for each.
- Links: recorded in containers without links, measured over shaped ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

from orchestrator.replay.described import Costs, fits_cores, has_cores
from orchestrator.replay.run import NoClusterTime, replay_run
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.docker.runtime import links_missing
from tests.bench.runs import runs_on
from tests.support.containers import containers_missing
from tests.unit.training import fields_for
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.spec.traces import untraced_reason

RUN: dict[str, Any] = {"dataset": "digits", "model": "lenet", "lr": 0.02, "batch_size": 32, "epochs": 5}
SEEDS = (0, 1, 2)
CALIBRATING_SEEDS = (3, 4)
QUOTA_SHARE = 0.8  # of the cores, for all nodes together
QUOTA_NODES = 4
LINK_STRATEGIES = (
    ("all_reduce", "gloo"),
    ("ddp", "gloo"),
    ("reduce_broadcast", "mpi"),
    ("parameter_server", "rpc"),
    ("pipeline", "gloo"),
    ("tensor_parallel", "gloo"),
)
LINKS = [(mbit, ms) for mbit in (10, 100, 1000) for ms in (0, 1, 10)]
LINK_EPOCHS = 2

Recorded = dict[str, RunResult]  # by key
# The name of a prediction, the key of the run from which it follows, and the run that it is about.
Plan = Sequence[tuple[str, str, RunSpec]]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        cores(Path(directory))
        if reason := containers_missing():
            print(f"quotas and links: skipped, {reason}")
            return
        quotas(Path(directory))
        if reason := links_missing():
            print(f"links: skipped, {reason}")
            return
        links(Path(directory))


def cores(directory: Path) -> None:
    """Two nodes with a core each, from runs on one core."""
    print("two nodes with a core each, predicted from runs on one core; targets: median 5 %, worst 15 %")
    with runs_on("local", results=directory / "calibrating") as execute:
        execute(next(strategies(SEEDS[0])))  # with cold caches; it does not count
        runs = [run for seed in CALIBRATING_SEEDS for run in strategies(seed)]
        calibrating = {run.key: execute(run) for run in runs}
    runs = [run for seed in SEEDS for run in strategies(seed)]
    with on_one_core(), runs_on("local", results=directory / "one core") as execute:
        recorded = {run.key: execute(run) for run in runs}
    plan = [(label(run), run.key, run) for run in runs]
    costs = Costs.of(
        [
            *of_directory(directory / "calibrating", calibrating),
            *of_directory(directory / "one core", recorded),
        ]
    )
    predicted = predictions(directory / "one core", recorded, plan, costs)
    compare(plan, recorded, predicted, measured := measure("local", directory / "measured", plan))
    repeatability(calibrating.values(), measured)


def quotas(directory: Path) -> None:
    """Four nodes with quotas, from containers that share the cores."""
    cpus = round(QUOTA_SHARE * (os.cpu_count() or 1) / QUOTA_NODES, 2)
    print(f"{QUOTA_NODES} containers with {cpus} cpus each, predicted from full speed; target: median 7 %")
    plan = []
    with runs_on("docker", results=directory / "shared") as execute:
        recorded: Recorded = {}
        for seed in SEEDS:
            for strategy in ("one_shot", "local_sgd"):
                fields = {**RUN, "strategy": strategy, "transport": "gloo", "seed": seed}
                # Two nodes, each with a core, show what exchanges cost.
                for nodes in (2, QUOTA_NODES):
                    run = RunSpec.model_validate({**fields, "nodes": nodes})
                    recorded[run.key] = execute(run)
                plan.append(
                    (label(run), run.key, RunSpec.model_validate({**run_fields(run), "cpus": cpus}))
                )
    costs = Costs.of(of_directory(directory / "shared", recorded))
    predicted = predictions(directory / "shared", recorded, plan, costs)
    compare(plan, recorded, predicted, measure("docker", directory / "quotas", plan))


def links(directory: Path) -> None:
    """Two nodes over shaped links, from containers without them."""
    print("two containers over links, predicted from a bridge; target: median 10 %")
    plan = []
    with runs_on("docker", results=directory / "bridge") as execute:
        recorded: Recorded = {}
        for strategy, transport in LINK_STRATEGIES:
            nodes = max(2, STRATEGIES.load(strategy).min_nodes)
            fields = {
                **RUN,
                "strategy": strategy,
                "transport": transport,
                "nodes": nodes,
                "epochs": LINK_EPOCHS,
            }
            for seed in (*CALIBRATING_SEEDS, SEEDS[0]):
                run = RunSpec.model_validate({**fields, "seed": seed})
                recorded[run.key] = execute(run)
            for mbit, ms in LINKS:
                link = {"bandwidth_mbit": mbit, "latency_ms": ms}
                shaped = RunSpec.model_validate({**run_fields(run), "link": link})
                plan.append((f"{label(run)} {mbit} Mbit/s {ms} ms", run.key, shaped))
    costs = Costs.of(of_directory(directory / "bridge", recorded))
    predicted = predictions(directory / "bridge", recorded, plan, costs)
    compare(plan, recorded, predicted, measure("docker", directory / "links", plan))


def of_directory(directory: Path, recorded: Recorded) -> list[tuple[Path, RunResult]]:
    """The runs, each with its own directory."""
    return [(SweepPaths(directory).run(key).directory, result) for key, result in recorded.items()]


def strategies(seed: int) -> Iterator[RunSpec]:
    """A run of each strategy over each transport that connects processes, on as few nodes as it needs."""
    for name in STRATEGIES.entries:
        strategy = STRATEGIES.load(name)
        for transport in strategy.transports:
            nodes = max(2, strategy.min_nodes)
            fields = {"strategy": name, "transport": transport, "nodes": nodes, "seed": seed}
            if name == "serial" or transport not in ("gloo", "mpi", "rpc") or nodes > (os.cpu_count() or 1):
                continue
            run = RunSpec.model_validate({**RUN, **fields_for(name), **fields})
            if not untraced_reason(run):
                yield run


def label(run: RunSpec) -> str:
    return f"{run.name_of('strategy')} {run.transport} {run.nodes}"


def run_fields(run: RunSpec) -> dict[str, Any]:
    """The fields of a run that are not defaults."""
    return run.model_dump(mode="json", exclude_defaults=True)


@contextmanager
def on_one_core() -> Iterator[None]:
    """All processes that start meanwhile use one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def predictions(
    directory: Path, recorded: Mapping[str, RunResult], plan: Plan, costs: Costs
) -> list[float]:
    """Seconds that each run of the plan will take. Prints their hash."""
    found = []
    for name, key, run in plan:
        target = recorded[key].model_copy(update={"spec": run.model_dump(mode="json")})
        time = replay_run(
            SweepPaths(directory).run(key).directory, recorded[key].run, costs.cluster(target, key)
        )
        if isinstance(time, NoClusterTime):
            raise SystemExit(f"{name}: {time.reason}")
        found.append(time.cluster_s)
    written = json.dumps([[name, seconds] for (name, _, _), seconds in zip(plan, found, strict=True)])
    print(f"  {len(found)} predictions, SHA-256 {hashlib.sha256(written.encode()).hexdigest()}", flush=True)
    return found


def measure(runtime: str, directory: Path, plan: Plan) -> list[RunResult]:
    """Execute the runs of the plan."""
    with runs_on(runtime, results=directory) as execute:
        return [execute(run) for _, _, run in plan]


def compare(
    plan: Plan, recorded: Mapping[str, RunResult], predicted: Sequence[float], measured: Iterable[RunResult]
) -> None:
    """Print predictions beside wall times: medians over the runs of a name, and the errors of all runs.

    The CPU time of a recorded run beside that of the measured one shows what sharing cores adds to it.
    """
    rows: dict[str, list[tuple[float, float, float]]] = {}
    disturbed = 0
    for (name, key, _), seconds, result in zip(plan, predicted, measured, strict=True):
        wall_s = result.train_s or 0.0
        # A node with a quota waits for its core by definition.
        if fits_cores(result) and not has_cores(result):
            disturbed += 1
        else:
            cpu = (recorded[key].work_cpu_s or 0.0) / (result.work_cpu_s or 1.0) - 1
            rows.setdefault(name, []).append((seconds, wall_s, cpu))
    errors = []
    for name, times in rows.items():
        off = [seconds / wall_s - 1 for seconds, wall_s, _ in times]
        errors += [abs(each) for each in off]
        middle = [median(column) for column in zip(*times, strict=True)]
        print(
            f"  {name:42} predicted {middle[0]:7.3f} s  wall {middle[1]:7.3f} s  "
            f"error {median(off):+7.1%}  CPU {middle[2]:+6.1%}"
        )
    if errors:
        print(f"  error of {len(errors)} runs: median {median(errors):.1%}, worst {max(errors):.1%}")
    print(f"  {disturbed} runs left out: other processes used the cores", flush=True)


def repeatability(before: Iterable[RunResult], measured: Iterable[RunResult]) -> None:
    """Print how far wall times differ from those of the same strategy with other seeds, a while before.

    No prediction can be better than the truth repeats.
    """
    known: dict[str, list[float]] = {}
    for result in filter(has_cores, before):
        known.setdefault(label(result.run), []).append(result.train_s or 0.0)
    off = [
        abs((result.train_s or 0.0) / fmean(known[label(result.run)]) - 1)
        for result in filter(has_cores, measured)
        if label(result.run) in known
    ]
    if off:
        spread = f"median {median(off):.1%}, worst {max(off):.1%}"
        print(f"  wall time of {len(off)} runs against that of other seeds before: {spread}", flush=True)
