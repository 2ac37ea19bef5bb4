"""Mistakes of repetitions: seed blocks, the warm-up run that is dropped, seeds added afterwards."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.command_line import run_ok
from tests.support.runs import lines_in, write_sweep

pytestmark = pytest.mark.nightly

BASE = {
    "dataset": {"name": "synthetic", "samples": 120, "test_samples": 32},
    "model": {"name": "mlp", "hidden": [8]},
    "epochs": 2,
}
ALL_REDUCE = {"strategy": "all_reduce", "transport": "gloo"}
BLOCKS = [{"strategy": "serial"}, {"base": ALL_REDUCE, "axes": {"nodes": [2, 3]}}]


def rows(out: Path) -> dict[str, dict[str, str]]:
    """The lines of results.csv by run key, in the order of the file."""
    return {row["key"]: row for row in lines_in(out)}


def executed(output: str) -> list[str]:
    """The keys of the runs that a command has executed, in order."""
    return re.findall(r"^\[\d+/\d+\] (\S+): ok in ", output, re.MULTILINE)


def test_sweep_is_extended_by_seeds(tmp_path: Path) -> None:
    file, out = write_sweep(tmp_path / "repeated.yml", BASE, *BLOCKS), tmp_path / "out"
    done = run_ok("sweep", file, "--out", out, "--repeat", "2")
    first = rows(out)
    configurations = [(1, "serial"), (2, "all_reduce"), (3, "all_reduce")]
    assert [(int(row["nodes"]), row["strategy"], int(row["seed"])) for row in first.values()] == [
        (nodes, strategy, seed) for nodes, strategy in configurations for seed in (0, 1)
    ]
    order = sorted(first, key=lambda key: int(first[key]["order"]))
    assert order == executed(done.stdout)
    assert [first[key]["order"] for key in order] == [*map(str, range(6))]
    assert [first[key]["seed"] for key in order] == ["0"] * 3 + ["1"] * 3

    warm_up = [line for line in done.stdout.splitlines() if line.startswith("warm-up run")]
    assert len(warm_up) == 1
    assert "serial-memory-n1-s0" in warm_up[0]
    assert done.stdout.index(warm_up[0]) < done.stdout.index("[1/6] ")
    directories = {path.name for path in out.iterdir() if path.is_dir()}
    assert directories - {"plots"} == {*first}

    results = {key: (out / key / "result.json").read_bytes() for key in first}
    done = run_ok("sweep", file, "--out", out, "--repeat", "3", "--no-warm-up-run")
    second = rows(out)
    new = executed(done.stdout)
    assert {*new} == {*second} - {*first}
    assert {second[key]["seed"] for key in new} == {"2"}
    assert [second[key]["order"] for key in new] == ["0", "1", "2"]
    assert "warm-up run" not in done.stdout
    assert {key: second[key]["order"] for key in first} == {key: first[key]["order"] for key in first}
    assert {key: (out / key / "result.json").read_bytes() for key in first} == results


def test_sweep_adds_seeds_in_stages_and_resumes(tmp_path: Path) -> None:
    file, out = write_sweep(tmp_path / "repeated.yml", BASE, *BLOCKS), tmp_path / "out"
    command = ("sweep", file, "--out", out, "--until-decided", "--repeat", "5", "--no-warm-up-run")
    done = run_ok(*command)
    assert re.findall(r"^after (\d) seeds: ", done.stdout, re.MULTILINE) == ["3", "5"]
    record = json.loads((out / "sweep.json").read_text())
    assert record["stages"]["ended"] == "every configuration left has 5 seeds"
    assert {*record["keys"]} == {*executed(done.stdout)} == {*rows(out)}
    seeds = [int(row["seed"]) for row in rows(out).values() if row["strategy"] == "serial"]
    assert seeds == [*range(5)]

    assert executed(run_ok(*command).stdout) == []
    assert json.loads((out / "sweep.json").read_text()) == record
