"""The fault matrix: its page is current, its cases are valid, and their rows are judged."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from orchestrator.sweeps.load import load_sweep
from tests.faults.case import LOCAL, Case, Then
from tests.faults.page import PAGE, with_cases
from tests.faults.runner import judge
from tests.faults.scene import Scene
from tests.faults.table import CASES, SECTIONS
from tests.support.places import PLACES
from tests.unit.conftest import run_result


def test_page_is_current() -> None:
    text = PAGE.read_text()
    assert with_cases(text) == text, "run: make docs"
    assert all(f"## {title}" in text for title in SECTIONS)


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sweep_of_a_case_has_two_runs(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yml"
    file.write_text(Scene.document(case))
    disturbed, healthy = load_sweep(file).runs
    assert disturbed.topology == healthy.topology
    assert {*case.runtimes} <= {*PLACES}
    assert set(case.victims) <= set(range(max(disturbed.world_size, healthy.world_size)))
    assert case.verdict.status or case.verdict.then is Then.STOPS


def case_named(name: str) -> Case:
    (case,) = [case for case in CASES if case.name == name]
    return case


@pytest.mark.parametrize(
    ("fields", "code", "healthy", "output", "problems"),
    [
        ({}, 1, "ok", "", 0),
        ({}, 0, "ok", "", 1),
        ({}, 1, "failed", "", 1),
        ({}, 1, "ok", "Traceback (most recent call last)", 1),
        ({"cause": "node OTHER was killed by SIGKILL"}, 1, "ok", "", 1),
        ({"cause": "node VICTIM was lost"}, 1, "ok", "", 1),
        ({"status": "timeout"}, 1, "ok", "", 1),
        (None, 1, "ok", "", 1),
    ],
)
def test_judgement(
    tmp_path: Path, fields: dict[str, Any] | None, code: int, healthy: str, output: str, problems: int
) -> None:
    scene = Scene(case_named("kill-epoch"), LOCAL, Random(0), tmp_path)
    (victim,) = scene.victims

    def write(number: int, **fields: Any) -> None:
        run = scene.runs[number]
        path = scene.paths.run(run.key).result
        path.parent.mkdir(parents=True)
        path.write_text(
            run_result(key=run.key, spec=json.loads(run.model_dump_json()), **fields).model_dump_json()
        )

    row = {"status": "failed", "cause": "node VICTIM was killed by SIGKILL", **(fields or {})}
    cause = row["cause"].replace("VICTIM", str(victim)).replace("OTHER", str(1 - victim))
    if fields is not None:
        write(0, **{**row, "cause": cause})
    write(1, status=healthy)
    scene.output = output
    assert len(judge(scene, scene.row(), code)) == problems
