"""Mistakes in pages of docs, and in commands that they show: what the examples write and print."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.command_line import run, run_ok
from tests.support.pages import blocks
from tests.support.runs import lines_in
from trainer.core.events import EventReader

pytestmark = pytest.mark.nightly


def test_the_exports_of_the_page_on_kubernetes(tmp_path: Path) -> None:
    sweep, fetch = blocks("docs/kubernetes.md", "yaml")
    (tmp_path / "mine.yml").write_text(sweep)
    (commands,) = blocks("docs/kubernetes.md", "")
    written = {}
    for line in map(shlex.split, commands.splitlines()):
        written[line[4]] = run_ok(*line[1:], directory=tmp_path).stdout.count("added: ")
    assert written == {"kubernetes": 4}  # runs, and what they share
    for block in blocks("docs/kubernetes.md", "sh"):
        done = run(["bash", "-n", "-c", block], tmp_path)
        assert done.returncode == 0, done.stderr
    validate = pytest.importorskip("kubernetes_validate", reason="requirements-dev.txt has it").validate
    validate(yaml.safe_load(fetch), "1.37", strict=True)


def test_torchrun_of_the_page_on_launchers_trains(tmp_path: Path) -> None:
    (spec,) = blocks("docs/launchers.md", "json")
    (tmp_path / "spec.json").write_text(spec)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = run(["bash", "-e", "-c", blocks("docs/launchers.md", "sh")[0]], tmp_path, PATH=path)
    ended = {event.rank for event in EventReader(tmp_path / "out").new() if event.kind == "done"}
    assert (done.returncode, ended) == (0, {0, 1}), done.stdout + done.stderr


def test_the_commands_of_the_page_on_comparing(tmp_path: Path) -> None:
    (sweep,) = blocks("docs/comparing.md", "yaml")
    (tmp_path / "small.yml").write_text(sweep)
    lines = [line for block in blocks("docs/comparing.md", "") for line in block.splitlines()]
    commands = [each.groups() for line in lines if (each := re.fullmatch(r"shardyard (\w+) (.*)", line))]
    assert [command for command, _ in commands] == ["sweep", "sweep", "compare", "compare"]
    *_, printed, _ = (
        run_ok(command, *shlex.split(options), directory=tmp_path).stdout for command, options in commands
    )
    assert "serial" in printed
    assert "local_sgd" in printed
    assert printed.count("→") >= 4  # time and accuracy of each configuration
    assert "<table" in (tmp_path / "changes.html").read_text()
    assert (tmp_path / "changes.md").read_text().startswith("# ")


def test_a_plan_is_made_by_formula_by_execution_and_for_real() -> None:
    options = ("--nodes", "2", "--batch-size", "16", "--runtime", "local", "--real", "2", "--json")
    dataset = ("--memory", "1mb", "--dataset", "{name: induction, length: 15}")
    model = "{name: gpt, layers: 2, width: 16, heads: 2}"
    found = json.loads(run_ok("plan", model, *options, *dataset).stdout)
    fitting = [each for each in found["layouts"] if each["fits"]]
    executed = [each for each in fitting if each["by"] == "execution"]
    times = [each["step_s"] for each in executed]
    assert times == sorted(times)
    assert executed == fitting[: len(executed)]
    real_s = [each["real_step_s"] for each in fitting[:2]]
    assert found["regret"] == real_s[0] / min(real_s) - 1
    by_name = {each["strategy"]["name"]: each for each in executed}
    assert {"all_reduce", "zero2", "tensor_parallel", "context_parallel", "pipeline"} <= by_name.keys()
    for name, each in by_name.items():
        assert each["low_s"] < each["step_s"] < each["high_s"]
        # The formulas leave out what ranks that share tokens exchange beside activations.
        shares_tokens = name == "context_parallel" or each["strategy"].get("sequence_parallel")
        off, memory_off = (0.2, 0.3) if shares_tokens else (1e-3, 0.1)
        assert each["bytes_by_formula"] == pytest.approx(each["bytes_per_step"], rel=off)
        assert each["memory_by_formula"] == pytest.approx(each["memory_bytes"], rel=memory_off)
    # Half of the optimizer state and of the gradient; and no copy of the model.
    assert by_name["zero2"]["memory_bytes"] < by_name["all_reduce"]["memory_bytes"]


def test_labs_are_listed_and_a_quick_one_runs_on_digits(tmp_path: Path) -> None:
    """How the report compares published and measured figures is in test_report_published.py."""
    listed = run_ok("labs").stdout
    assert "parallel_sgd\n    Parallel SGD over MPI" in listed
    assert max(map(len, listed.splitlines())) <= 80
    run_ok(
        *("lab", "rpc_split", "--quick", "--runtime", "local", "--set", "seed=0"),
        *("--data-dir", tmp_path / "data", "--out", tmp_path / "labs"),
    )
    assert not (tmp_path / "data").exists()  # nothing was downloaded
    out = tmp_path / "labs" / "rpc_split"
    rows = lines_in(out)
    assert [(row["status"], row["dataset"].split()[0]) for row in rows] == [("ok", "digits")] * 3
    assert "--quick" in json.loads((out / "sweep.json").read_text())["overrides"]
    page = (out / "report.md").read_text()
    assert "105\N{NO-BREAK SPACE}s" in page  # published for three nodes
    assert all(row["key"] in page for row in rows)
