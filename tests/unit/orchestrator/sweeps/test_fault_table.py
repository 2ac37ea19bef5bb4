"""Mistakes in the table of faults, whose rows run at night: sweeps that do not load, verdicts that miss."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest

from orchestrator.results.store import write_atomic
from tests.faults.scene import Scene
from tests.faults.table import CASES
from tests.faults.test_faults_of_runs import judge
from tests.unit.conftest import run_result


def test_a_verdict_is_compared_with_the_rows(tmp_path: Path) -> None:
    (case,) = [case for case in CASES if case.name == "kill-epoch"]
    scene = Scene(case, "local", Random(0), tmp_path)
    (victim,) = scene.victims
    paths = [scene.paths.run(run.key).result for run in scene.runs]
    right = f"node {victim} was killed by SIGKILL"
    for holds, code, status, cause, healthy in (
        (True, 1, "failed", right, "ok"),
        (False, 0, "failed", right, "ok"),
        (False, 1, "timeout", right, "ok"),
        (False, 1, "failed", f"node {victim} was lost", "ok"),
        (False, 1, "failed", f"node {1 - victim} was lost, then {right}", "ok"),
        (False, 1, "failed", right, "failed"),
    ):
        for path, row in zip(paths, (run_result(status, cause=cause), run_result(healthy)), strict=True):
            write_atomic(path, row.model_dump_json())
        with nullcontext() if holds else pytest.raises(AssertionError):
            judge(scene, code)
