"""Grades as Gradescope reads them: a file results.json for each submission."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.course import Visibility
from orchestrator.course.grading import Grade, Score
from orchestrator.course.table import lines
from orchestrator.errors import InputError
from orchestrator.results.store import write_atomic

NAME = "results.json"


def _test(score: Score, visibility: Visibility) -> dict[str, Any]:
    return {
        "name": f"{score.file}: {score.title}",
        "score": score.points,
        "max_score": score.possible,
        "status": "failed" if score.failure else "passed",
        "output": lines(score, score.failure) if score.failure else score.law,
        "output_format": "text",  # so that nothing in a text is markup
        "visibility": visibility,
    }


def places(directory: Path, submissions: dict[str, Path]) -> dict[str, Path]:
    """The file of each submission: in the directory, or in one for each if there are several.

    Raises InputError: two submissions have the same directory name.
    """
    if len(submissions) == 1:
        return dict.fromkeys(submissions, directory / NAME)
    found = {name: directory / path.name / NAME for name, path in submissions.items()}
    if len({*found.values()}) < len(found):
        raise InputError("--gradescope: several submissions have a directory of the same name")
    return found


def write(grades: Sequence[Grade], files: dict[str, Path], visibility: Visibility) -> None:
    """Write the files. One that was not graded has none, which Gradescope reports as a failure."""
    for grade in grades:
        if grade.error:
            files[grade.submission].unlink(missing_ok=True)
            continue
        results = {
            "score": grade.points,
            "execution_time": math.ceil(sum(score.seconds for score in grade.scores)),
            "stdout_visibility": "hidden",  # the grader prints a table with all reasons
            "tests": [_test(score, visibility) for score in grade.scores],
        }
        write_atomic(files[grade.submission], json.dumps(results, indent=2))
