"""Mistakes in Gradescope's result files: their schema, texts of submissions, what was not graded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from orchestrator.course.gradescope import places, write
from orchestrator.course.grading import MAX_TEXT, Grade, Reason, Score
from orchestrator.errors import InputError

VISIBILITY = {"enum": ["hidden", "after_due_date", "after_published", "visible"]}
NUMBER = {"type": "number", "minimum": 0}
TEST = {
    "name": {"type": "string"},
    "score": NUMBER,
    "max_score": NUMBER,
    "status": {"enum": ["passed", "failed"]},
    "output": {"type": "string"},
    "output_format": {"enum": ["text", "html", "simple_format", "md", "ansi"]},
    "visibility": VISIBILITY,
}
# https://gradescope-autograders.readthedocs.io/en/latest/specs/#output-format: the fields that are written
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["score", "tests"],
    "properties": {
        "score": NUMBER,
        "execution_time": {"type": "integer", "minimum": 0},
        "stdout_visibility": VISIBILITY,
        "tests": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["score", "max_score", "status"],
                "properties": TEST,
            },
        },
    },
}
HOSTILE = '<script>alert("x")</script>\x1b[2J\u202e\n{"score": 99}' + "x" * 10**5


def score(points: int, failure: Reason | None = None) -> Score:
    about = {"file": "a.py", "title": "t", "law": "It holds.", "reason": "So."}
    return Score(**about, points=points, possible=2, seconds=1.25, failure=failure)


def written(tmp_path: Path, **grades: Grade) -> dict[str, Any]:
    files = places(tmp_path / "out", {name: tmp_path / name for name in grades})
    write([*grades.values()], files, "after_due_date")
    return {name: json.loads(path.read_text()) if path.exists() else None for name, path in files.items()}


def test_a_file_has_gradescopes_form_and_texts_of_a_submission_change_nothing_in_it(tmp_path: Path) -> None:
    failure = Reason(case="n=2", problem=HOSTILE, expected="1", got=HOSTILE)
    grade = Grade(submission="eve", points=2, possible=4, error=None, scores=[score(2), score(0, failure)])
    found = written(tmp_path, eve=grade)["eve"]
    validate(found, SCHEMA)
    assert (tmp_path / "out" / "results.json").exists()
    assert (found["score"], found["execution_time"], found["stdout_visibility"]) == (2, 3, "hidden")
    passed, failed = found["tests"]
    assert (passed["status"], passed["score"], passed["max_score"]) == ("passed", 2, 2)
    assert (failed["status"], failed["score"], failed["max_score"]) == ("failed", 0, 2)
    assert {each["visibility"] for each in found["tests"]} == {"after_due_date"}
    assert failed["output_format"] == "text"
    assert all(line.isprintable() for line in failed["output"].split("\n"))
    assert len(failed["output"]) < 3 * MAX_TEXT


def test_what_was_not_graded_has_no_file_and_loses_an_older_one(tmp_path: Path) -> None:
    ana = Grade(submission="ana", points=2, possible=2, error=None, scores=[score(2)])
    eve = ana.model_copy(update={"submission": "eve"})
    assert written(tmp_path, ana=ana, eve=eve)["eve"]["score"] == 2
    lost = eve.model_copy(update={"error": "the engine has stopped", "points": 0, "scores": []})
    assert written(tmp_path, ana=ana, eve=lost)["eve"] is None
    assert (tmp_path / "out" / "ana" / "results.json").exists()


def test_submissions_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--gradescope"):
        places(tmp_path, {"x/ana": tmp_path / "x" / "ana", "y/ana": tmp_path / "y" / "ana"})
