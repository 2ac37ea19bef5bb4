"""Mistakes in the fault matrix: an outdated page, two cases of one name, cases that cannot be played."""

from __future__ import annotations

from pathlib import Path

from orchestrator.sweeps.load import load_sweep
from tests.faults.case import Then
from tests.faults.page import PAGE, with_cases
from tests.faults.scene import Scene
from tests.faults.table import CASES, SECTIONS
from tests.support.places import PLACES


def test_the_page_is_current() -> None:
    text = PAGE.read_text()
    assert with_cases(text) == text, "run: make docs"
    assert all(f"## {title}" in text for title in SECTIONS)


def test_every_case_has_a_name_a_sweep_of_two_runs_and_a_verdict(tmp_path: Path) -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    runs = {text: load_sweep(tmp_path, text=text).runs for text in {*map(Scene.document, CASES)}}
    for case in CASES:
        disturbed, healthy = runs[Scene.document(case)]
        assert disturbed.topology == healthy.topology, case.name
        assert {*case.runtimes} <= {*PLACES}, case.name
        assert set(case.victims) <= set(range(max(disturbed.world_size, healthy.world_size))), case.name
        assert case.verdict.status or case.verdict.then is Then.STOPS, case.name
