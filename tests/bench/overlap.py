"""Overlap: wall and cluster times of strategies with exchanges beside work, on real and on virtual nodes.

On request: it takes minutes. Two containers, each with a core, over a shaped link; and the same runs on
virtual nodes. A row has means over seeds. `exchange` is the wall time in which ranks communicate or wait.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from orchestrator.runtimes.docker.runtime import links_missing
from tests.support.command_line import run_ok
from tests.support.containers import containers_missing

STRATEGIES = [
    "all_reduce",
    "ddp",
    "zero1",
    "zero2",
    "fsdp",
    {"name": "delayed_all_reduce", "delay": 1},
    {"name": "streaming_diloco", "local_steps": 6, "fragments": 2, "overlap": 2},
]
COLUMNS = ("train_s", "communicate_s", "wait_s", "cluster_s", "hidden_s")
SWEEP = {
    "name": "overlap",
    "base": {
        "dataset": "digits",
        "model": {"name": "mlp", "hidden": [512, 512, 256]},
        "epochs": 4,
        "batch_size": 64,
        "transport": "gloo",
        "nodes": 2,
    },
    "blocks": [
        {
            "axes": {
                "strategy": STRATEGIES,
                "link": [{"bandwidth_mbit": mbit, "latency_ms": 0.2} for mbit in (500, 2000)],
                "seed": [0, 1, 2],
            }
        },
        {"base": {"strategy": "serial", "nodes": 1, "transport": "memory"}, "axes": {"seed": [0, 1, 2]}},
    ],
}


def main() -> None:
    if reason := containers_missing() or links_missing():
        print(f"overlap: skipped, {reason}")
        return
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "overlap.yml"
        file.write_text(json.dumps(SWEEP))
        found = {
            runtime: means(file, Path(directory) / runtime, runtime) for runtime in ("docker", "virtual")
        }
    print(f"seconds{' ' * 57}containers{' ' * 18}virtual nodes")
    print(f"  {'strategy':40} {'link':18}    wall exchange cluster hidden cluster hidden")
    for name, real in found["docker"].items():
        virtual = found["virtual"].get(name, {})
        exchange_s = real["communicate_s"] + real["wait_s"]
        cells = [real["train_s"], exchange_s, real["cluster_s"], real["hidden_s"]]
        cells += [virtual.get("cluster_s"), virtual.get("hidden_s")]
        shown = " ".join("      –" if cell is None else f"{cell:7.3f}" for cell in cells)
        print(f"  {name[0]:40} {name[1]:18} {shown}")


def means(file: Path, out: Path, runtime: str) -> dict[tuple[str, str], dict[str, float]]:
    """The means over seeds of a sweep of the file, by strategy and link."""
    run_ok("sweep", str(file), "--runtime", runtime, "--out", str(out), timeout_s=1200)
    groups = defaultdict(list)
    with open(out / "results.csv", newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["status"] == "ok" and row["strategy"] != "serial":
                groups[row["strategy"], row["link"]].append(row)
    return {
        name: {column: fmean(float(row[column] or 0) for row in rows) for column in COLUMNS}
        for name, rows in groups.items()
    }
