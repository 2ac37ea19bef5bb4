"""Bytes counted by the containers' network interfaces, compared with the payload counted by the ranks.

Nothing is subtracted. A run that exchanges almost nothing shows the bytes sent before and after training.
"""

from __future__ import annotations

import sys
from typing import Any

from orchestrator.results.records import RunResult
from tests.bench.runs import Execute, runs_on
from tests.support.containers import containers_missing
from trainer.spec.run_spec import RunSpec

PIXELS, CLASSES, BATCH = 64, 10, 4
NODES = (2, 3, 4)
# Strategy, floats of the model, and enough steps to make start-up negligible.
ROWS = [
    ("all_reduce", 1_000, 2000),
    ("all_reduce", 5_000, 500),
    ("all_reduce", 100_000, 60),
    ("all_reduce", 1_000_000, 10),
    ("all_gather", 1_000_000, 10),
    ("reduce_broadcast", 1_000_000, 10),
    ("one_shot", 4_000_000, 1),
]


def main() -> None:
    if reason := containers_missing():
        print(f"bytes: skipped, {reason}")
        return
    print("bytes sent by the nodes' interfaces, and payload counted by the ranks")
    print(f"  {'run':48} {'interfaces':>14} {'counted':>14}      ratio  busiest node")
    with runs_on("docker") as execute:
        for transport in ("mpi", "gloo"):
            for nodes in NODES:
                quiet = one(execute, transport, nodes, "one_shot", 1, init="independent")
                show(f"{transport}, {nodes} nodes, almost nothing exchanged", quiet)
                for strategy, floats, steps in ROWS:
                    result = one(execute, transport, nodes, strategy, steps, hidden(floats))
                    show(f"{transport}, {nodes} nodes, {strategy}, {floats:,} × {steps}", result)


def show(label: str, result: RunResult) -> None:
    """Print one line. Busiest node: the largest interface count divided by a rank's largest payload."""
    interfaces = [usage.sent_bytes for usage in result.usage if usage.sent_bytes and usage.ranks]
    if len(interfaces) < len(result.ranks):
        sys.exit(f"{result.key}: sent_bytes of some containers is missing")
    counted = [rank.bytes_sent for rank in result.ranks]
    ratios = f"{sum(interfaces) / sum(counted):10.3f} {max(interfaces) / max(counted):13.3f}"
    enough = sum(counted) > sum(interfaces) / 10  # otherwise start-up dominates the ratio
    sums = f"{sum(interfaces):14,.0f} {sum(counted):14,.0f}"
    print(f"  {label:48} {sums} {ratios if enough else ''}", flush=True)


def one(
    execute: Execute, transport: str, nodes: int, name: str, steps: int, width: int = 1, **parameters: Any
) -> RunResult:
    """A run of one epoch."""
    samples = nodes * BATCH * steps
    fields = {
        "strategy": {"name": name, **parameters},
        "transport": transport,
        "nodes": nodes,
        "epochs": 1,
        "batch_size": BATCH,
        "dataset": {"name": "synthetic", "samples": samples, "test_samples": 64, "height": 8, "width": 8},
        "model": {"name": "mlp", "hidden": [width]},
        "lr": 0.001,
    }
    return execute(RunSpec.model_validate(fields))


def hidden(floats: int) -> int:
    """The width at which a perceptron with one hidden layer has about `floats` parameters."""
    return round((floats - CLASSES) / (PIXELS + 1 + CLASSES))
