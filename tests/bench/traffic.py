"""Bytes counted by the containers' network interfaces, compared with the payload counted by the ranks.

Nothing is subtracted. A run that exchanges almost nothing shows the bytes sent before and after training.
"""

from __future__ import annotations

import sys
from typing import Any

from orchestrator.results.records import RunResult
from tests.bench.runs import runs_on
from tests.support.containers import containers_missing
from trainer.spec.run_spec import RunSpec

PIXELS, CLASSES, BATCH = 64, 10, 4
# Strategy, floats of the model, and enough steps to make start-up negligible.
ROWS = [
    ({"name": "one_shot", "init": "independent"}, 0, 1),  # exchanges almost nothing
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
            for nodes in (2, 3, 4):
                for strategy, floats, steps in ROWS:
                    run = spec(transport, nodes, strategy, floats, steps)
                    label = f"{transport}, {nodes} nodes, {run.name_of('strategy')}, {floats:,} × {steps}"
                    print(f"  {label:48} {cells(execute(run))}", flush=True)


def cells(result: RunResult) -> str:
    """Busiest node: the largest interface count divided by a rank's largest payload."""
    interfaces = [usage.sent_bytes for usage in result.usage if usage.sent_bytes and usage.ranks]
    if len(interfaces) < len(result.ranks):
        sys.exit(f"{result.key}: sent_bytes of some containers is missing")
    counted = [rank.bytes_sent for rank in result.ranks]
    ratios = f"{sum(interfaces) / sum(counted):10.3f} {max(interfaces) / max(counted):13.3f}"
    enough = sum(counted) > sum(interfaces) / 10  # otherwise start-up dominates the ratio
    return f"{sum(interfaces):14,.0f} {sum(counted):14,.0f} {ratios if enough else ''}"


def spec(transport: str, nodes: int, strategy: Any, floats: int, steps: int) -> RunSpec:
    """A run of one epoch of a perceptron whose hidden layer makes about so many parameters."""
    samples = nodes * BATCH * steps
    fields = {
        "strategy": strategy,
        "transport": transport,
        "nodes": nodes,
        "epochs": 1,
        "batch_size": BATCH,
        "dataset": {"name": "synthetic", "samples": samples, "test_samples": 64, "height": 8, "width": 8},
        "model": {"name": "mlp", "hidden": [max(1, round((floats - CLASSES) / (PIXELS + 1 + CLASSES)))]},
        "lr": 0.001,
    }
    return RunSpec.model_validate(fields)
