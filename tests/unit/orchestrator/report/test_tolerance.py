"""Mistakes in the tolerance of a sweep: units, whether the option or the file counts, what it permits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError
from orchestrator.report.findings.claims import Claims
from orchestrator.report.statistics.chances import Tolerance
from orchestrator.report.verdict import verdicts
from orchestrator.sweeps.load import load_sweep
from orchestrator.sweeps.tolerance import Tolerances
from tests.unit.report_support import a_comparison, around, repeated


def loaded(tmp_path: Path, tolerance: Any = None, option: str | None = None) -> Tolerances:
    content = {"name": "trial", "blocks": [{"base": {"strategy": "serial"}}]}
    more = {"tolerance": tolerance} if tolerance else {}
    (tmp_path / "trial.yml").write_text(json.dumps(content | more))
    return load_sweep(tmp_path / "trial.yml", tolerance=option).tolerance


def test_an_option_replaces_what_the_file_says(tmp_path: Path) -> None:
    assert loaded(tmp_path) == Tolerances(accuracy="1pt", time="5%")
    of_file = {"accuracy": "0.5pt", "time": "10%"}
    assert loaded(tmp_path, of_file) == Tolerances(**of_file)
    assert loaded(tmp_path, of_file, "accuracy=2pt") == Tolerances(accuracy="2pt", time="10%")


@pytest.mark.parametrize(
    ("tolerance", "option", "message"),
    [
        ({"accuracy": 1}, None, r"tolerance\.accuracy: .*string"),
        ({"accuracy": "1%"}, None, r"tolerance\.accuracy: "),
        ({"speed": "5%"}, None, r"tolerance\.speed: unknown key"),
        (None, "accuracy=1%", "--tolerance accuracy=1%: 'accuracy=1%' is not one of"),
        (None, "time=5%,time=6%", "each at most once"),
    ],
)
def test_other_tolerances_are_refused(
    tmp_path: Path, tolerance: Any, option: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        loaded(tmp_path, tolerance, option)


def test_what_is_within_the_tolerance_may_be_chosen() -> None:
    runs = [
        *repeated("serial", around(0.95, 0.001, seeds=8), "accuracy"),
        *repeated("all_reduce", around(0.93, 0.001, seeds=8), "accuracy", nodes=2, train_s=3.0),
    ]
    for stated, meant, chosen in (
        (Tolerances(), Tolerance(0.01, 0.05), "serial"),
        (Tolerances(accuracy="4pt", time="12.5%"), Tolerance(0.04, 0.125), "all_reduce over mpi"),
    ):
        comparison = a_comparison(*runs, tolerance=stated)
        assert comparison.tolerance == meant
        assert verdicts(comparison, Claims())[0].options[0].name == chosen
