"""CSV files: no text of a student or a component is a formula where a spreadsheet opens the file."""

from __future__ import annotations

import csv
import io

import pytest

from orchestrator.course.grading import Grade, Reason, Score
from orchestrator.course.table import gradebook
from orchestrator.results.csv_text import csv_text

BEGINS = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", " \n-1", "\r=1", "＝1"]
FORMULAS = [*BEGINS, "a\n=1", "a\t=1", "a;=1", 'a";\r=1']
SEPARATORS = [",", ";", "\t"]  # which one a spreadsheet expects depends on the language


def cells(text: str, separator: str) -> list[str]:
    return [cell for line in csv.reader(io.StringIO(text), delimiter=separator) for cell in line]


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("formula", FORMULAS)
def test_no_cell_begins_as_a_formula(formula: str, separator: str) -> None:
    failure = Reason(case="", problem=formula, expected="", got="")
    score = Score(
        file=formula, title=formula, law="", reason="", points=0, possible=1, seconds=0, failure=failure
    )
    graded = Grade(submission=formula, points=0, possible=1, error=None, scores=[score])
    book = gradebook([graded, graded.model_copy(update={"error": formula, "scores": []})])
    for text in (book, csv_text([formula, "cause"], [{formula: formula, "cause": formula}])):
        begins = {cell.lstrip()[:1] for cell in cells(text, separator)}
        assert not begins & {*"=+-@＝"}, text
        assert not any(begin.isspace() for begin in begins)


def test_numbers_stay_numbers() -> None:
    assert csv_text(["a", "b", "c"], [{"a": -1.5, "b": None, "c": True}]) == "a,b,c\n-1.5,,true\n"
