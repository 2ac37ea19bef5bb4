"""Grades as a table, and the reasons for lost points below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orchestrator.course.grading import Grade, Reason, Score
from orchestrator.results.csv_text import csv_text


def table(grades: Sequence[Grade]) -> Table:
    """A row per submission, and a column per file: points of the possible ones."""
    files = _files(grades)
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("submission", overflow="fold")
    for file in files:
        shown.add_column(PurePath(file).stem, justify="right", overflow="fold")
    shown.add_column("points", justify="right", no_wrap=True)
    for grade in grades:
        if grade.error:
            cells = ["" for _ in files]
        else:
            cells = [f"{got}/{of}" for got, of in (_points(grade, file) for file in files)]
        total = "not graded" if grade.error else f"{grade.points}/{grade.possible}"
        style = "green" if grade.points == grade.possible else ""
        shown.add_row(*map(Text, (grade.submission, *cells)), Text(total, style=style))
    return shown


def gradebook(grades: Sequence[Grade]) -> str:
    """The same as CSV, with why points were lost; cells without points are of submissions not graded."""
    files = _files(grades)
    return csv_text(
        ["submission", *files, "points", "possible", "feedback"], (_line(each, files) for each in grades)
    )


def _line(grade: Grade, files: Sequence[str]) -> dict[str, str | int]:
    """A submission's line of the gradebook."""
    line: dict[str, str | int] = {"submission": grade.submission, "possible": grade.possible}
    if grade.error:
        return {**line, "feedback": f"not graded: {grade.error}"}
    points = {file: _points(grade, file)[0] for file in files}
    return {**line, **points, "points": grade.points, "feedback": "\n".join(_feedback(grade))}


def _feedback(grade: Grade) -> Iterator[str]:
    for score in grade.scores:
        if failure := score.failure:
            yield f"{score.file}: {score.title} (0 of {score.possible}): {failure}"


def _files(grades: Sequence[Grade]) -> list[str]:
    return list(dict.fromkeys(score.file for grade in grades for score in grade.scores))


def _points(grade: Grade, file: str) -> tuple[int, int]:
    """The points for a file, and the possible ones."""
    scores = [score for score in grade.scores if score.file == file]
    return sum(score.points for score in scores), sum(score.possible for score in scores)


def reasons(grade: Grade) -> Iterator[Text | Padding]:
    """Lines on the lost points of one submission; none if it has all."""
    failed = [(score, score.failure) for score in grade.scores if score.failure]
    if not failed and not grade.error:
        return
    yield Text(f"\n{grade.submission}", style="bold")
    if grade.error:
        yield Padding(Text(f"not graded: {grade.error}"), (0, 0, 0, 2), expand=False)
    explained: dict[tuple[str, str, str, str], str] = {}  # titles by file and reason
    for score, failure in failed:
        heading = f"{score.file}: {score.title} (0 of {score.possible})"
        yield Padding(Text(heading, style="red"), (0, 0, 0, 2), expand=False)
        same = score.file, failure.problem, failure.expected, failure.got
        text = f"as “{explained[same]}”" if same in explained else lines(score, failure)
        explained.setdefault(same, score.title)
        yield Padding(Text(text), (0, 0, 0, 4), expand=False)


def lines(score: Score, failure: Reason) -> str:
    """What failed, and why it matters."""
    found = [score.law, score.reason, f"W{str(failure)[1:]}" if failure.case else str(failure)]
    if failure.expected or failure.got:
        found += [f"expected {failure.expected}", f"got      {failure.got}"]
    return "\n".join(found)
