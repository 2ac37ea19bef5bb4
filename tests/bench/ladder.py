"""Predictions for more nodes, registered before the runs that they are about. On request: it takes an hour.

A node is a container with a fifth of a core, so a machine with two cores has eight of them without sharing
cores, and measured times are wall times. Links are shaped. Each rung fits on few nodes and predicts up to
twice as many, over a link that the fitted runs have and over one that they do not have on so many nodes:

1. Runs on 1 and 2 nodes over the fast link predict 3 and 4 nodes over both.
2. Runs on 1 to 4 nodes over both links predict 6 and 8.

`SHARDYARD_LADDER=FOLDER make bench ARGS=ladder` continues what the folder has. It executes the runs that
the next predictions need, prints the SHA-256 of the predictions with their intervals, and ends, so that the
hash can be published before the runs that they are about. The next call executes these and compares.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.prediction.evidence import Evidence, evidence_of
from orchestrator.prediction.forecast import Question
from orchestrator.prediction.simulated import Simulations, simulations
from orchestrator.results.records import RunResult
from orchestrator.results.store import RunPaths, SweepPaths, read_result
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.bench.predict import Key, Predicted, Runs, by_key, fit, link_of, predict, report, sha256
from tests.bench.runs import runs_on
from tests.bench.slow_motion import period_of_quotas
from tests.support.containers import containers_missing
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.time_model.cluster import Link

FOLDER = "SHARDYARD_LADDER"
CPUS = 0.2
PERIOD_MS = 10
FAST = {"latency_ms": 1.0, "bandwidth_mbit": 200.0}
SLOW = {"latency_ms": 5.0, "bandwidth_mbit": 50.0}
WORKLOADS: Sequence[dict[str, Any]] = (
    {"model": "lenet", "batch_size": 32},
    {"model": "mlp", "batch_size": 16},
    {"model": {"name": "mlp", "hidden": [512, 512]}, "batch_size": 64},
)
RUN = {"dataset": "digits", "lr": 0.02, "epochs": 3, "cpus": CPUS}
REPEATED = (0, 1)  # seeds of the runs that are fitted first: they show how times repeat


@dataclass(frozen=True)
class Rung:
    """Runs that are fitted, and what they predict.

    nodes: of the runs, with their links and seeds. slow_workloads: those over the slow link.
    """

    nodes: Sequence[int]
    links: Sequence[dict[str, float]]
    seeds: Sequence[int]
    predicts: Sequence[int]
    slow_workloads: int = len(WORKLOADS)


RUNGS = (Rung((1, 2), (FAST,), REPEATED, (3, 4)), Rung((3, 4), (FAST, SLOW), (0,), (6, 8)))
LAST = Rung((6, 8), (FAST, SLOW), (0,), (), slow_workloads=2)  # the third one takes a minute a run


def main() -> None:
    if not (folder := os.environ.get(FOLDER)):
        sys.exit(f"skipped: {FOLDER} names no folder for runs and predictions")
    if reason := containers_missing():
        sys.exit(f"skipped: {reason}")
    directory, known = Path(folder), list[tuple[RunPaths, RunResult]]()
    earlier: dict[Key, Predicted] = {}
    with simulations(directory / "data") as played:
        for rung in (*RUNGS, LAST):
            known += execute(directory, [*runs(rung)])
            evidence = evidence_of(known)
            if earlier:
                report(earlier, by_key(evidence))
            if not rung.predicts:
                fit(evidence, played)
                return
            file = directory / f"predictions-{rung.predicts[-1]}.json"
            if new := not file.exists():
                write(file, on_both_links(evidence, rung.predicts, played))
            earlier = read(file)
            print(f"{len(earlier)} predictions with intervals, SHA-256 {sha256(earlier)}", flush=True)
            if new:
                print("Publish the hash, then run this again.")
                return


def on_both_links(evidence: Evidence, nodes: Sequence[int], played: Simulations) -> dict[Key, Predicted]:
    """What the evidence predicts on so many nodes."""
    found: dict[Key, Predicted] = {}
    for link in (FAST, SLOW):
        given = Link(latency_s=link["latency_ms"] / 1000, bytes_per_s=link["bandwidth_mbit"] * 1e6 / 8)
        found |= predict(evidence, Question(nodes, given), played, text_of(link))
    return found


def write(file: Path, predicted: dict[Key, Predicted]) -> None:
    """Write predictions. Those of strategies that train in a simulation do not repeat exactly."""
    file.write_text(json.dumps([[*key, *astuple(each)] for key, each in predicted.items()], indent=0))


def read(file: Path) -> dict[Key, Predicted]:
    """Read predictions."""
    return {
        (name, nodes, link): Predicted(*rest) for name, nodes, link, *rest in json.loads(file.read_text())
    }


def execute(directory: Path, planned: Sequence[RunSpec]) -> Runs:
    """The results of runs, of which those that the directory lacks are executed."""
    paths = SweepPaths(directory / "runs")
    missing = [run for run in planned if read_result(paths.run(run.key).result) is None]
    if missing:
        with period_of_quotas(PERIOD_MS), runs_on("docker", results=paths.directory) as train:
            for at, run in enumerate(missing, 1):
                took_s = train(run).train_s
                print(f"  {at}/{len(missing)} {run.key} {took_s:.2f} s", flush=True)
    results = [(paths.run(run.key), read_result(paths.run(run.key).result)) for run in planned]
    return [(place, result) for place, result in results if result is not None]


def runs(rung: Rung) -> Iterator[RunSpec]:
    """The runs of a rung, those with equal nodes and links together."""
    supported = VirtualRuntime()
    for nodes in rung.nodes:
        for link in rung.links if nodes > 1 else rung.links[:1]:
            for seed in rung.seeds:
                for workload in WORKLOADS[: rung.slow_workloads] if link is SLOW else WORKLOADS:
                    for name in STRATEGIES.entries:
                        kind = STRATEGIES.load(name)
                        if (nodes == 1) != (name == "serial"):
                            continue
                        connected = {"link": link} if nodes > 1 else {}
                        transports = [each for each in ("gloo", "rpc") if each in kind.transports]
                        fields = {
                            **RUN,
                            **workload,
                            **connected,
                            "strategy": name,
                            "nodes": nodes,
                            "seed": seed,
                        }
                        if nodes > 1:
                            fields |= {"transport": transports[0]} if transports else {}
                        with suppress(ValidationError):  # such as hybrid on 3 nodes
                            run = RunSpec.model_validate(fields)
                            if run.strategy.trains and not supported.unsupported_reason(run):
                                yield run


def text_of(link: dict[str, float]) -> str:
    return link_of(
        RunSpec.model_validate({"nodes": 2, "strategy": "one_shot", "transport": "gloo", "link": link})
    )


if __name__ == "__main__":
    main()
