"""Mistakes in the table of faults, whose rows run at night: sweeps that do not load, verdicts that miss."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.faults.scene import Scene
from tests.faults.table import CASES
from tests.faults.test_faults_of_runs import ROWS, judge
from tests.unit.conftest import run_result

RECORD = {"status": "failed", "cause": "node VICTIM was killed by SIGKILL"}


def test_rows_have_names_of_their_own_and_two_runs_of_one_topology(tmp_path: Path) -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)
    for case in CASES:
        disturbed, healthy = Scene(case, "local", Random(0), tmp_path).runs
        assert disturbed.topology == healthy.topology, case.name


@pytest.mark.parametrize(
    ("row", "code", "healthy", "holds"),
    [
        (RECORD, 1, "ok", True),
        (RECORD, 0, "ok", False),
        (RECORD, 1, "failed", False),
        ({**RECORD, "cause": "node OTHER was killed by SIGKILL, then node VICTIM"}, 1, "ok", False),
        ({**RECORD, "cause": "node VICTIM was lost"}, 1, "ok", False),
        ({**RECORD, "status": "timeout"}, 1, "ok", False),
        (None, 1, "ok", False),
    ],
)
def test_a_verdict_is_compared_with_the_rows(
    tmp_path: Path, row: dict[str, Any] | None, code: int, healthy: str, holds: bool
) -> None:
    (case,) = [case for case in CASES if case.name == "kill-epoch"]
    scene = Scene(case, "local", Random(0), tmp_path)
    (victim,) = scene.victims
    for run, fields in zip(scene.runs, (row, {"status": healthy}), strict=True):
        if fields:
            text = run_result(
                key=run.key, spec=json.loads(run.model_dump_json()), **fields
            ).model_dump_json()
            path = scene.paths.run(run.key).result
            path.parent.mkdir(parents=True)
            path.write_text(text.replace("VICTIM", str(victim)).replace("OTHER", str(1 - victim)))
    if holds:
        judge(scene, code)
    else:
        with pytest.raises(AssertionError):
            judge(scene, code)
