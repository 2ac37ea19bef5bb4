"""Predictions for 3 and 4 nodes from runs on two, registered before. On request: it takes half an hour.

A node is a container with half a core, so a machine with two cores has four of them without sharing
cores, and measured times are wall times. Links are shaped.

`SHARDYARD_LADDER=FOLDER make bench ARGS=ladder` executes the runs on 1 and 2 nodes, writes what they
predict to the folder, prints its SHA-256 and ends, so that the hash can be published. The next call
executes the runs that are predicted, and compares.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.prediction.evidence import evidence_of
from orchestrator.prediction.forecast import Question
from orchestrator.prediction.simulated import simulations
from orchestrator.results.store import SweepPaths, read_result
from orchestrator.runtimes.virtual.runtime import VirtualRuntime
from tests.bench.predict import Predicted, Runs, by_key, predict, report
from tests.bench.runs import runs_on
from tests.support.containers import containers_missing
from trainer.spec.registries import STRATEGIES
from trainer.spec.run_spec import RunSpec

FOLDER = "SHARDYARD_LADDER"
FITTED, PREDICTED = (1, 2), (4, 3)
STRATEGY_NAMES = (
    "serial",
    "one_shot",
    "local_sgd",
    "diloco",
    "streaming_diloco",
    "gossip",
    "all_reduce",
    "delayed_all_reduce",
    "reduce_broadcast",
    "parameter_server",
    "async_parameter_server",
    "ddp",
    "zero1",
    "zero2",
    "zero3",
    "fsdp",
    "pipeline",
    "tensor_parallel",
    "expert_parallel",
)
TOKENS = {"name": "copy", "length": 15, "tokens": 8, "samples": 1024, "test_samples": 256}
GPT = {"name": "gpt", "layers": 2, "width": 64, "heads": 8}
WORKLOADS: Sequence[dict[str, Any]] = (
    {"dataset": "digits", "model": "lenet", "batch_size": 32},
    {"dataset": "digits", "model": {"name": "mlp", "hidden": [256, 256, 256]}, "batch_size": 16},
    {"dataset": TOKENS, "model": GPT, "batch_size": 8, "optimizer": "adamw", "lr": 0.003},
)
RUN = {"lr": 0.02, "epochs": 2, "cpus": 0.5, "seed": 0}
LINK = {"latency_ms": 1.0, "bandwidth_mbit": 200.0}
# Quotas are shared out in periods, in which a node that waits for another loses what it did not use.
ENGINE_PERIOD_MS, PERIOD_MS, POLL_S = 100, 10, 0.02
GROUPS = Path("/sys/fs/cgroup/cpu/docker")


def main() -> None:
    if not (folder := os.environ.get(FOLDER)):
        sys.exit(f"skipped: {FOLDER} names no folder for runs and predictions")
    if reason := containers_missing():
        sys.exit(f"skipped: {reason}")
    directory = Path(folder)
    file, known = directory / "predictions.json", execute(directory, [*runs(FITTED)])
    if not file.exists():
        with simulations(directory / "data") as played:
            found = predict(evidence_of(known), Question(PREDICTED), played)
        file.write_text(json.dumps([[*key, *astuple(each)] for key, each in found.items()], indent=0))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        print(f"{len(found)} predictions with intervals, SHA-256 {digest}")
        print("Publish the hash, then run this again.")
        return
    predicted = {(name, nodes): Predicted(*rest) for name, nodes, *rest in json.loads(file.read_text())}
    measured = by_key(evidence_of([*known, *execute(directory, [*runs(PREDICTED)])]))
    report(predicted, measured)


def execute(directory: Path, planned: Sequence[RunSpec]) -> Runs:
    """The results of runs, of which those that the directory lacks are executed."""
    paths = SweepPaths(directory / "runs")
    missing = [run for run in planned if read_result(paths.run(run.key).result) is None]
    if missing:
        with period_of_quotas(), runs_on("docker", results=paths.directory) as train:
            for at, run in enumerate(missing, 1):
                print(f"  {at}/{len(missing)} {run.key} {train(run).train_s:.2f} s", flush=True)
    results = [(paths.run(run.key), read_result(paths.run(run.key).result)) for run in planned]
    return [(place, result) for place, result in results if result is not None]


def runs(numbers: Sequence[int]) -> Iterator[RunSpec]:
    """The runs on so many nodes, those with equal nodes together."""
    supported = VirtualRuntime()
    for nodes in numbers:
        for workload in WORKLOADS:
            for name in STRATEGY_NAMES:
                if (nodes == 1) != (name == "serial"):
                    continue
                fields = {**RUN, **workload, "strategy": name, "nodes": nodes}
                if name == "expert_parallel":
                    if workload["dataset"] is not TOKENS:
                        continue
                    fields["model"] = {**GPT, "experts": 8}
                if nodes > 1:
                    transports = STRATEGIES.load(name).transports
                    fields |= {"link": LINK, "transport": "gloo" if "gloo" in transports else "rpc"}
                with suppress(ValidationError):  # such as a GPT with 8 heads on 3 nodes
                    run = RunSpec.model_validate(fields)
                    if not supported.unsupported_reason(run):
                        yield run


@contextmanager
def period_of_quotas() -> Iterator[None]:
    """Quotas that the engine sets meanwhile have a short period."""
    ended = threading.Event()
    thread = threading.Thread(target=_shorten, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _shorten(ended: threading.Event) -> None:
    while not ended.wait(POLL_S):
        for quota in GROUPS.glob("*/cpu.cfs_quota_us"):
            with suppress(OSError):  # its container has ended
                period = quota.with_name("cpu.cfs_period_us")
                allowed_us, of_us = int(quota.read_text()), int(period.read_text())
                if of_us == ENGINE_PERIOD_MS * 1000 and 0 < allowed_us < of_us:
                    quota.write_text(str(allowed_us * PERIOD_MS // ENGINE_PERIOD_MS))
                    period.write_text(str(PERIOD_MS * 1000))


if __name__ == "__main__":
    main()
