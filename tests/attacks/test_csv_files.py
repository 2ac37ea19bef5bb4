"""CSV files: no text of a student or a component is a formula where a spreadsheet opens the file."""

from __future__ import annotations

import csv
import io

from orchestrator.course.grading import Grade, Reason, Score
from orchestrator.course.table import gradebook
from orchestrator.results.csv_text import csv_text

BEGINS = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", " \n-1", "\r=1", "＝1", "＋1", "－1", "＠1"]
FORMULAS = [*BEGINS, "a\n=1", "a\t=1", "a;=1", 'a";\r=1']
SEPARATORS = ",;\t"  # which one a spreadsheet expects depends on the language


def test_no_cell_begins_as_a_formula() -> None:
    for text in FORMULAS:
        failure = Reason(case="", problem=text, expected="", got="")
        texts = {"file": text, "title": text, "law": "", "reason": "", "failure": failure}
        scores = [Score.model_validate({**texts, "points": 0, "possible": 1, "seconds": 0})]
        graded = Grade(submission=text, points=0, possible=1, error=None, scores=scores)
        book = gradebook([graded, graded.model_copy(update={"error": text, "scores": []})])
        for written in (book, csv_text([text, "cause"], [{text: text, "cause": text}])):
            for separator in SEPARATORS:
                lines = csv.reader(io.StringIO(written), delimiter=separator)
                begins = {cell.lstrip()[:1] for line in lines for cell in line}
                assert not begins & {*"=+-@＝＋－＠"}, (written, separator)
    assert csv_text(["a", "b", "c"], [{"a": -1.5, "b": None, "c": True}]) == "a,b,c\n-1.5,,true\n"
