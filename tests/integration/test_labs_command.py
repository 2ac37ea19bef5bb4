"""The commands `labs` and `lab`, from a lab's name to its report."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.support.command_line import run_cli

pytestmark = pytest.mark.nightly


def test_quick_lab_runs_on_digits(tmp_path: Path) -> None:
    """How the report compares published and measured figures is in test_report_published.py."""
    done = run_cli(
        *("lab", "rpc_split", "--quick", "--runtime", "local", "--set", "seed=0"),
        *("--data-dir", tmp_path / "data", "--out", tmp_path / "labs"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "data").exists()  # nothing was downloaded
    out = tmp_path / "labs" / "rpc_split"
    with open(out / "results.csv", newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert {row["dataset"].partition(" ")[0] for row in rows} == {"digits"}
    record = json.loads((out / "sweep.json").read_text())
    assert "--quick" in record["overrides"]
    page = (out / "report.md").read_text()
    assert "105\N{NO-BREAK SPACE}s" in page  # published for three nodes
    assert all(row["key"] in page for row in rows)


def test_labs_lists_every_lab_within_80_columns() -> None:
    done = run_cli("labs")
    assert done.returncode == 0
    assert "parallel_sgd\n    Parallel SGD over MPI" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
