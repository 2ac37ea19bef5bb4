"""Mistakes in the check of a report's claims: it refuses a right one, or accepts a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.check_findings import main
from tests.unit.report_support import a_run, around, write_page


@pytest.mark.slow
def test_claims_follow_from_the_rows_of_a_report(tmp_path: Path) -> None:
    write_page(
        tmp_path,
        *(a_run("serial", seed=seed, train_s=time) for seed, time in enumerate(around(8, 0.1))),
        *(a_run("ddp", seed=seed, train_s=time, nodes=2) for seed, time in enumerate(around(5, 0.2)[::-1])),
        *(a_run("all_reduce", seed=seed, train_s=s, nodes=2) for seed, s in enumerate(around(5.1, 0.1))),
        *(a_run("one_shot", seed=seed, train_s=time, nodes=2) for seed, time in enumerate([4, 4.5])),
    )
    path = tmp_path / "findings.json"
    findings = path.read_text()
    assert main(tmp_path) == 0
    for wrong in ({"decision": "more"}, {"p": 0.0}, {"values": [1.0, 2.0]}, {"interval": None}):
        changed = json.loads(findings)
        compared = [each for finding in changed for each in finding["data"].get("compared", ())]
        undecided = [each for each in compared if each["decision"] == "undecided"]
        next(each for each in undecided if each["quantity"] == "train_s").update(wrong)
        path.write_text(json.dumps(changed))
        assert main(tmp_path) == 1, wrong
