"""How far times of virtual nodes are from those of real ones. On request: it takes ten minutes.

Every strategy trains on 2, 3 and 4 nodes, in local processes and on virtual nodes. On 2 nodes the truth is
the wall time, if each node had a core to itself. On more, the nodes share the cores, and the truth is the
cluster time of their own traces. A virtual run has two times: its own, on the described cluster, and that
of its traces, replayed with the costs of exchanges that real runs with other seeds have shown.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from orchestrator.replay.described import Costs, has_cores
from orchestrator.replay.run import NoClusterTime, replay_run
from orchestrator.results.records import RunResult
from orchestrator.results.store import SweepPaths
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.bench.predictions import CALIBRATING_SEEDS, RUN, SEEDS, of_directory
from tests.bench.runs import runs_on
from tests.unit.training import fields_for
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Cluster

NODES = (2, 3, 4)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        real, virtual = Path(name) / "real", Path(name) / "virtual"
        recorded: dict[str, RunResult] = {}
        with runs_on("local", results=real) as execute:
            execute(next(runs(SEEDS[0])))  # with cold caches; it does not count
            for seed in (*CALIBRATING_SEEDS, *SEEDS):
                recorded |= {run.key: execute(run) for run in runs(seed)}
        calibrating = {run.key: recorded[run.key] for seed in CALIBRATING_SEEDS for run in runs(seed)}
        costs = Costs.of(of_directory(real, calibrating))
        errors: dict[tuple[str, int], list[tuple[float, float]]] = {}
        disturbed = 0
        with runs_on("virtual", results=virtual) as execute:
            execute(next(runs(CALIBRATING_SEEDS[0])))  # with cold caches; it does not count
            for run in (run for seed in SEEDS for run in runs(seed)):
                truth = recorded[run.key]
                cluster = costs.cluster(truth, run.key)
                if run.nodes == NODES[0]:
                    true_s = truth.train_s if has_cores(truth) else None
                else:
                    true_s = replayed(real, run, cluster, simulated=False)
                if not true_s:
                    disturbed += 1
                    continue
                played = execute(run)
                times = played.train_s or 0.0, replayed(virtual, run, cluster, simulated=True)
                row = errors.setdefault((run.name_of("strategy"), run.nodes), [])
                row.append((times[0] / true_s - 1, times[1] / true_s - 1))
    print("times of virtual nodes against real ones, median over seeds: as described; with measured costs")
    for (strategy, nodes), found in sorted(errors.items()):
        described, measured = (median(column) for column in zip(*found, strict=True))
        print(f"  {strategy:18} {nodes} nodes {described:+8.1%} {measured:+8.1%}")
    for nodes in NODES:
        rows = [each for (_, of), found in errors.items() if of == nodes for each in found]
        for number, kind in enumerate(("as described", "with measured costs")):
            off = [abs(row[number]) for row in rows]
            print(
                f"  {nodes} nodes, {kind}: median {median(off):.1%}, worst {max(off):.1%}, {len(off)} runs"
            )
    print(f"  {disturbed} runs left out: other processes used the cores", flush=True)


def runs(seed: int) -> Iterator[RunSpec]:
    """A run of each strategy that virtual nodes can have, on each number of nodes, over gloo."""
    supported = VirtualRuntime()
    for name in STRATEGIES.entries:
        for nodes in NODES:
            if "gloo" not in STRATEGIES.load(name).transports or nodes < STRATEGIES.load(name).min_nodes:
                continue
            fields = {"strategy": name, "transport": "gloo", "nodes": nodes, "seed": seed}
            with suppress(ValidationError):  # such as hybrid on 3 nodes
                run = RunSpec.model_validate({**RUN, **fields_for(name), **fields})
                if run.strategy.trains and not supported.unsupported_reason(run):
                    yield run


def replayed(directory: Path, run: RunSpec, cluster: Cluster, simulated: bool) -> float:
    """The cluster time of a run's traces, in seconds."""
    time = replay_run(SweepPaths(directory).run(run.key).directory, run, cluster, simulated)
    if isinstance(time, NoClusterTime):
        raise SystemExit(f"{run.key}: {time.reason}")
    return time.cluster_s
